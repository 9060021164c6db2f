"""Evidence: only regular files inside the directory, bounded, each on its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier_dagster.delivery import collect_evidence, evidence
from atelier_dagster.factory.errors import Unavailable
from tests.support.delivery import Setting

PNG = b"\x89PNG\r\n\x1a\n" + bytes(10)


@pytest.fixture
async def directory(setting: Setting) -> Path:
    await setting.workshops.create(setting.spec(setting.record("pm-qa")))
    path = setting.workshops.checkout("pm-qa") / ".qa-evidence"
    path.mkdir()
    return path


async def collect(setting: Setting) -> tuple[dict[str, tuple[str, str]], list[str]]:
    kept, problems = await collect_evidence(setting.workshops, setting.store, "pm-qa", "local~demo~shop~1", 2)
    return {item.path: (item.object.media_type, item.object.key) for item in kept}, problems


async def test_files_are_kept_under_their_hash_with_what_they_are(setting: Setting, directory: Path) -> None:
    (directory / "sub dir").mkdir()
    (directory / "sub dir" / "sh\u00f6t\n.png").write_bytes(PNG)
    (directory / "a.html").write_text("<script>alert(1)</script>")
    (directory / "b.png").write_text('{"a": 1}')
    kept, problems = await collect(setting)
    assert problems == []
    assert {path: kind for path, (kind, _) in kept.items()} == {
        ".qa-evidence/a.html": "text/plain",
        ".qa-evidence/b.png": "application/json",
        ".qa-evidence/sub dir/shöt\n.png": "image/png",
    }
    for _, key in kept.values():
        assert key.startswith("qa/local~demo~shop~1/2/")


async def test_links_and_devices_are_left_alone(setting: Setting, directory: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (directory / "link").symlink_to(secret)
    (directory / "out").symlink_to(tmp_path)
    (directory / "up").symlink_to("../../../../../../etc/passwd")
    os.mkfifo(directory / "pipe")
    (directory / "good").write_text("x")
    kept, _ = await collect(setting)
    assert list(kept) == [".qa-evidence/good"]


async def test_a_link_as_the_directory_itself_leads_nowhere(setting: Setting, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("secret")
    directory.rmdir()
    directory.symlink_to(tmp_path / "elsewhere")
    assert await collect(setting) == ({}, ["no file was left in .qa-evidence"])


async def test_one_that_cannot_be_had_costs_only_itself(
    setting: Setting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(evidence, "MAX_TOTAL_BYTES", 150)
    (directory / "1 large").write_bytes(b"x" * 101)
    (directory / "2 fits").write_bytes(b"y" * 100)
    (directory / "3 too much together").write_bytes(b"z" * 51)
    (directory / "4 fits").write_bytes(b"z" * 50)
    kept, problems = await collect(setting)
    assert list(kept) == [".qa-evidence/2 fits", ".qa-evidence/4 fits"]
    assert [problem.split(":")[0] for problem in problems] == [
        ".qa-evidence/1 large",
        ".qa-evidence/3 too much together",
    ]


async def test_too_many_are_cut_and_said_to_be(setting: Setting, directory: Path) -> None:
    for number in range(evidence.MAX_FILES + 3):
        (directory / f"{number:03d}").write_text("x")
    kept, problems = await collect(setting)
    assert (len(kept), problems) == (evidence.MAX_FILES, ["3 files beyond the first 50 were left out"])


async def test_nothing_and_nobody_there_are_problems_not_errors(setting: Setting) -> None:
    await setting.workshops.create(setting.spec(setting.record("pm-qa")))
    assert await collect(setting) == ({}, ["no file was left in .qa-evidence"])

    def lose(request: object) -> None:
        raise Unavailable("lost")

    setting.workshops.before = lose
    assert await collect(setting) == ({}, ["the evidence could not be listed: lost"])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        (b"", "text/plain"),
        (b"<svg onload=x>", "text/plain"),
        (b"[1]", "application/json"),
        (b"[" * 100_000, "text/plain"),
        (b"\0\1", "application/octet-stream"),
        (b"\xff\xfe", "application/octet-stream"),
    ],
)
def test_the_type_is_read_from_the_bytes(data: bytes, kind: str) -> None:
    assert evidence.media_type(data) == kind
