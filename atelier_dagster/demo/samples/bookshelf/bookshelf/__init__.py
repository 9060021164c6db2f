"""A list of books behind an HTTP API."""
