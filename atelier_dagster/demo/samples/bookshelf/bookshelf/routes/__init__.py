"""What each path means: a module here has PATH and functions named after the methods it answers, in lower case."""

import functools
import importlib
import pkgutil


@functools.cache
def modules():
    """All route modules by path."""
    found = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.PATH: module for module in found}


def find(method, path):
    """The function that answers a request, or None."""
    return getattr(modules().get(path), method.lower(), None)
