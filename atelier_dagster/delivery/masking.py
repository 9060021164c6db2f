"""Takes secrets out of output before it is kept. Not here: which secrets there are."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import quote

from pydantic import SecretStr

_SHORTEST = 4
"""Characters; masking shorter ones would only tear ordinary text apart."""
MASK = b"***"


def mask(data: bytes, secrets: Iterable[SecretStr]) -> bytes:
    """`data` with each secret replaced, also where it is URL-quoted or in base64."""
    values = {form for secret in secrets for form in _forms(secret.get_secret_value())}
    for value in sorted(values, key=len, reverse=True):
        data = data.replace(value, MASK)
    return data


def _forms(value: str) -> set[bytes]:
    if len(value) < _SHORTEST:
        return set()
    plain = value.encode()
    return {plain, quote(value, safe="").encode(), base64.b64encode(plain).rstrip(b"=")}
