"""A workshop's ways out: the egress proxy and the model's reverse proxy. Nothing is imported here (start time)."""
