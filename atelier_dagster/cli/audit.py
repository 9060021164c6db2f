"""`atelier audit`: a ticket's chain of evidence, shown, verified or exported. Hashing and the page are `artifacts`'."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rich.markup import escape

from atelier_dagster.artifacts.audit import Audit
from atelier_dagster.artifacts.audit import verify as verify_store
from atelier_dagster.artifacts.report import export as export_page
from atelier_dagster.cli import output, workbench
from atelier_dagster.factory.errors import NotFound
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.settings import Settings, load_settings


def show(ticket: str, *, as_json: bool) -> None:
    """`atelier audit show`."""
    key, audit = _read(ticket)
    if as_json:
        output.print_json(as_document(key, audit))
        return
    rows = [
        (
            str(entry.seq),
            f"{entry.time:%Y-%m-%d %H:%M:%S}",
            escape(entry.asset),
            str(entry.cycle),
            entry.sha256[:12],
            escape(_inputs(audit, entry.sha256)),
            entry.run_id[:8],
        )
        for entry in audit.entries
    ]
    console = output.stdout()
    console.print(output.table(("", "time (UTC)", "asset", "cycle", "sha256", "made from", "run"), rows))
    _print_faults(audit)


def verify(ticket: str, *, as_json: bool) -> int:
    """`atelier audit verify`; its exit code."""
    key, audit = _read(ticket)
    if as_json:
        output.print_json(as_document(key, audit))
    else:
        checked = f"{len(audit.entries)} ledger entries, {len(audit.artifacts)} artifacts, {len(audit.objects)} objects"
        word = "[green]intact[/]" if audit.intact else "[red]BROKEN[/]"
        output.stdout().print(f"{escape(str(key))}: {word}; {checked}")
        _print_faults(audit)
    return 0 if audit.intact else 1


def export(ticket: str, to: Path | None) -> None:
    """`atelier audit export`."""
    settings = load_settings()
    key, _ = _read(ticket, settings)
    folder = to or Path(f"audit-{key.partition}")
    page = asyncio.run(export_page(workbench.objects(settings), key.partition, folder))
    output.stdout().print(str(page), markup=False, soft_wrap=True)


def _read(ticket: str, settings: Settings | None = None) -> tuple[TicketKey, Audit]:
    key = workbench.parse_ticket(ticket)
    audit = asyncio.run(verify_store(workbench.objects(settings or load_settings()), key.partition))
    if not audit.entries and not audit.unrecorded and not audit.broken:
        raise NotFound(f"nothing is recorded of {key}", fix="see the tickets there are: atelier status")
    return key, audit


def _inputs(audit: Audit, sha256: str) -> str:
    artifact = audit.artifacts.get(sha256)
    if artifact is None:
        return "?"
    return ", ".join(f"{asset} {digest[:8]}" for asset, digest in artifact.inputs.items())


def _print_faults(audit: Audit) -> None:
    for fault in audit.broken:
        output.stderr().print(f"[red]{fault.kind}[/] {escape(fault.key)}: {escape(fault.reason)}", soft_wrap=True)
    for key in audit.unrecorded:
        output.say(f"no ledger entry names {key}: a run ended between two writes, or entries were removed")


def as_document(key: TicketKey, audit: Audit) -> dict[str, Any]:
    """For `--json`."""
    return {
        "ticket": str(key),
        "intact": audit.intact,
        "entries": [entry.model_dump(mode="json") for entry in audit.entries],
        "artifacts": {sha256: artifact.model_dump(mode="json") for sha256, artifact in audit.artifacts.items()},
        "objects": [ref.model_dump(mode="json") for ref in audit.objects],
        "broken": [dict(vars(fault)) for fault in audit.broken],
        "unrecorded": list(audit.unrecorded),
    }
