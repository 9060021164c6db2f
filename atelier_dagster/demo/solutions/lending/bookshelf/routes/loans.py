"""Lending: a book is with one borrower at a time."""

PATH = "/loans"


def get(store, query, body):
    return 200, [book for book in store.all() if book.get("borrower")]


def post(store, query, body):
    book = store.get(body.get("book"))
    borrower = str(body.get("borrower") or "").strip()
    if book is None:
        return 404, {"error": "no such book"}
    if not borrower:
        return 400, {"error": "borrower: who takes the book is missing"}
    if book.get("borrower"):
        return 409, {"error": "the book is lent already"}
    return 201, store.change(book["id"], borrower=borrower)
