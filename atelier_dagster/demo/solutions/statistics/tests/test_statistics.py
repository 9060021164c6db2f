import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class StatisticsTest(unittest.TestCase):
    def test_books_are_counted_by_letter(self):
        store = Store()
        for title in ("dune", "Emma", "Dracula"):
            store.add(title)
        expected = {"books": 3, "letters": {"D": 2, "E": 1}}
        self.assertEqual(respond(store, "GET", "/statistics"), (200, expected))


if __name__ == "__main__":
    unittest.main()
