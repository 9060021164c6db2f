"""Who may change the shelf. With BOOKSHELF_KEY set, everything but reading needs it as a bearer token."""

import hmac
import os

READING = ("GET", "HEAD")


def allowed(method, headers):
    """Whether a request may go on."""
    key = os.environ.get("BOOKSHELF_KEY", "")
    if not key or method in READING:
        return True
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())
