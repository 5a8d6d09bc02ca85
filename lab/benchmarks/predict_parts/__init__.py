"""What ``predict.py`` runs, and how it judges."""
