"""Books whose title holds a text."""

PATH = "/search"


def get(store, query, body):
    wanted = query.get("title", "").strip().casefold()
    if not wanted:
        return 400, {"error": "title: what to search for is missing"}
    return 200, [book for book in store.all() if wanted in book["title"].casefold()]
