"""Sandbox of a workshop: bubblewrap, bounds, and the supervisor that owns them. Nothing is imported here (start time)."""
