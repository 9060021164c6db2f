"""How a command ends: exit codes, and errors as one line. No traceback reaches a user who did not ask for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from atelier_dagster.factory.errors import AtelierError

DEBUG = "ATELIER_DEBUG"


@contextmanager
def one_line_errors() -> Generator[None]:
    """Turn errors into a line on stderr and exit code 1. With ATELIER_DEBUG set they pass, with their traceback."""
    try:
        yield
    except AtelierError as error:
        _end(error, in_one_line(error))
    except BaseExceptionGroup as group:
        known = _first_known(group)
        if known is None:
            raise
        _end(group, in_one_line(known))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _end(error, f"[SYSTEM] {where}{error.strerror or error}")


def end_unexpectedly(error: Exception) -> None:
    """The end of a program that met an error which nobody foresaw: said in a line, and asked to be reported."""
    reason = " ".join(str(error).split())[:500]
    line = f"[INTERNAL] {type(error).__name__}: {reason} Fix: run it again with {DEBUG}=1 and report what it prints"
    _end(error, line)


def in_one_line(error: AtelierError) -> str:
    """Code, message and fix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)


def _end(error: BaseException, line: str) -> None:
    if os.environ.get(DEBUG):
        raise error
    details = getattr(error, "details", "")  # of some errors: the end of a log, which is no part of the line
    print(*filter(None, [details, line]), sep="\n", file=sys.stderr)  # noqa: T201
    raise SystemExit(1)


def _first_known(group: BaseExceptionGroup[BaseException]) -> AtelierError | None:
    known, _ = group.split(AtelierError)
    errors: list[BaseException] = [known] if known else []
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            errors += cast("BaseExceptionGroup[BaseException]", error).exceptions
        elif isinstance(error, AtelierError):
            return error
    return None
