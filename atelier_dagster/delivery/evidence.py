"""Takes the files that QA left out of its workshop, each on its own. Not here: what they prove."""

from __future__ import annotations

import json
import secrets
from pathlib import PurePosixPath

from atelier_dagster.artifacts import ArtifactStore
from atelier_dagster.factory.change import Evidence
from atelier_dagster.factory.errors import AtelierError
from atelier_dagster.ports import ExecRequest, Workshops

DIRECTORY = ".qa-evidence"
MAX_FILES = 50
MAX_FILE_BYTES = 10_000_000
MAX_TOTAL_BYTES = 50_000_000

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)


async def collect_evidence(
    workshops: Workshops, store: ArtifactStore, name: str, ticket: str, cycle: int
) -> tuple[list[Evidence], list[str]]:
    """Keep every regular file below `.qa-evidence/`; the kept ones, and why others were not. Never raises for one."""
    try:
        paths, problems = await _list(workshops, name)
    except AtelierError as error:
        return [], [f"the evidence could not be listed: {error.message}"]
    kept: list[Evidence] = []
    total = 0
    for path in paths:
        try:
            data = await workshops.get_file(name, path, min(MAX_FILE_BYTES, MAX_TOTAL_BYTES - total))
            ref = await store.put_evidence(ticket, cycle, path, data, media_type(data))
        except AtelierError as error:
            problems.append(f"{path}: {error.message}")
            continue
        total += len(data)
        kept.append(Evidence(path=path, object=ref))
    return kept, problems


async def _list(workshops: Workshops, name: str) -> tuple[list[str], list[str]]:
    # `find` follows no link here, not even when the directory itself is one.
    argv = ("find", DIRECTORY, "-type", "f", "-print0")
    request = ExecRequest(id=f"evidence-{secrets.token_hex(8)}", argv=argv, timeout=60, output_limit=1_000_000)
    result = await workshops.exec(name, request)
    found = [item.decode("utf-8", "backslashreplace") for item in result.stdout.split(b"\0") if item]
    good = sorted(path for path in found if _is_inside(path))
    problems = [f"{path[:200]!r} is no path inside {DIRECTORY}" for path in found if path not in good][:MAX_FILES]
    if len(good) > MAX_FILES:
        problems.append(f"{len(good) - MAX_FILES} files beyond the first {MAX_FILES} were left out")
    if not found:
        problems.append(f"no file was left in {DIRECTORY}")
    return good[:MAX_FILES], problems


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return len(parts) > 1 and parts[0] == DIRECTORY and ".." not in parts and len(path) <= 1000


def media_type(data: bytes) -> str:
    """What the bytes are, by themselves: names can lie. Markup counts as text, so that no browser runs it."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    if "\0" in text:
        return "application/octet-stream"
    return "application/json" if _is_json(text) else "text/plain"


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
