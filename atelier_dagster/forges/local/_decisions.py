"""Human decisions as they lie in the files of a pull request. Not here: whether they count."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from atelier_dagster.factory.approval import Action, DecisionSource, HumanDecision, parse_command
from atelier_dagster.forges.local._store import Note, Store


def read_decisions(store: Store, talk: Path) -> list[HumanDecision]:
    """Reviews, commands in comments, and decisions of the command line, oldest first."""
    found: list[tuple[datetime, str, HumanDecision]] = []
    for source, directory in _DIRECTORIES.items():
        for note in store.notes(talk / directory):
            decision = _command(store, note) if source is DecisionSource.COMMENT else _written(store, note, source)
            if decision is not None:
                found.append((note.document.time("created"), note.id, decision))
    return [decision for _, _, decision in sorted(found, key=lambda item: item[:2])]


_DIRECTORIES = {
    DecisionSource.REVIEW: "reviews",
    DecisionSource.COMMENT: "comments",
    DecisionSource.CLI: "decisions",
}


def _written(store: Store, note: Note, source: DecisionSource) -> HumanDecision | None:
    document = note.document
    try:
        action = Action(document.text("state").lower())
    except ValueError:
        return None
    return _decision(store, note, source, action, document.text("commit"), document.body)


def _command(store: Store, note: Note) -> HumanDecision | None:
    command = parse_command(note.document.body)
    if command is None or command.action == "retry":
        return None
    return _decision(store, note, DecisionSource.COMMENT, command.action, command.sha, command.reason)


def _decision(
    store: Store, note: Note, source: DecisionSource, action: Action, head: str, reason: str
) -> HumanDecision:
    comment = store.comment(note)
    return HumanDecision(
        source=source,
        id=f"{source.value}-{note.id}",
        actor=comment.author,
        action=action,
        head=head,
        reason=reason,
        comments=note.document.words("comments"),
        may_decide=comment.author_may_write,
        is_bot=comment.is_bot,
    )
