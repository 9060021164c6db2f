"""Whole tickets through sensors and the run queue, with and without trouble; handed in together, as a team would."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from atelier_dagster.factory.approval import Action, Approval
from atelier_dagster.factory.change import Campaign, Changes, DiffStat, Ending, Merge, PullRequest, QaReport
from atelier_dagster.factory.plan import ApprovedPlan, Plan
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.factory.verdict import QaDecision, Review
from tests.support.installation import Installation
from tests.support.model import ModelServer

pytestmark = [pytest.mark.journey, pytest.mark.long]

FILES = {"README.md": "# Shop\n", ".devcontainer/test.sh": "echo ok\n"}
ORDERS = {
    "tests-fail-once": "AGENT:fail-once",
    "tests-fail-always": "AGENT:fail-always",
    "never-satisfied": "MODEL:code=refuse",
    "bad-split": "MODEL:planner=overlap-once",
    "always-bad-split": "MODEL:planner=overlap",
    "unreadable-plan": "MODEL:planner=garbage",
    "all-unreadable": "MODEL:all=garbage",
    "two-halves": "MODEL:planner=two",
    "auth-module": "AGENT:auth",
    "idle": "AGENT:idle",
    "hang": "AGENT:hang",
    "no-body": "",
    "no-tests": "AGENT:no-tests",
    "greenfield": "",
    "trunk": "",
    "rejected": "",
    "another-round": "",
    "base-moves": "",
    "protected": "",
    "qa-fails": "AGENT:qa-fails",
    "unlabelled": "",
    "wrong-key": "MODEL:analyst=401",
    "server-errors": "MODEL:analyst=500",
    "stranger": "",
}


@pytest.fixture(scope="module")
def tickets(house: Installation) -> Mapping[str, TicketKey]:
    """Every ticket of this module, handed in together."""
    keys: dict[str, TicketKey] = {}
    for name, order in ORDERS.items():
        if name == "greenfield":
            repo = house.repository(name)
        elif name == "no-tests":
            repo = house.repository(name, {"README.md": "# Shop\n"})
        else:
            repo = house.repository(name, FILES, branch="trunk" if name == "trunk" else "main")
        body = "" if name == "no-body" else f"Please do {name}. {order}"
        keys[name] = house.ticket(repo, f"Do {name}", body)
    return keys


def test_failing_tests_are_corrected(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["tests-fail-once"]
    opened: PullRequest = house.deliver(key)
    assert opened.concerns == ()
    campaign = house.history(key).value("workshops", Campaign)
    assert campaign is not None and campaign.attempt == 2 and campaign.rework
    assert any("the tests speak" in text for text in campaign.feedback)


def test_a_spent_correction_budget_opens_the_pull_request_with_the_concern(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["tests-fail-always"]
    opened: PullRequest = house.deliver(key)
    assert any(concern.startswith("[Tests]") for concern in opened.concerns)
    assert "the tests speak" in opened.body
    campaign = house.history(key).value("workshops", Campaign)
    assert campaign is not None and campaign.attempt == 4, "three redos after the first delivery"


def test_a_spent_review_budget_opens_the_pull_request_with_the_concern(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["never-satisfied"]
    opened: PullRequest = house.deliver(key)
    assert any("not good enough" in concern for concern in opened.concerns)
    campaign = house.history(key).value("workshops", Campaign)
    assert campaign is not None and campaign.attempt == 4
    assert any(text.startswith("[Code]") for text in campaign.feedback)


def test_an_overlapping_split_is_refused_and_planned_again(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["bad-split"]
    house.deliver(key)
    history = house.history(key)
    refused = history.all("architecture_review")[0].artifact.value
    assert refused.verdict.refused
    plan = history.value("plan", Plan)
    assert plan is not None and plan.findings == () and len(plan.tasks) == 2
    assert history.current("plan").artifact.attempt == 2  # type: ignore[union-attr]


def test_a_split_that_stays_bad_becomes_one_task(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["always-bad-split"]
    opened: PullRequest = house.deliver(key)
    approved = house.history(key).value("approved_plan", ApprovedPlan)
    assert approved is not None and approved.overridden and len(approved.plan.tasks) == 1
    assert any("[Architecture]" in concern for concern in opened.concerns)


def test_an_unreadable_plan_becomes_one_task_and_says_why(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    opened: PullRequest = house.deliver(tickets["unreadable-plan"])
    plan = house.history(tickets["unreadable-plan"]).value("plan", Plan)
    assert plan is not None and len(plan.tasks) == 1 and "could not be read" in plan.reduced
    assert opened.concerns != ()


def test_nothing_unread_ever_looks_green(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    opened: PullRequest = house.deliver(tickets["all-unreadable"])
    said = "\n".join(opened.concerns)
    for role in ("[Architecture]", "[Code]"):
        assert role in said


def test_two_independent_parts_come_in_one_pull_request(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["two-halves"]
    house.deliver(key)
    history = house.history(key)
    changes, diff = history.value("changes", Changes), history.value("diff", DiffStat)
    assert changes is not None and {task.task_id for task in changes.tasks} == {"left", "right"}
    assert all(task.out_of_scope == () for task in changes.tasks)
    assert diff is not None and {"left/change-1.txt", "right/change-1.txt"} <= set(diff.paths)


@pytest.mark.parametrize(("name", "triggered"), [("auth-module", True), ("trunk", False)])
def test_the_security_review_triggers_by_path(
    name: str, triggered: bool, house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    house.deliver(tickets[name])
    review = house.history(tickets[name]).value("security_review", Review)
    assert review is not None and review.triggered is triggered
    assert review.patterns, "the patterns tried are recorded either way"


@pytest.mark.parametrize("name", ["idle", "hang"])
def test_nothing_changed_is_told_and_opens_no_pull_request(
    name: str, house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets[name]
    house.wait(
        "word that nothing changed", lambda: any("No agent changed anything" in text for text in house.comments(key))
    )
    house.wait_idle(key)
    history = house.history(key)
    assert history.current("pull_request") is None
    assert len(history.runs) == 1, "it is not tried again by itself"
    changes = history.value("changes", Changes)
    assert changes is not None
    assert ("AGENT_TIMEOUT" if name == "hang" else "changed nothing") in changes.tasks[0].problem


def test_a_ticket_without_body_is_delivered(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    assert house.deliver(tickets["no-body"]).changed_files >= 1


def test_missing_tests_are_a_concern(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    opened: PullRequest = house.deliver(tickets["no-tests"])
    assert any("[Tests]" in concern for concern in opened.concerns)


def test_an_empty_repository_gets_its_first_commit(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["greenfield"]
    house.deliver(key)
    assert house.finish(key).ending is Ending.MERGED
    assert asyncio.run(house.forge.branch_head(key.repo, "main")) is not None


def test_the_base_branch_need_not_be_main(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["trunk"]
    opened: PullRequest = house.deliver(key)
    assert opened.base_branch == "trunk"
    assert house.finish(key).ending is Ending.MERGED


def test_a_rejection_ends_the_cycle_and_a_retry_starts_the_next(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["rejected"]
    first: PullRequest = house.deliver(key)
    house.decide(key, Action.REJECT, "we do not want this")
    outcome = house.wait_current(key, "outcome")
    assert outcome.ending is Ending.REJECTED and "we do not want this" in outcome.reason
    assert house.history(key).value("merge", Merge) is None
    house.wait_idle(key)

    asyncio.run(house.tracker.add_comment(key, "/atelier retry"))

    house.wait("the second cycle", lambda: house.history(key).cycle == 2)
    second: PullRequest = house.deliver(key)
    assert second.number != first.number and second.branch != first.branch
    assert asyncio.run(house.tracker.get_issue(key)).is_open


def test_changes_requested_are_a_new_round_on_the_same_pull_request(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["another-round"]
    first: PullRequest = house.deliver(key)
    house.decide(key, Action.REQUEST_CHANGES, "also add a footer")

    def updated() -> PullRequest | None:
        opened = house.history(key).value("pull_request", PullRequest)
        return opened if opened and opened.head != first.head else None

    second: PullRequest = house.wait("the updated pull request", updated)
    assert second.number == first.number
    campaign = house.history(key).value("workshops", Campaign)
    assert campaign is not None and campaign.round == 2 and campaign.attempt == 1
    assert any("also add a footer" in text for text in campaign.feedback)
    bare = house.home / "forge" / "test" / "another-round" / "repo.git"
    _git(bare, "merge-base", "--is-ancestor", first.head, second.head)
    house.wait_idle(key)
    assert house.finish(key).ending is Ending.MERGED


def test_a_moved_base_is_brought_in_and_the_same_diff_needs_no_second_approval(
    house: Installation, tickets: Mapping[str, TicketKey], tmp_path: Path
) -> None:
    key = tickets["base-moves"]
    opened: PullRequest = house.deliver(key)
    pushed = _commit(house, key, tmp_path, "elsewhere.txt")
    house.decide(key)
    assert house.wait_current(key, "outcome").ending is Ending.MERGED
    history = house.history(key)
    merged = history.value("merge", Merge)
    assert merged is not None and merged.head != opened.head
    _git(house.home / "forge" / "test" / "base-moves" / "repo.git", "merge-base", "--is-ancestor", pushed, merged.head)
    assert len(history.all("test_report")) == 2, "it was tested again"


def test_a_refused_merge_is_told_and_waits(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["protected"]
    house.deliver(key)
    protection = house.home / "forge" / "test" / "protected" / "protected"
    protection.write_text("main: frozen for the release\n")
    house.decide(key)
    house.wait("word of the refusal", lambda: any("merge was refused" in text for text in house.comments(key)))
    house.wait_idle(key)
    assert house.history(key).current("outcome") is None
    protection.unlink()
    assert house.finish(key).ending is Ending.MERGED


def test_a_failed_qa_is_reported_and_fails_nothing(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["qa-fails"]
    house.deliver(key)
    assert house.finish(key).ending is Ending.MERGED
    report = house.history(key).value("qa_report", QaReport)
    assert report is not None and report.verdict.verdict is QaDecision.FAIL
    assert all(run.status == "success" for run in house.history(key).runs)


def test_a_ticket_that_loses_its_label_stops_and_may_start_again(
    house: Installation, tickets: Mapping[str, TicketKey]
) -> None:
    key = tickets["unlabelled"]
    house.deliver(key)
    asyncio.run(house.tracker.set_labels(key, []))
    assert house.wait_current(key, "outcome").ending is Ending.CANCELLED
    house.wait_idle(key)
    assert asyncio.run(house.tracker.get_issue(key)).is_open, "its people only took it away from us"
    asyncio.run(house.tracker.set_labels(key, ["atelier"]))
    house.wait("the second cycle", lambda: house.history(key).cycle == 2)
    house.deliver(key)


def test_a_refused_key_is_told_with_what_to_do(
    house: Installation, tickets: Mapping[str, TicketKey], model: ModelServer
) -> None:
    key = tickets["wrong-key"]
    house.wait("word of the refused key", lambda: any("MODEL_AUTH" in text for text in house.comments(key)))
    assert house.history(key).current("ticket") is not None, "what was done is kept"


def test_a_model_that_is_down_is_told(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["server-errors"]
    house.wait("word of the model", lambda: any("MODEL_UNAVAILABLE" in text for text in house.comments(key)))


def test_a_strangers_approval_does_not_count(house: Installation, tickets: Mapping[str, TicketKey]) -> None:
    key = tickets["stranger"]
    opened: PullRequest = house.deliver(key)
    comment = f"/atelier approve {opened.head}"
    asyncio.run(house.forge.add_comment(key.repo, opened.number, comment, author="mallory"))
    approval = house.wait_current(key, "approval")
    assert isinstance(approval, Approval) and not approval.counts and "mallory" in approval.refusal
    house.wait_idle(key)
    assert house.history(key).current("merge") is None
    assert house.finish(key).ending is Ending.MERGED


def _git(bare: Path, *argv: str) -> str:
    found = subprocess.run(["git", "-C", str(bare), *argv], check=True, capture_output=True, text=True, timeout=60)
    return found.stdout.strip()


def _commit(house: Installation, key: TicketKey, scratch: Path, name: str) -> str:
    """Somebody pushes to the base branch."""
    bare = house.home / "forge" / "test" / key.repo.name / "repo.git"
    clone = scratch / "clone"
    subprocess.run(["git", "clone", "-q", str(bare), str(clone)], check=True, timeout=60)
    (clone / name).write_text("pushed by a person\n")
    identity = ["-c", "user.name=Person", "-c", "user.email=person@example.invalid"]
    _git(clone, "add", "-A")
    _git(clone, *identity, "commit", "-q", "-m", "Elsewhere")
    _git(clone, "push", "-q", "origin", "HEAD")
    return _git(clone, "rev-parse", "HEAD")
