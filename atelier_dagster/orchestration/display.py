"""What a person sees first on each materialization in Dagster's UI. Shown, never hashed; nothing is decided here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dagster as dg

from atelier_dagster.factory.approval import Approval
from atelier_dagster.factory.change import (
    Campaign,
    Changes,
    DiffStat,
    Integration,
    Knowledge,
    Merge,
    Outcome,
    PullRequest,
    QaReport,
    ReviewGate,
    TestedDiff,
    TestReport,
)
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.factory.plan import ApprovedPlan, ArchitectureReview, GreenfieldSpec, Plan, PlanDocument
from atelier_dagster.factory.ticket import Analysis, Ticket
from atelier_dagster.factory.verdict import Review, ReviewVerdict

_LONG = 4_000
_CELL = 300
_MANY = 200
"""Lines of a list or a table that are shown."""

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|#!~&]")
_STARTS = re.compile(r"^(\s*\d*)([-+=.)])", re.MULTILINE)
"""What makes a list, a rule or a heading of a line that begins with it."""

Shown = dict[str, Any]


def show(artifact: Artifact[Any]) -> Shown:
    """Metadata of a materialization: the answer first, then where it stands in the journey."""
    shown = _SHOW[artifact.asset](artifact.value) if artifact.asset in _SHOW else {}
    return {
        **{name: short(value) if isinstance(value, str) else value for name, value in shown.items()},
        "attempt": f"cycle {artifact.cycle}, round {artifact.round}, attempt {artifact.attempt}",
        "sha256": artifact.sha256,
    }


def escaped(text: str, limit: int = _LONG) -> str:
    """Untrusted text as Markdown that shows it and does nothing else."""
    cut = short(text, limit)
    return _STARTS.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", cut))


def short(text: str, limit: int = 1000) -> str:
    """Text cut to `limit` characters."""
    return text if len(text) <= limit else text[:limit] + " [...]"


def code_block(text: str, language: str = "", limit: int = _LONG, *, tail: bool = False) -> str:
    """A fenced block that its content cannot end, cut to `limit` characters."""
    if len(text) > limit:
        text = "[...]\n" + text[-limit:] if tail else text[:limit] + "\n[...]"
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def bullets(items: Iterable[str], none: str = "none") -> str:
    """A Markdown list of untrusted lines."""
    lines = [f"- {escaped(' '.join(item.split()), 1000)}" for item in items]
    rest = [f"- and {len(lines) - _MANY} more"] if len(lines) > _MANY else []
    return "\n".join(lines[:_MANY] + rest) or none


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table of untrusted cells."""
    lines = ["| " + " | ".join(escaped(" ".join(c.split()), _CELL) for c in row) + " |" for row in rows]
    rest = [f"\nand {len(lines) - _MANY} more"] if len(lines) > _MANY else []
    head = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(head + lines[:_MANY] + rest)


def _md(text: str) -> Any:
    return dg.MetadataValue.md(text)


def _ticket(value: Ticket) -> Shown:
    shown: Shown = {
        "title": value.title,
        "text": _md(code_block(value.body, limit=2000)),
        "author": value.author,
        "base": f"{value.base_branch} at {value.base_commit[:12] or 'nothing yet (empty repository)'}",
    }
    return shown | _link(value.url)


def _link(url: str) -> Shown:
    return {"link": dg.MetadataValue.url(url)} if url.startswith(("http://", "https://")) and len(url) < _LONG else {}


def _analysis(value: Analysis) -> Shown:
    shown: Shown = {"job story": _md(escaped(value.job_story)), "acceptance criteria": _md(bullets(value.criteria))}
    if value.similar:
        rows = [(s.ticket, s.title, f"{s.score:.2f}") for s in value.similar]
        shown["similar tickets"] = _md(table(("ticket", "title", "score"), rows))
    return shown | _concerns(value.concerns)


def _concerns(concerns: tuple[str, ...]) -> Shown:
    return {"concerns": _md(bullets(concerns))} if concerns else {}


def _plan_table(value: Plan) -> Any:
    rows = [(t.id, t.title, ", ".join(t.scope), ", ".join(t.depends_on) or "-", t.role) for t in value.tasks]
    return _md(table(("task", "title", "scope", "after", "role"), rows))


def _plan(value: Plan) -> Shown:
    shown: Shown = {"plan": _plan_table(value), "tasks": len(value.tasks)}
    if value.findings:
        shown["findings"] = _md(bullets(f.message for f in value.findings))
    if value.reduced:
        shown["reduced to one task"] = value.reduced
    if value.answered:
        shown["answers"] = _md(bullets(value.answered))
    return shown


def _greenfield(value: GreenfieldSpec) -> Shown:
    if not value.applies:
        return {"applies": False}
    if value.problem:
        return {"applies": True, "problem": value.problem}
    return {
        "applies": True,
        "technology": value.technology,
        "entry point": value.entry_point,
        "manifest": value.manifest,
        "tree": _md(code_block("\n".join(value.tree))),
    }


def _verdict(value: ReviewVerdict) -> Shown:
    shown: Shown = {"verdict": value.verdict.value, "comments": _md(bullets(value.comments))}
    if value.concern:
        shown["concern"] = value.concern
    return shown


def _architecture(value: ArchitectureReview) -> Shown:
    return _verdict(value.verdict)


def _document(value: PlanDocument) -> Shown:
    return {"applies": value.applies}


