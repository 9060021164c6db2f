"""Stars that readers give, and their average."""

PATH = "/ratings"


def get(store, query, body):
    stars = [star for book in store.all() for star in book.get("stars", ())]
    return 200, {"average": average(stars), "count": len(stars)}


def post(store, query, body):
    book, stars = store.get(body.get("book")), body.get("stars")
    if book is None:
        return 404, {"error": "no such book"}
    if stars not in (1, 2, 3, 4, 5):
        return 400, {"error": "stars: 1 to 5"}
    return 201, store.change(book["id"], stars=[*book.get("stars", ()), stars])


def average(stars):
    """Mean, rounded to one place."""
    return round(sum(stars) / len(stars), 1)
