"""How many books there are, and under which letters."""

from collections import Counter

PATH = "/statistics"


def get(store, query, body):
    titles = [book["title"] for book in store.all()]
    letters = Counter(title[0].upper() for title in titles if title)
    return 200, {"books": len(titles), "letters": dict(sorted(letters.items()))}