def _approved_plan(value: ApprovedPlan) -> Shown:
    shown: Shown = {"plan": _plan_table(value.plan), "overridden": value.overridden}
    if value.approved_by:
        shown["approved by"] = value.approved_by
    return shown | _concerns(value.concerns)


def _campaign(value: Campaign) -> Shown:
    rows = [(w.name, w.task_id, w.branch, ", ".join(w.scope)) for w in value.workshops]
    shown: Shown = {"workshops": _md(table(("workshop", "task", "branch", "scope"), rows)), "rework": value.rework}
    if value.feedback:
        shown["feedback to answer"] = _md(code_block("\n\n".join(value.feedback)))
    return shown


def _changes(value: Changes) -> Shown:
    rows = [
        (t.task_id, str(len(t.commits)), t.head[:12], t.problem or "-", ", ".join(t.out_of_scope) or "-")
        for t in value.tasks
    ]
    shown: Shown = {"changes": _md(table(("task", "commits", "head", "problem", "out of scope"), rows))}
    answers = [f"{t.task_id}: {t.answer}" for t in value.tasks if t.answer]
    if answers:
        shown["agents said"] = _md(bullets(answers))
    return shown


def _integration(value: Integration) -> Shown:
    return {
        "branch": value.branch,
        "head": value.head,
        "base": value.base or "empty repository",
        "merged": _md(bullets(value.merged)),
        "conflicts": _md(bullets(value.conflicts)),
    }


def _diff(value: DiffStat) -> Shown:
    return {
        "size": f"{value.files} files, +{value.insertions} -{value.deletions} lines, {value.text.size} bytes",
        "changed paths": _md(code_block("\n".join(value.paths), limit=2000)),
        "range": f"{value.base[:12] or '(empty)'}...{value.head[:12]}",
    }


def _test_report(value: TestReport) -> Shown:
    result = "stopped by its time limit" if value.timed_out else f"exit code {value.exit_code}"
    return {
        "tests": value.status.value,
        "result": "no .devcontainer/test.sh" if value.status.value == "missing" else result,
        "output": _md(code_block(value.output_tail, tail=True)),
    }


def _gate(value: TestedDiff | ReviewGate) -> Shown:
    return {"head": value.head, "overridden": value.overridden} | {"concerns": _md(bullets(value.concerns))}


def _review(value: Review) -> Shown:
    if not value.triggered:
        tried = code_block("\n".join(value.patterns))
        return {"triggered": False, "verdict": "not asked: no path matched", "patterns tried": _md(tried)}
    shown = {**_verdict(value.verdict), "triggered": True, "parts reviewed": value.parts}
    if value.matched:
        shown["because of"] = _md(code_block("\n".join(value.matched), limit=1000))
    if value.unreviewed:
        shown["not reviewed"] = _md(code_block("\n".join(value.unreviewed), limit=1000))
    return shown


def _pull_request(value: PullRequest) -> Shown:
    shown: Shown = {
        "pull request": f"#{value.number}: {value.title}",
        "head": value.head,
        "changed files": value.changed_files,
        "body": _md(value.body[:8000]),
    }
    return shown | (_link(value.url) or {"where": value.url}) | _concerns(value.concerns)


def _approval(value: Approval) -> Shown:
    decision = value.decision
    shown: Shown = {
        "decision": decision.action.value,
        "counts": value.counts,
        "who": f"{decision.actor} ({decision.source.value})",
        "head": value.head,
        "reason": decision.reason or "-",
    }
    if value.refusal:
        shown["why it does not count"] = value.refusal
    if decision.comments:
        shown["comments"] = _md(bullets(decision.comments))
    return shown | {"concerns shown": _md(bullets(value.concerns_shown))}


def _merge(value: Merge) -> Shown:
    shown: Shown = {"merged": value.merged, "head": value.head}
    return shown | ({"commit": value.commit} if value.merged else {"refused": value.reason})


def _knowledge(value: Knowledge) -> Shown:
    shown: Shown = {"indexed": value.indexed, "summary": _md(code_block(value.summary, limit=2000))}
    return shown | ({"problem": value.problem} if value.problem else {})


def _qa(value: QaReport) -> Shown:
    rows = [(e.path, e.object.media_type, str(e.object.size), e.object.key) for e in value.evidence]
    return {
        "verdict": value.verdict.verdict.value,
        "comments": _md(bullets(value.verdict.comments)),
        "evidence": _md(table(("file", "type", "bytes", "key"), rows)) if rows else "none",
        "commit": value.commit,
    } | ({"problems": _md(bullets(value.problems))} if value.problems else {})


def _outcome(value: Outcome) -> Shown:
    return {
        "ending": value.ending.value,
        "reason": value.reason or "-",
        "workshops removed": _md(bullets(value.workshops_removed)),
        "ended with": _md(table(("asset", "sha256"), value.evidence.items())),
    }


_SHOW: Mapping[str, Callable[[Any], Shown]] = {
    "ticket": _ticket,
    "analysis": _analysis,
    "plan": _plan,
    "greenfield_spec": _greenfield,
    "architecture_review": _architecture,
    "plan_document": _document,
    "approved_plan": _approved_plan,
    "workshops": _campaign,
    "changes": _changes,
    "integration": _integration,
    "diff": _diff,
    "test_report": _test_report,
    "tested_diff": _gate,
    "code_review": _review,
    "security_review": _review,
    "ops_review": _review,
    "review_gate": _gate,
    "pull_request": _pull_request,
    "approval": _approval,
    "merge": _merge,
    "knowledge": _knowledge,
    "qa_report": _qa,
    "outcome": _outcome,
}
