"""What tests of ranks share."""
