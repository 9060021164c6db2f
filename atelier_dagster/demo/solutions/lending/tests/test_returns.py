import json
import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class ReturnsTest(unittest.TestCase):
    def test_a_lent_book_comes_back_once(self):
        store = Store()
        book = store.add("Dune", borrower="Ann")
        body = json.dumps({"book": book["id"]}).encode()
        self.assertEqual(respond(store, "POST", "/returns", body)[1]["borrower"], "")
        self.assertEqual(respond(store, "POST", "/returns", body)[0], 404)


if __name__ == "__main__":
    unittest.main()
