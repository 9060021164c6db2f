import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class SearchTest(unittest.TestCase):
    def setUp(self):
        self.store = Store()
        for title in ("Dune", "Dune Messiah", "Émile"):
            self.store.add(title)

    def titles(self, target):
        return [book["title"] for book in respond(self.store, "GET", target)[1]]

    def test_part_of_a_title_in_any_case_is_enough(self):
        self.assertEqual(self.titles("/search?title=dUNE"), ["Dune", "Dune Messiah"])

    def test_accents_are_found(self):
        self.assertEqual(self.titles("/search?title=%C3%A9mile"), ["Émile"])

    def test_nothing_found_is_an_empty_list(self):
        self.assertEqual(respond(self.store, "GET", "/search?title=zzz"), (200, []))

    def test_a_search_needs_a_text(self):
        self.assertEqual(respond(self.store, "GET", "/search")[0], 400)


if __name__ == "__main__":
    unittest.main()
