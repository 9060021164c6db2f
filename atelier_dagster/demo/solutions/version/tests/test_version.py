import unittest

from bookshelf.server import respond
from bookshelf.store import Store


class VersionTest(unittest.TestCase):
    def test_the_version_has_three_parts(self):
        status, answer = respond(Store(), "GET", "/version")
        self.assertEqual(status, 200)
        self.assertRegex(answer["version"], r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
