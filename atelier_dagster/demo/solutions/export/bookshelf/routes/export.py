"""The shelf as CSV, for spreadsheets."""

import csv
import io

PATH = "/export.csv"
FORMULA = ("=", "+", "-", "@")


def get(store, query, body):
    books = store.all()
    columns = sorted({name for book in books for name in book}, key=lambda name: (name != "id", name)) or ["id"]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows({name: plain(value) for name, value in book.items()} for book in books)
    return 200, out.getvalue()


def plain(value):
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
