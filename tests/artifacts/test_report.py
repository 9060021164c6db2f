"""The exported page: complete, self-contained, and deaf to what agents and tickets write."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from atelier_dagster.artifacts import ArtifactStore, DirectoryStore, Ledger
from atelier_dagster.artifacts.audit import Audit, show, verify
from atelier_dagster.artifacts.report import export, file_name, render
from atelier_dagster.factory.change import Evidence, ObjectRef, QaReport
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.lineage import Artifact, sha256_hex
from atelier_dagster.factory.verdict import QaDecision, QaVerdict

TICKET = "local~demo~shop~1"
HOSTILE = """</pre><script>alert(1)</script>"><img src=x onerror=alert(2)>{{ 7*7 }}{% raw %}"""


async def fill(directory: DirectoryStore, media_type: str = "image/png") -> ObjectRef:
    store = ArtifactStore(directory)
    ref = await store.put_evidence(TICKET, 1, "shot.png", b"\x89PNG picture", media_type)
    verdict = QaVerdict(verdict=QaDecision.PASS, comments=(HOSTILE,), evidence_files=(HOSTILE,))
    report = QaReport(commit="c" * 40, verdict=verdict, evidence=(Evidence(path=HOSTILE, object=ref),))
    artifact = Artifact[QaReport](asset="qa_report", ticket=TICKET, cycle=1, value=report)
    sha256 = await store.put(artifact)
    now = datetime(2026, 11, 1, tzinfo=UTC)
    metadata = {HOSTILE: HOSTILE, "cost_usd": 0.5}
    await Ledger(directory).append(
        TICKET, asset="qa_report", sha256=sha256, cycle=1, run_id=HOSTILE, time=now, metadata=metadata
    )
    return ref


async def test_a_page_and_its_objects_are_written(directory: DirectoryStore, tmp_path: Path) -> None:
    ref = await fill(directory)
    page = await export(directory, TICKET, tmp_path / "out")
    html = page.read_text()
    assert page.name == f"{TICKET}.html"
    assert (tmp_path / "out" / "objects" / f"{ref.sha256}.png").read_bytes() == b"\x89PNG picture"
    assert f'href="objects/{ref.sha256}.png"' in html
    assert "data:image/png;base64," in html
    assert "Every hash fits: 1 entries, 1 artifacts, 1 objects." in html
    assert "cost_usd: 0.5" in html
    assert await export(directory, TICKET, tmp_path / "out") == page


async def test_nothing_written_by_others_becomes_markup(directory: DirectoryStore, tmp_path: Path) -> None:
    await fill(directory)
    html = (await export(directory, TICKET, tmp_path)).read_text()
    assert "<script" not in html
    assert "<img src=x" not in html
    assert html.count("</pre>") == 1
    assert "{{ 7*7 }}" in html
    assert "default-src 'none'" in html


async def test_the_page_loads_nothing(directory: DirectoryStore, tmp_path: Path) -> None:
    await fill(directory)
    html = (await export(directory, TICKET, tmp_path)).read_text()
    assert not re.findall(r"""(?:src|href)="(?!#|data:image/png;base64,|objects/[0-9a-f]{64}\.)""", html)


async def test_damage_is_shown_and_not_exported(directory: DirectoryStore, root: Path, tmp_path: Path) -> None:
    ref = await fill(directory)
    (root / ref.key).write_bytes(b"other")
    html = (await export(directory, TICKET, tmp_path / "out")).read_text()
    assert "1 things are not as they were recorded" in html
    assert ref.key in html
    assert list((tmp_path / "out" / "objects").iterdir()) == []
    audit = await verify(directory, TICKET)
    assert [line.artifact is not None for line in show(audit)] == [True]


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/x-sh", "../../x", ""])
async def test_objects_never_get_a_name_that_runs(directory: DirectoryStore, tmp_path: Path, kind: str) -> None:
    ref = await fill(directory, kind)
    html = (await export(directory, TICKET, tmp_path / "out")).read_text()
    assert [file.name for file in (tmp_path / "out" / "objects").iterdir()] == [f"{ref.sha256}.bin"]
    assert "data:" not in html.replace("img-src data:", "")
    with pytest.raises(InvalidInput):
        file_name(ObjectRef(sha256="../x", size=1))


@pytest.mark.parametrize("ticket", ["../x", "a/../../b", ""])
async def test_a_ticket_names_no_other_folder(directory: DirectoryStore, tmp_path: Path, ticket: str) -> None:
    with pytest.raises(InvalidInput):
        await export(directory, ticket, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_audit_has_a_page() -> None:
    assert "Every hash fits: 0 entries" in render(Audit(TICKET))
    assert sha256_hex(b"") not in render(Audit(TICKET))
