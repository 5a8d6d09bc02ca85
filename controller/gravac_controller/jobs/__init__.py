"""Jobs: registration, decisions, journals on disk, and reading them back."""
