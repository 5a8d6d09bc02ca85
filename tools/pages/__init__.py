"""Programs that write the generated pages of docs/."""
