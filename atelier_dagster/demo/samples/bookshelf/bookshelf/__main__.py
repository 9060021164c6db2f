"""Command line: serve the shelf on a port."""

import argparse

from bookshelf.server import serve
from bookshelf.store import Store


def main():
    parser = argparse.ArgumentParser(prog="bookshelf")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    serve(Store(), options.host, options.port)


if __name__ == "__main__":
    main()
