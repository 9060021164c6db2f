"""Which version is running."""

PATH = "/version"
VERSION = "1.0.0"


def get(store, query, body):
    return 200, {"version": VERSION}
