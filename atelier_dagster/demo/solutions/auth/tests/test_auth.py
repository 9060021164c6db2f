import os
import unittest
from unittest import mock

from bookshelf.server import respond
from bookshelf.store import Store

BOOK = b'{"title": "Dune"}'


class AuthTest(unittest.TestCase):
    def add(self, **headers):
        return respond(Store(), "POST", "/books", BOOK, headers)[0]

    def test_without_a_key_the_shelf_is_open(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("BOOKSHELF_KEY", None)
            self.assertEqual(self.add(), 201)

    def test_with_a_key_changes_need_it_and_reading_does_not(self):
        with mock.patch.dict(os.environ, {"BOOKSHELF_KEY": "k-é"}):
            self.assertEqual(self.add(), 401)
            self.assertEqual(self.add(Authorization="Bearer wrong"), 401)
            self.assertEqual(self.add(Authorization="Basic k-é"), 401)
            self.assertEqual(self.add(Authorization="Bearer k-é"), 201)
            self.assertEqual(respond(Store(), "GET", "/books")[0], 200)


if __name__ == "__main__":
    unittest.main()
