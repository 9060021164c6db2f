"""Returns: a lent book comes back."""

PATH = "/returns"


def post(store, query, body):
    book = store.get(body.get("book"))
    if book is None or not book.get("borrower"):
        return 404, {"error": "no such loan"}
    return 200, store.change(book["id"], borrower="")
