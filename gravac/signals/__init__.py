"""What a window says: gain, its spectrum over CFs, diversity, figures derived from a report, and risk."""
