import csv
import io
import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class ExportTest(unittest.TestCase):
    def rows(self, store):
        return list(csv.DictReader(io.StringIO(respond(store, "GET", "/export.csv")[1])))

    def test_every_book_is_a_row(self):
        store = Store()
        store.add('Say "hello", world')
        store.add("Zwei\nZeilen")
        self.assertEqual([row["title"] for row in self.rows(store)], ['Say "hello", world', "Zwei\nZeilen"])

    def test_an_empty_shelf_has_a_header_only(self):
        self.assertEqual(respond(Store(), "GET", "/export.csv"), (200, "id\r\n"))

    def test_formulas_are_not_run(self):
        store = Store()
        store.add("=1+1")
        self.assertEqual(self.rows(store)[0]["title"], "'=1+1")


if __name__ == "__main__":
    unittest.main()
