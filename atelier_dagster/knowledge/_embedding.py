"""Texts as vectors without a model. Belongs here: hashed words and character n-grams. Not here: the index."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

DIMENSIONS = 512
KIND = "hashed-words-trigrams-v1"
"""Changes with anything below that changes vectors, so that old and new ones are never compared."""

_WORD = re.compile(r"\w+")
_LONGEST_WORD = 64
_TRIGRAM_WEIGHT = 0.4


def embed_locally(text: str) -> list[float]:
    """A unit vector of the words of a text and of their trigrams, by feature hashing (Weinberger et al., 2009).

    It finds texts that share words or word stems, in any language, and nothing of their meaning. The same text
    gives the same vector in every process and on every machine. A text without words gives the first unit vector.
    """
    vector = [0.0] * DIMENSIONS
    for feature, weight in _weights(text).items():
        digest = hashlib.blake2b(feature.encode(errors="surrogatepass"), digest_size=5).digest()
        sign = 1.0 if digest[4] & 1 else -1.0
        vector[int.from_bytes(digest[:4], "big") % DIMENSIONS] += sign * weight
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length else [1.0] + [0.0] * (DIMENSIONS - 1)


async def embed_all_locally(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    """`embed_locally` in the form of `Gateway.embed`."""
    return [embed_locally(text) for text in texts]


def _weights(text: str) -> dict[str, float]:
    words = Counter(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
    weights: defaultdict[str, float] = defaultdict(float)
    for word, count in words.items():
        # a word that occurs ten times says little more than one that occurs three times
        weight = 1.0 + math.log(count)
        weights[f"w:{word}"] += weight
        for trigram in _trigrams(word[:_LONGEST_WORD]):
            weights[f"t:{trigram}"] += weight * _TRIGRAM_WEIGHT
    return dict(weights)


def _trigrams(word: str) -> Iterator[str]:
    marked = f"<{word}>"
    yield from (marked[start : start + 3] for start in range(len(marked) - 2))
