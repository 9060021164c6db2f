import http.client
import threading
import unittest
from urllib.parse import urlencode

from app import LENGTH, Links, make_server

LONG = "https://example.org/a/b?c=d&e=<f>"


class LinksTest(unittest.TestCase):
    def setUp(self):
        self.links = Links()
        self.addCleanup(self.links.close)

    def test_an_address_has_one_short_code(self):
        code = self.links.shorten(LONG)
        self.assertEqual(len(code), LENGTH)
        self.assertEqual(self.links.shorten(LONG), code)
        self.assertEqual(self.links.follow(code), LONG)

    def test_unknown_codes_lead_nowhere(self):
        self.assertIsNone(self.links.follow("none"))

    def test_only_web_addresses_are_shortened(self):
        for bad in ("", "example.org", "javascript:alert(1)", "ftp://example.org", "https://", "https://x/" + "a" * 3000):
            with self.assertRaises(ValueError):
                self.links.shorten(bad)

    def test_visits_are_counted(self):
        code = self.links.shorten(LONG)
        self.links.follow(code)
        self.assertEqual(self.links.all(), [(code, LONG, 1)])


class PageTest(unittest.TestCase):
    def setUp(self):
        self.links = Links()
        self.addCleanup(self.links.close)
        self.server = make_server(self.links, port=0)
        self.addCleanup(self.server.server_close)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(self.server.shutdown)

    def ask(self, method, path, **form):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        self.addCleanup(connection.close)
        connection.request(method, path, body=urlencode(form) if form else None)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location"), answer.read().decode()

    def test_the_page_has_a_form(self):
        status, _, body = self.ask("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("<form", body)

    def test_from_the_form_to_the_long_address(self):
        status, _, body = self.ask("POST", "/", url=LONG)
        self.assertEqual(status, 201)
        self.assertNotIn("<f>", body)
        code = self.links.all()[0][0]
        self.assertEqual(self.ask("GET", f"/{code}")[:2], (302, LONG))

    def test_problems_are_shown(self):
        self.assertEqual(self.ask("POST", "/", url="javascript:alert(1)")[0], 400)
        self.assertEqual(self.ask("GET", "/missing")[0], 404)


if __name__ == "__main__":
    unittest.main()
