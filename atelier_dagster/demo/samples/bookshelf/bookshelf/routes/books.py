"""The list of books."""

PATH = "/books"


def get(store, query, body):
    return 200, store.all()


def post(store, query, body):
    title = str(body.get("title") or "").strip()
    if not title:
        return 400, {"error": "a book needs a title"}
    return 201, store.add(title, writer=str(body.get("writer") or ""))
