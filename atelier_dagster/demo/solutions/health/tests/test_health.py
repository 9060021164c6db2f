import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class HealthTest(unittest.TestCase):
    def test_it_says_that_it_is_alive(self):
        self.assertEqual(respond(Store(), "GET", "/health"), (200, {"status": "ok", "books": 0}))


if __name__ == "__main__":
    unittest.main()
