"""Starting an agent: check what it is attached to, agree on settings, build its parts."""
