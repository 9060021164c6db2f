"""Developer and QA engineer at work: real files, real tests, the real application."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from atelier_dagster.demo import DemoTicket, catalogue, malformed
from atelier_dagster.demo.model import ScriptedModel
from atelier_dagster.demo.repositories import build
from atelier_dagster.factory.ticket import Ticket
from atelier_dagster.factory.verdict import QaDecision, parse_qa
from tests.support.demo import as_ticket, developer_prompt, passes_its_tests, planned, qa_prompt, rework_prompt, work
from tests.support.opencode import git, real_opencode, run_agent


@pytest.fixture
def clone(tmp_path: Path) -> Callable[[DemoTicket], Path]:
    """A fresh checkout of a ticket's repository."""

    def make(ticket: DemoTicket) -> Path:
        build(ticket.repository, tmp_path / "origin.git")
        checkout = tmp_path / "checkout"
        argv = ["git", "clone", "-q", str(tmp_path / "origin.git"), str(checkout)]
        subprocess.run(argv, check=True, capture_output=True)
        return checkout

    return make


def deliver(checkout: Path, ticket: Ticket) -> None:
    """All tasks of the plan that passes, one after another."""
    tasks = planned(ticket, "overlap")
    for task in tasks:
        work(checkout, developer_prompt(ticket, task, *(other for other in tasks if other is not task)))
        changed = git(checkout, "status", "--porcelain", "-uall").split()[1::2]
        assert task.scope[0] == "**" or all(in_scope(path, task.scope) for path in changed), (task.scope, changed)
        commit(checkout, task.title)


def in_scope(path: str, scope: tuple[str, ...]) -> bool:
    return any(path == glob or path.startswith(glob.removesuffix("**")) for glob in scope)


def commit(checkout: Path, message: str) -> str:
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", message)
    return git(checkout, "rev-parse", "HEAD^{tree}")


@pytest.mark.parametrize("name", [name for name in catalogue() if name != "failing-tests"])
def test_what_is_delivered_works(name: str, clone: Callable[[DemoTicket], Path]) -> None:
    demo = catalogue()[name]
    checkout, ticket = clone(demo), as_ticket(demo)
    deliver(checkout, ticket)
    assert passes_its_tests(checkout)
    verdict = parse_qa(work(checkout, qa_prompt(ticket)))
    assert verdict.verdict is QaDecision.PASS, verdict
    assert ".qa-evidence/exchanges.txt" in verdict.evidence_files
    assert all((checkout / file).stat().st_size for file in verdict.evidence_files)
    assert git(checkout, "status", "--porcelain") == "", "QA changes nothing but its evidence"


def test_a_first_delivery_fails_and_rework_mends_it(clone: Callable[[DemoTicket], Path]) -> None:
    demo = catalogue()["failing-tests"]
    checkout, ticket = clone(demo), as_ticket(demo)
    deliver(checkout, ticket)
    assert not passes_its_tests(checkout)
    assert parse_qa(work(checkout, qa_prompt(ticket))).verdict is QaDecision.FAIL
    work(checkout, rework_prompt(ticket, "ZeroDivisionError: division by zero"))
    commit(checkout, "rework")
    assert passes_its_tests(checkout)
    assert parse_qa(work(checkout, qa_prompt(ticket))).verdict is QaDecision.PASS


def test_rework_for_somebody_never_content_always_differs(clone: Callable[[DemoTicket], Path]) -> None:
    demo = catalogue()["stubborn"]
    checkout, ticket = clone(demo), as_ticket(demo)
    deliver(checkout, ticket)
    trees = {git(checkout, "rev-parse", "HEAD^{tree}")}
    for _ in range(4):
        work(checkout, rework_prompt(ticket, "[Code] go through it once more"))
        trees.add(commit(checkout, "rework"))
    assert len(trees) == 5
    assert passes_its_tests(checkout)


@pytest.mark.parametrize(
    ("tools", "refuse"), [(("bash",), ()), (("bash", "write", "edit", "read"), ("write", "edit", "read"))]
)
@pytest.mark.parametrize("name", ["auth-module", "url-shortener"])
def test_a_shell_is_enough(
    name: str, tools: tuple[str, ...], refuse: tuple[str, ...], clone: Callable[[DemoTicket], Path]
) -> None:
    demo = catalogue()[name]
    checkout, ticket = clone(demo), as_ticket(demo)
    (task,) = planned(ticket)
    work(checkout, developer_prompt(ticket, task), tools=tools, refuse=refuse)
    assert passes_its_tests(checkout)
    commit(checkout, "all")
    assert parse_qa(work(checkout, qa_prompt(ticket), tools=tools)).verdict is QaDecision.PASS


@pytest.mark.parametrize("name", ["rest-api", "two-halves", "rename-field"])
def test_malformed_calls_are_got_over(name: str, clone: Callable[[DemoTicket], Path]) -> None:
    demo = catalogue()[name]
    checkout, ticket = clone(demo), as_ticket(demo)
    for task in planned(ticket):
        work(checkout, developer_prompt(ticket, task), answer=malformed.answer)
    assert passes_its_tests(checkout)
    assert git(checkout, "status", "--porcelain") != ""


def test_qa_fails_what_does_not_work(clone: Callable[[DemoTicket], Path]) -> None:
    demo = catalogue()["rest-api"]
    checkout, ticket = clone(demo), as_ticket(demo)
    untouched = parse_qa(work(checkout, qa_prompt(ticket)))
    assert untouched.verdict is QaDecision.FAIL
    (checkout / "bookshelf/server.py").write_text("raise SystemExit('broken')\n")
    assert parse_qa(work(checkout, qa_prompt(ticket))).verdict is QaDecision.FAIL
    (checkout / "README.md").write_text("# Nothing\n")
    assert "README" in parse_qa(work(checkout, qa_prompt(ticket))).comments[0]


def test_what_the_script_cannot_build_is_written_down(clone: Callable[[DemoTicket], Path]) -> None:
    checkout = clone(catalogue()["rest-api"])
    ticket = as_ticket(catalogue()["rest-api"], title="Teleport", body="Please.")
    (task,) = planned(ticket)
    assert "cannot build" in work(checkout, developer_prompt(ticket, task))
    assert "Teleport" in (checkout / "docs/requests.md").read_text()


@pytest.mark.service
@pytest.mark.parametrize("name", ["url-shortener", "auth-module"])
def test_with_the_real_agent(name: str, clone: Callable[[DemoTicket], Path], tmp_path: Path) -> None:
    demo = catalogue()[name]
    checkout, ticket, home = clone(demo), as_ticket(demo), tmp_path / "home"
    home.mkdir()
    (task,) = planned(ticket)
    agent = real_opencode()
    with ScriptedModel() as model:
        built = run_agent(agent, developer_prompt(ticket, task), checkout=checkout, home=home, model_url=model.url)
        assert agent.read(built).error == "", agent.read(built)
        assert passes_its_tests(checkout)
        commit(checkout, "build")
        examined = run_agent(agent, qa_prompt(ticket), checkout=checkout, home=home, model_url=model.url)
    answer = agent.read(examined)
    assert answer.error == ""
    assert parse_qa(answer.text).verdict is QaDecision.PASS, answer.text
    assert answer.tokens_in > 0
    assert answer.tokens_out > 0
