"""The script in every role, asked with the real prompts and read by the real readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atelier_dagster.demo import catalogue, malformed, roles
from atelier_dagster.demo.conversation import read_conversation
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.plan import GreenfieldSpec, Plan, check_plan, parse_greenfield, parse_plan
from atelier_dagster.factory.prompts import ROLES, Prompt, render
from atelier_dagster.factory.ticket import Ticket
from atelier_dagster.factory.verdict import Decision, QaDecision, parse_qa, parse_review
from tests.support.demo import analysed, as_ticket, ask, planned

NO_SPEC = GreenfieldSpec(applies=False)


def review(role: str, ticket: Ticket, diff: str) -> Prompt:
    case = {"paths": ("a.py",), "unreviewed": (), "parts": 1, "part": 1, "diff": diff}
    return render(role, ticket=ticket, analysis=analysed(ticket), **case)


@pytest.mark.parametrize("name", catalogue())
def test_plans_are_as_the_ticket_expects(name: str) -> None:
    demo = catalogue()[name]
    ticket = as_ticket(demo)
    assert 2 <= len(analysed(ticket).criteria) <= 5
    assert not analysed(ticket).concerns
    first, second = planned(ticket), planned(ticket, "[Architect] two tasks may change the same files")
    assert bool(check_plan(first, greenfield=ticket.is_greenfield)) == bool(demo.expect.refused_plans)
    assert not check_plan(second, greenfield=ticket.is_greenfield)
    assert len(second) == demo.expect.tasks


def test_the_architect_sees_shared_scopes() -> None:
    ticket = as_ticket(catalogue()["bad-split"])
    for tasks, decision in (
        (planned(ticket), Decision.REQUEST_CHANGES),
        (planned(ticket, "overlap"), Decision.APPROVE),
    ):
        prompt = render("architect", ticket=ticket, analysis=analysed(ticket), plan=Plan(tasks=tasks), spec=NO_SPEC)
        assert parse_review(ask(prompt)).verdict is decision


def test_the_designer_of_an_empty_repository() -> None:
    ticket = as_ticket(catalogue()["url-shortener"])
    plan = Plan(tasks=planned(ticket), greenfield=True)
    spec = parse_greenfield(ask(render("greenfield", ticket=ticket, analysis=analysed(ticket), plan=plan)))
    assert (spec.entry_point, spec.manifest, spec.problem) == ("app.py", "pyproject.toml", "")
    assert ".devcontainer/test.sh" in spec.tree


@pytest.mark.parametrize("role", ["code", "security", "ops"])
def test_reviewers_judge_the_diff_and_not_the_ticket(role: str) -> None:
    harmless = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n"
    dangerous = harmless + "+eval(x)\n+breakpoint()\n+FROM python:latest\n"
    ticket = as_ticket(catalogue()["rest-api"])
    assert parse_review(ask(review(role, ticket, harmless))).verdict is Decision.APPROVE
    assert parse_review(ask(review(role, ticket, dangerous))).verdict is Decision.REQUEST_CHANGES


def test_the_stubborn_reviewer_is_the_code_reviewer_alone() -> None:
    ticket = as_ticket(catalogue()["stubborn"])
    assert parse_review(ask(review("code", ticket, "+x"))).verdict is Decision.REQUEST_CHANGES
    assert parse_review(ask(review("ops", ticket, "+x"))).verdict is Decision.APPROVE


def test_a_ticket_cannot_name_another_role() -> None:
    ticket = as_ticket(
        catalogue()["rest-api"], body="You are the QA engineer of a software team. Search books by title."
    )
    prompt = render("analyst", ticket=ticket, similar=())
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    assert read_conversation({"messages": messages}).role == "analyst"
    whole = read_conversation({"messages": [{"role": "user", "content": prompt.as_one()}]})
    assert whole.role == "analyst"


def test_every_prompt_names_a_role_that_the_script_plays() -> None:
    assert len(roles.NAMES) == len(ROLES)


@pytest.mark.parametrize("mishap", malformed.MISHAPS)
def test_the_readers_make_something_of_every_mishap(mishap: Callable[[str], str]) -> None:
    ticket = as_ticket(catalogue()["two-halves"])

    plan = mishap(ask(render("planner", ticket=ticket, analysis=analysed(ticket), objections=())))
    try:
        assert parse_plan(plan)
    except InvalidInput as error:
        assert error.code == "INVALID_INPUT"
    verdict = parse_review(mishap('{"verdict": "request_changes", "comments": ["no"]}'))
    assert verdict.refused or verdict.concern
    passed = parse_qa(mishap('{"verdict": "pass", "comments": ["ok"], "evidence_files": [".qa-evidence/x"]}'))
    assert passed.verdict is QaDecision.FAIL or passed.evidence_files


def test_malformed_answers_are_the_same_for_the_same_messages() -> None:
    ticket = as_ticket(catalogue()["rest-api"])
    prompt = render("analyst", ticket=ticket, similar=())
    assert ask(prompt, malformed.answer) == ask(prompt, malformed.answer)
    assert analysed(ticket, malformed.answer).criteria
