"""What is done with a trace: its decisions are repeated, a journal is followed, another rule decides on its windows."""
