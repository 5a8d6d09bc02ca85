"""Measuring on this machine: programs on one core, ranks side by side, hosts on a slow network of namespaces."""
