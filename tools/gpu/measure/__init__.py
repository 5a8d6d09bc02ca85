"""What the steps of ``make gpu`` measure. Every part also runs on the CPU, in a small size, for tests."""
