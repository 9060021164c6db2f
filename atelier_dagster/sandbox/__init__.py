"""A workshop's sandbox: bubblewrap, bounds, the supervisor that owns them. Nothing is imported here (start time)."""
