"""The knowledge index on a real LanceDB directory: isolation, replacement, bounds, changes of embedding."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.knowledge import LanceKnowledge
from atelier_dagster.knowledge import _lance as module

SHOP = RepoRef.parse("local/demo/shop")
OTHER_REPO = RepoRef.parse("local/demo/blog")
OTHER_TENANT = RepoRef.parse("local/rival/shop")


def key(repo: RepoRef = SHOP, number: int = 1) -> TicketKey:
    return TicketKey(repo=repo, number=number)


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "knowledge"


@pytest.fixture
def index(folder: Path) -> LanceKnowledge:
    return LanceKnowledge(folder)


async def test_the_nearest_comes_first(index: LanceKnowledge, folder: Path) -> None:
    await index.add(key(number=1), 1, "Login fails", "The session token expired too early; the clock was wrong.")
    await index.add(key(number=2), 1, "Dark mode", "A colour scheme was added to the style sheet.")
    await index.add(key(number=3), 1, "Invoice rounding", "Totals are rounded once, at the end.")
    found = await LanceKnowledge(folder).similar(SHOP, "users are logged out: session tokens expire", limit=2)
    assert [resolution.ticket for resolution in found] == [str(key(number=1)), found[1].ticket]
    assert len(found) == 2
    assert 1.0 >= found[0].score > found[1].score
    assert found[0].summary.startswith("The session token")


async def test_other_tenants_are_never_seen_and_other_repositories_only_if_wanted(folder: Path) -> None:
    index = LanceKnowledge(folder)
    for number, repo in enumerate((SHOP, OTHER_REPO, OTHER_TENANT), 1):
        await index.add(key(repo, number), 1, "same title", "the very same summary")
    found = await index.similar(SHOP, "the very same summary", limit=10)
    assert sorted(resolution.ticket for resolution in found) == ["local/demo/blog#2", "local/demo/shop#1"]
    narrow = LanceKnowledge(folder, same_repository_only=True)
    assert [r.ticket for r in await narrow.similar(SHOP, "the very same summary", limit=10)] == ["local/demo/shop#1"]
    assert list(await index.similar(RepoRef.parse("local/nobody/shop"), "the very same summary")) == []


@pytest.mark.parametrize("hostile", ["x' OR '1'='1", "x\\' OR 1=1 --", 'x" OR 1=1', "demo' --", "%", "x\0y"])
async def test_no_text_changes_the_filter(index: LanceKnowledge, hostile: str) -> None:
    await index.add(key(), 1, hostile, hostile)
    crafted = RepoRef.model_construct(tracker="local", owner=hostile, name="shop")
    assert list(await index.similar(crafted, hostile)) == []
    await index.delete(TicketKey.model_construct(repo=crafted, number=1))
    (found,) = await index.similar(SHOP, hostile)
    assert found.title == hostile


async def test_the_same_ticket_and_cycle_replaces_and_another_cycle_adds(index: LanceKnowledge) -> None:
    for summary in ("first", "second"):
        await index.add(key(), 1, "title", summary)
    await index.add(key(), 2, "title", "third")
    found = await index.similar(SHOP, "title", limit=10)
    assert sorted(resolution.summary for resolution in found) == ["second", "third"]


async def test_writers_at_the_same_time_lose_nothing(folder: Path) -> None:
    writers = [LanceKnowledge(folder) for _ in range(4)]
    await asyncio.gather(*(writers[n % 4].add(key(number=n + 1), 1, f"title {n}", "text") for n in range(8)))
    await asyncio.gather(*(writer.add(key(number=1), 1, "title", "text") for writer in writers))
    found = await writers[0].similar(SHOP, "title text", limit=20)
    assert sorted(resolution.ticket for resolution in found) == sorted(str(key(number=n + 1)) for n in range(8))


async def test_forgetting_is_for_all_cycles_and_may_be_repeated(index: LanceKnowledge) -> None:
    await index.delete(key())
    await index.add(key(), 1, "a", "a")
    await index.add(key(), 2, "a", "a")
    await index.add(key(number=10), 1, "a", "a")
    for _ in range(2):
        await index.delete(key())
    assert [resolution.ticket for resolution in await index.similar(SHOP, "a", limit=10)] == [str(key(number=10))]


async def test_texts_and_results_are_bounded(index: LanceKnowledge) -> None:
    await index.add(key(), 1, "t" * 5000, "s " * 50_000)
    for number in range(2, 26):
        await index.add(key(number=number), 1, "t", "s")
    found = await index.similar(SHOP, "s " * 100_000, limit=10_000)
    assert len(found) == 20
    assert max(len(resolution.title) for resolution in found) <= 300
    assert max(len(resolution.summary) for resolution in found) <= 8000
    assert len(await index.similar(SHOP, "s", limit=-5)) == 1


async def test_another_embedding_has_a_table_of_its_own(folder: Path) -> None:
    def model(size: int) -> module.Embed:
        async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
            return [[float(len(text))] + [1.0] * (size - 1) for text in texts]

        return embed

    await LanceKnowledge(folder).add(key(number=1), 1, "local", "text")
    first, second = LanceKnowledge(folder, model(3), "model-a"), LanceKnowledge(folder, model(3), "model-b")
    resized = LanceKnowledge(folder, model(5), "model-a")
    for number, index in enumerate((first, second, resized), 2):
        assert list(await index.similar(SHOP, "text")) == []
        await index.add(key(number=number), 1, "model", "text")
    for number, index in enumerate((LanceKnowledge(folder), first, second, resized), 1):
        assert [resolution.ticket for resolution in await index.similar(SHOP, "text")] == [str(key(number=number))]
    await first.delete(key(number=4))
    assert list(await resized.similar(SHOP, "text")) == []


async def test_nothing_is_asked_or_loaded_before_something_was_indexed(folder: Path) -> None:
    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        raise AssertionError(texts)

    assert list(await LanceKnowledge(folder, embed, "paid").similar(SHOP, "text")) == []
    assert list(await LanceKnowledge(folder).similar(SHOP, "   ")) == []
    assert not folder.exists()
    code = (
        "import asyncio, sys; from atelier_dagster.knowledge import LanceKnowledge;"
        "from atelier_dagster.factory.ticket import RepoRef;"
        f"asyncio.run(LanceKnowledge({str(folder)!r}).similar(RepoRef.parse('local/a/b'), 'x'));"
        "print([m for m in ('lancedb', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    assert await asyncio.to_thread(output_of, code) == "[]"


async def test_old_versions_are_tidied_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIDY_EVERY", 4)
    monkeypatch.setattr(module, "_KEEP_VERSIONS", module.timedelta(milliseconds=1))
    index = LanceKnowledge(folder)
    for number in range(1, 15):
        await index.add(key(number=number), 1, "t", "s")
    assert len(list(folder.glob("*.lance/data/*"))) < 10
    assert len(await index.similar(SHOP, "t", limit=20)) == 14


async def test_a_damaged_index_is_unavailable(index: LanceKnowledge, folder: Path) -> None:
    await index.add(key(), 1, "t", "s")
    for manifest in folder.rglob("*.manifest"):
        manifest.write_bytes(b"no manifest")
    with pytest.raises(Unavailable) as caught:
        await index.similar(SHOP, "t")
    assert caught.value.fix


async def test_preflight_changes_nothing(index: LanceKnowledge, folder: Path, tmp_path: Path) -> None:
    (check,) = await index.preflight()
    assert (check.ok, check.required) == (True, False)
    assert not folder.exists()
    (tmp_path / "file").write_bytes(b"")
    (check,) = await LanceKnowledge(tmp_path / "file").preflight()
    assert not check.ok
    assert check.fix
