"""The agents' peers: a proxy, a squatter of ports, what they answer, and what they see."""
