"""Real training to watch: ``gravac demo`` runs it, and so does torchrun, once per rank."""
