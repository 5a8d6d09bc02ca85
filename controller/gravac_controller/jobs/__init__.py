"""Jobs: their registration, decisions, journals on disk, and reading those back."""
