"""What people are told on tickets and pull requests. Pure text; every untrusted word becomes harmless Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from atelier_dagster.factory.approval import Approval
from atelier_dagster.factory.change import (
    Changes,
    DiffStat,
    Ending,
    Integration,
    PullRequest,
    QaReport,
    ReviewGate,
    TestReport,
    TestStatus,
)
from atelier_dagster.factory.lineage import History
from atelier_dagster.factory.plan import ApprovedPlan, Plan
from atelier_dagster.factory.ticket import Analysis, Ticket
from atelier_dagster.factory.verdict import Review

_LINE = 500
_LIST = 40
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_MENTION = re.compile(r"@(?=\w)")
_WORD_JOINER = "\u2060"


def plain(text: str, limit: int = _LINE) -> str:
    """Untrusted text on one line that Markdown shows and nothing interprets: no markup, mention, link or command."""
    line = " ".join(text.split())
    if len(line) > limit:
        line = line[:limit].rstrip() + " [...]"
    line = _SPECIAL.sub(r"\\\1", line)
    line = line.replace("://", f":{_WORD_JOINER}//")  # no automatic links into somebody's site
    return _MENTION.sub(f"@{_WORD_JOINER}", line)


def block(text: str, limit: int = 3000) -> str:
    """Untrusted text in a fence that it cannot end; its end is kept where it is too long."""
    cut = text if len(text) <= limit else "[...]\n" + text[-limit:]
    longest = max((len(run) for run in re.findall(r"`+", cut)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{cut}\n{fence}"


def items(texts: Iterable[str], none: str = "none") -> str:
    """A list of untrusted lines."""
    lines = [f"- {plain(text)}" for text in texts]
    if len(lines) > _LIST:
        lines = [*lines[:_LIST], f"- ... and {len(lines) - _LIST} more"]
    return "\n".join(lines) or none


def _section(title: str, text: str) -> str:
    return f"### {title}\n\n{text}"


# ---------------------------------------------------------------------------------------------------- the ticket


def author_not_allowed(author: str) -> str:
    """A labelled ticket whose author may not drive agents."""
    return (
        f"This ticket is not taken in: {plain(author)} has no write access here, and is not a configured author.\n\n"
        "Somebody with write access can start it with `atelier submit`."
    )


def plan_waits(plan: Plan, sha256: str) -> str:
    """The plan waits for a human."""
    tasks = (f"{task.id}: {task.title} ({', '.join(task.scope)})" for task in plan.tasks)
    return (
        f"The plan waits for approval.\n\n{items(tasks)}\n\n"
        f"To go on, comment `/atelier approve {sha256[:12]}` or run `atelier approve`."
    )


def pull_request_opened(opened: PullRequest) -> str:
    """The pull request is there."""
    return (
        f"Pull request #{opened.number} is open: {_place(opened.url)}\n\n"
        f"{opened.changed_files} changed files, head `{opened.head}`.\n\n"
        f"{_section('Outstanding concerns', items(opened.concerns))}\n\n"
        f"It waits for a human. {_how_to_decide(opened.head)}"
    )


def run_failed(step: str, message: str, run_id: str) -> str:
    """A run failed: what, and how to go on."""
    where = f"in the step `{plain(step)}`" if step else "outside of a step"
    return (
        f"Run `{run_id[:8]}` failed {where}.\n\n{block(message, 2000)}\n\n"
        "It is tried again after a pause; after three failures without progress it waits for a human. "
        "Nothing that was done is lost. To go on at once, run `atelier submit` or comment `/atelier retry`."
    )


_WAITS = {
    "merge_refused": "The merge was refused. Mend what the reason names, then approve again.",
    "nothing_changed": "No agent changed anything, so there is no pull request. "
    "Say more exactly what is to change, then comment `/atelier retry`.",
    "budget": "The model's budget is spent. Raise it and comment `/atelier retry`, or close the ticket.",
    "failures": "Runs keep failing without progress. Mend the cause, then comment `/atelier retry`.",
    "cancelled": "An operator cancelled the last run. Comment `/atelier retry` to go on, or close the ticket.",
    "decision_refused": "The last decision does not count. Another one is needed.",
}


def waits(kind: str, reason: str) -> str:
    """What a ticket waits for, and what ends the wait."""
    return f"{_WAITS.get(kind, 'This ticket waits for a human.')}\n\nReason: {plain(reason)}"


def decision_refused(approval: Approval) -> str:
    """A decision that does not count, and why."""
    who = plain(approval.decision.actor)
    return (
        f"The decision of {who} ({approval.decision.action.value}) does not count: {plain(approval.refusal)}.\n\n"
        f"{_how_to_decide(approval.head)}"
    )


def merge_refused(reason: str) -> str:
    """The forge refused to merge."""
    return f"The merge was refused: {plain(reason)}\n\nMend that, then approve again."


def cycle_ended(ending: Ending, reason: str, opened: PullRequest | None, spent: str) -> str:
    """How the cycle ended."""
    told = {
        Ending.MERGED: "Done: the change is merged.",
        Ending.REJECTED: "Ended: the change was rejected.",
        Ending.CANCELLED: "Stopped.",
    }[ending]
    about = f" Pull request #{opened.number}: {_place(opened.url)}" if opened else ""
    again = "" if ending is Ending.MERGED else "\n\nComment `/atelier retry` or run `atelier submit` to start again."
    return f"{told}{about}\n\nReason: {plain(reason)}. Spent: {plain(spent)}.{again}"


# ---------------------------------------------------------------------------------------------- the pull request


def pull_request_body(history: History) -> str:
    """What the human who decides must see: what it does, and everything that speaks against it."""
    ticket, analysis = history.value("ticket", Ticket), history.value("analysis", Analysis)
    gate, integration = history.value("review_gate", ReviewGate), history.value("integration", Integration)
    assert ticket and analysis and gate and integration  # inputs of the pull request
    parts = [
        f"For ticket {plain(str(ticket.key))}: {plain(ticket.title)}",
        _section("Job story", plain(analysis.job_story, 2000)),
        _section("Acceptance criteria", items(analysis.criteria)),
        _section("Outstanding concerns", items(gate.concerns)),
        _section("Tests", _tests(history)),
        _section("Reviews", _reviews(history)),
    ]
    if integration.conflicts:
        text = "These branches conflicted and are **not** in this change:\n\n" + items(integration.conflicts)
        parts.append(_section("Conflicts", text))
    parts += [_section("How it was split", _plan(history)), _section("Decide", _how_to_decide(integration.head))]
    return "\n\n".join(parts)


def _tests(history: History) -> str:
    report = history.value("test_report", TestReport)
    if report is None or report.status is TestStatus.MISSING:
        return "There is no `.devcontainer/test.sh`: **nothing was tested**."
    if report.status is TestStatus.PASSED:
        return f"`.devcontainer/test.sh` passed on `{report.head}`."
    how = "was stopped by its time limit" if report.timed_out else f"ended with exit code {report.exit_code}"
    return f"`.devcontainer/test.sh` **failed**: it {how}.\n\n{block(report.output_tail)}"


def _reviews(history: History) -> str:
    lines: list[str] = []
    for asset, name in (("code_review", "Code"), ("security_review", "Security"), ("ops_review", "Ops")):
        review = history.value(asset, Review)
        if review is None:
            continue
        lines.append(f"- {name}: {_said(review)}")
        lines += [f"  - {plain(comment)}" for comment in review.verdict.comments[:_LIST]]
        if review.unreviewed:
            lines.append(f"  - **not reviewed**: {plain(', '.join(review.unreviewed), 1000)}")
    return "\n".join(lines)


def _said(review: Review) -> str:
    if not review.triggered:
        return "not asked, no changed path matches its patterns"
    if review.verdict.concern:
        return f"counts as {review.verdict.verdict.value}, but {plain(review.verdict.concern)}"
    return review.verdict.verdict.value


def _plan(history: History) -> str:
    approved, changes = history.value("approved_plan", ApprovedPlan), history.value("changes", Changes)
    if approved is None:
        return ""
    lines = [f"{task.id}: {task.title} ({', '.join(task.scope)})" for task in approved.plan.tasks]
    if changes is not None:
        lines += [f"{change.task_id}: {change.problem}" for change in changes.tasks if change.problem]
    return items(lines)


def _how_to_decide(head: str) -> str:
    return (
        f"To merge, comment `/atelier approve {head}` on the pull request, review it, or run `atelier approve`. "
        "To decline, `/atelier reject`; for another round, `/atelier changes` with what to change. "
        "An approval counts for this head only."
    )


def _place(url: str) -> str:
    return url if url.startswith(("http://", "https://")) else f"`{url}`"


# ------------------------------------------------------------------------------------------------ after the merge


def qa_comment(report: QaReport) -> str:
    """QA's verdict with its evidence, for the merged pull request."""
    verdict = report.verdict
    evidence = (
        f"`{item.object.key}` ({item.object.media_type}, {item.object.size} bytes)"
        + ("" if item.uploaded else " - not uploaded")
        for item in report.evidence
    )
    parts = [
        f"QA on the merged code (`{report.commit}`): **{verdict.verdict.value}**",
        _section("Comments", items(verdict.comments)),
        _section("Evidence", "\n".join(f"- {line}" for line in evidence) or "none"),
    ]
    if report.problems:
        parts.append(_section("Problems", items(report.problems)))
    return "\n\n".join(parts)


def resolution_summary(ticket: Ticket, analysis: Analysis, diff: DiffStat) -> str:
    """How a ticket was solved, for the index of past resolutions."""
    criteria = "\n".join(f"- {criterion}" for criterion in analysis.criteria)
    paths = "\n".join(f"- {path}" for path in diff.paths[:100])
    size = f"{diff.files} files, +{diff.insertions} -{diff.deletions}"
    return f"{ticket.title}\n\n{analysis.job_story}\n\nCriteria:\n{criteria}\n\nChanged ({size}):\n{paths}"[:20_000]
