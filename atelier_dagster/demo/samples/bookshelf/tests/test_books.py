import json
import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class BooksTest(unittest.TestCase):
    def test_a_new_shelf_is_empty(self):
        self.assertEqual(respond(Store(), "GET", "/books"), (200, []))

    def test_a_book_is_added(self):
        store = Store()
        body = json.dumps({"title": "Dune", "writer": "Herbert"}).encode()
        status, book = respond(store, "POST", "/books", body)
        self.assertEqual((status, book["title"], book["writer"]), (201, "Dune", "Herbert"))
        self.assertEqual(respond(store, "GET", "/books")[1], [book])

    def test_a_book_needs_a_title(self):
        self.assertEqual(respond(Store(), "POST", "/books", b"{}")[0], 400)

    def test_bad_json_is_refused(self):
        self.assertEqual(respond(Store(), "POST", "/books", b"[")[0], 400)

    def test_unknown_paths_are_not_found(self):
        self.assertEqual(respond(Store(), "GET", "/nothing")[0], 404)


if __name__ == "__main__":
    unittest.main()
