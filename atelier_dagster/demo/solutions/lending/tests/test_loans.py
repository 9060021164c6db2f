import json
import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class LoansTest(unittest.TestCase):
    def setUp(self):
        self.store = Store()
        self.book = self.store.add("Dune")["id"]

    def post(self, **body):
        return respond(self.store, "POST", "/loans", json.dumps(body).encode())

    def test_a_book_is_lent_once(self):
        self.assertEqual(self.post(book=self.book, borrower="Ann")[0], 201)
        self.assertEqual(self.post(book=self.book, borrower="Bob")[0], 409)
        self.assertEqual([b["borrower"] for b in respond(self.store, "GET", "/loans")[1]], ["Ann"])

    def test_what_is_missing_is_said(self):
        self.assertEqual(self.post(book=99, borrower="Ann")[0], 404)
        self.assertEqual(self.post(book=self.book)[0], 400)


if __name__ == "__main__":
    unittest.main()
