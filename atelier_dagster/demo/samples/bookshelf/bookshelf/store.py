"""Books, in memory."""

import itertools
import threading


class Store:
    """Keeps books in the order in which they came; safe to use from several threads."""

    def __init__(self):
        self._books = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, title, writer="", **more):
        """Add a book and return it."""
        with self._lock:
            book = {"id": next(self._ids), "title": title, "writer": writer, **more}
            self._books[book["id"]] = book
            return dict(book)

    def all(self):
        """Copies of all books."""
        with self._lock:
            return [dict(book) for book in self._books.values()]

    def get(self, book_id):
        """A copy of one book, or None."""
        with self._lock:
            book = self._books.get(book_id)
            return dict(book) if book else None

    def change(self, book_id, **fields):
        """Set fields of a book; the changed book, or None when there is none."""
        with self._lock:
            book = self._books.get(book_id)
            if book is None:
                return None
            book.update(fields)
            return dict(book)
