"""What tests of maths share."""
