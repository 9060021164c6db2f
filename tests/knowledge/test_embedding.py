"""The local embedding: deterministic, of unit length, and closer for texts that share words."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.knowledge._embedding import DIMENSIONS, embed_locally


def likeness(one: str, other: str) -> float:
    return math.fsum(a * b for a, b in zip(embed_locally(one), embed_locally(other), strict=True))


@given(st.text())
def test_every_text_has_a_unit_vector(text: str) -> None:
    vector = embed_locally(text)
    assert len(vector) == DIMENSIONS
    assert math.isclose(math.fsum(x * x for x in vector), 1.0, rel_tol=1e-9)


@pytest.mark.parametrize("text", ["", "  ", "!?", "\ud800"])
def test_texts_without_words_have_one_too(text: str) -> None:
    assert math.isclose(math.fsum(x * x for x in embed_locally(text)), 1.0)


def test_it_is_the_same_in_every_process() -> None:
    code = "from atelier_dagster.knowledge._embedding import embed_locally; print(repr(embed_locally('Straße 42')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == repr(embed_locally("Straße 42"))


def test_shared_words_and_stems_make_texts_alike() -> None:
    about = "the login session expires"
    assert likeness(about, "sessions expiring at login") > likeness(about, "invoices are rounded twice") + 0.1
    assert likeness("CAFÉ", "café") == pytest.approx(1.0)
    assert likeness("ﬁle", "file") == pytest.approx(1.0)
