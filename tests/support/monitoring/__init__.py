"""What tests of monitoring share."""
