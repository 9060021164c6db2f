"""Artifacts and objects by hash: round trips, tampering, the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore, artifact_key
from atelier_dagster.factory.change import ObjectRef
from atelier_dagster.factory.errors import CorruptArtifact, InvalidInput, NotFound
from atelier_dagster.factory.lineage import Artifact, sha256_hex
from atelier_dagster.factory.ticket import Analysis

TICKET = "local~demo~shop~1"


def fresh(directory: DirectoryStore) -> ArtifactStore:
    """Another process's view: same files, empty cache."""
    return ArtifactStore(directory)


async def test_an_artifact_comes_back_equal_under_its_hash(
    artifacts: ArtifactStore, directory: DirectoryStore, analysis: Artifact[Any]
) -> None:
    sha256 = await artifacts.put(analysis)
    assert sha256 == analysis.sha256
    assert await directory.get(f"artifacts/{TICKET}/analysis/{sha256}.json") == analysis.canonical()
    again = await fresh(directory).get(TICKET, "analysis", sha256)
    assert again == analysis
    assert isinstance(again.value, Analysis)
    assert again.canonical() == analysis.canonical()


async def test_storing_twice_is_fine(artifacts: ArtifactStore, analysis: Artifact[Any]) -> None:
    assert await artifacts.put(analysis) == await artifacts.put(analysis)


async def test_a_missing_artifact_is_not_found(artifacts: ArtifactStore) -> None:
    with pytest.raises(NotFound):
        await artifacts.get(TICKET, "analysis", "0" * 64)


@pytest.mark.parametrize("sha256", ["", "abc", "A" * 64, "../" * 21 + "x", "0" * 63 + "\n"])
async def test_only_hashes_name_artifacts(artifacts: ArtifactStore, sha256: str) -> None:
    with pytest.raises(InvalidInput):
        await artifacts.get(TICKET, "analysis", sha256)


@pytest.mark.parametrize("ticket", ["", "..", "a/b", "a b"])
async def test_only_plain_segments_name_tickets(ticket: str) -> None:
    with pytest.raises(InvalidInput):
        artifact_key(ticket, "analysis", "0" * 64)


async def test_changed_bytes_are_corrupt_when_read_and_when_stored_again(
    directory: DirectoryStore, root: Path, analysis: Artifact[Any]
) -> None:
    sha256 = await fresh(directory).put(analysis)
    path = root / artifact_key(TICKET, "analysis", sha256)
    path.write_bytes(path.read_bytes().replace(b"redirects", b"deflects!"))
    with pytest.raises(CorruptArtifact):
        await fresh(directory).get(TICKET, "analysis", sha256)
    with pytest.raises(CorruptArtifact):
        await fresh(directory).put(analysis)


@pytest.mark.parametrize(
    ("ticket", "asset"), [("local~demo~shop~2", "analysis"), (TICKET, "plan")], ids=["ticket", "asset"]
)
async def test_an_artifact_filed_elsewhere_is_corrupt(
    directory: DirectoryStore, analysis: Artifact[Any], ticket: str, asset: str
) -> None:
    await directory.put_if_absent(artifact_key(ticket, asset, analysis.sha256), analysis.canonical())
    with pytest.raises(CorruptArtifact):
        await fresh(directory).get(ticket, asset, analysis.sha256)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"asset":"nothing"}', b'{"asset":"analysis"}'])
async def test_what_is_no_artifact_is_corrupt_even_with_the_right_hash(directory: DirectoryStore, data: bytes) -> None:
    await directory.put_if_absent(artifact_key(TICKET, "analysis", sha256_hex(data)), data)
    with pytest.raises(CorruptArtifact):
        await fresh(directory).get(TICKET, "analysis", sha256_hex(data))


async def test_the_cache_answers_without_the_store_and_stays_bounded(
    directory: DirectoryStore, root: Path, analysis: Artifact[Any]
) -> None:
    size = len(analysis.canonical())
    store = ArtifactStore(directory, cache_bytes=2 * size + 10)
    kept = [analysis.model_copy(update={"attempt": number}) for number in (1, 2, 3)]
    hashes = [await store.put(artifact) for artifact in kept]
    for sha256 in hashes:
        (root / artifact_key(TICKET, "analysis", sha256)).unlink()
    assert await store.get(TICKET, "analysis", hashes[1]) == kept[1]
    assert await store.get(TICKET, "analysis", hashes[2]) == kept[2]
    with pytest.raises(NotFound):
        await store.get(TICKET, "analysis", hashes[0])


async def test_objects_are_verified(artifacts: ArtifactStore, root: Path) -> None:
    ref = await artifacts.put_object(b"diff --git", "text/x-diff")
    assert ref == await artifacts.put_object(b"diff --git", "text/x-diff")
    assert ref.key == f"objects/{ref.sha256}"
    assert await artifacts.get_object(ref) == b"diff --git"
    assert await artifacts.get_object(ObjectRef(sha256=ref.sha256, size=ref.size)) == b"diff --git"
    (root / ref.key).write_bytes(b"tampered!!")
    with pytest.raises(CorruptArtifact):
        await artifacts.get_object(ref)
    assert await artifacts.get_object(ref, verify=False) == b"tampered!!"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("shot.png", "-shot.png"),
        ("../../etc/passwd", "-passwd"),
        ("été 1.png", "-_t_1.png"),
        ("a/..", "-.."),
        ("x" * 500 + ".png", "x" * 116 + ".png"),
        ("", "-"),
    ],
)
async def test_evidence_is_filed_by_ticket_cycle_and_hash(artifacts: ArtifactStore, name: str, end: str) -> None:
    ref = await artifacts.put_evidence(TICKET, 2, name, b"png", "image/png")
    assert ref.key.startswith(f"qa/{TICKET}/2/{sha256_hex(b'png')}-")
    assert ref.key.endswith(end)
    assert await artifacts.get_object(ref) == b"png"
