import json
import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class RatingsTest(unittest.TestCase):
    def setUp(self):
        self.store = Store()
        self.book = self.store.add("Dune")["id"]

    def rate(self, stars):
        body = json.dumps({"book": self.book, "stars": stars}).encode()
        return respond(self.store, "POST", "/ratings", body)[0]

    def test_the_average_of_all_stars(self):
        for stars in (5, 4, 4):
            self.assertEqual(self.rate(stars), 201)
        self.assertEqual(respond(self.store, "GET", "/ratings"), (200, {"average": 4.3, "count": 3}))

    def test_without_stars_there_is_no_average(self):
        self.assertEqual(respond(self.store, "GET", "/ratings"), (200, {"average": None, "count": 0}))

    def test_one_to_five_stars(self):
        for stars in (0, 6, "5", None):
            self.assertEqual(self.rate(stars), 400)


if __name__ == "__main__":
    unittest.main()
