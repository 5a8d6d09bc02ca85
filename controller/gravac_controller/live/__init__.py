"""What is known of a running job, in bounded memory."""
