"""The routes, by who uses them."""
