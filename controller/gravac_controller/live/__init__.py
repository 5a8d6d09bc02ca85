"""The state of running jobs for readers, in bounded memory."""
