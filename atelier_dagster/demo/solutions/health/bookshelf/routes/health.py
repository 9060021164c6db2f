"""Whether the service is alive, for whoever watches it."""

PATH = "/health"


def get(store, query, body):
    return 200, {"status": "ok", "books": len(store.all())}
