"""Running the application: socket, connections, and an orderly end."""
