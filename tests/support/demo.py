"""A team at work without servers: the script's decisions, carried out in a folder as an agent's tools would."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from atelier_dagster.demo import roles
from atelier_dagster.demo.catalogue import DemoTicket
from atelier_dagster.demo.conversation import Conversation, Reply, read_conversation
from atelier_dagster.factory.plan import GreenfieldSpec, Plan, SubTask, parse_plan
from atelier_dagster.factory.prompts import Prompt, render
from atelier_dagster.factory.ticket import Analysis, RepoRef, Ticket, TicketKey, parse_analysis

REWORDED: Mapping[str, tuple[str, str]] = {
    "url-shortener": ("Short links", "Our URLs are too long to print. Give us a web page that makes them short."),
    "rest-api": ("Cannot find anything", "Let readers look up a book by a piece of its title, upper or lower case."),
    "bad-split": ("Who has my book?", "People borrow our books. Note who took one, and that it came back."),
    "auth-module": ("Not everybody should add", "Only those who are signed in with our secret key may change things."),
    "rename-field": ("Wrong word", "It says writer where it should say author. Please change it everywhere."),
    "failing-tests": ("Feedback", "Readers should give each book a rating, and see the average."),
    "stubborn": ("Is it alive?", "Add a liveness endpoint. Our reviewer is a perfectionist, be prepared."),
    "two-halves": ("Numbers", "We need a spreadsheet of the shelf. And, separately, statistics by first letter."),
    "broken-infra": ("What is deployed?", "Please show the running version at an address of its own."),
}
"""Every ticket of the demo in other words: title and body."""

TOOLS = ("bash", "edit", "glob", "grep", "read", "skill", "task", "todowrite", "webfetch", "write")


def as_ticket(demo: DemoTicket, *, title: str = "", body: str = "") -> Ticket:
    """The ticket as intake would read it, at will in other words."""
    return Ticket(
        key=TicketKey(repo=RepoRef(tracker="local", owner="demo", name="sample"), number=1),
        title=title or demo.title,
        body=body or demo.body,
        author="ann",
        labels=demo.labels,
        base_branch="main",
        base_commit="a" * 40 if demo.repository else "",
        root_entries=("README.md", "bookshelf/", "tests/") if demo.repository else (),
    )


def ask(prompt: Prompt, answer: Callable[[Conversation], Reply] = roles.answer) -> str:
    """One answer of a role that only talks."""
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    return answer(read_conversation({"messages": messages})).text


def analysed(ticket: Ticket, answer: Callable[[Conversation], Reply] = roles.answer) -> Analysis:
    return parse_analysis(ask(render("analyst", ticket=ticket, similar=()), answer), ticket)


def planned(ticket: Ticket, *objections: str) -> tuple[SubTask, ...]:
    prompt = render("planner", ticket=ticket, analysis=analysed(ticket), objections=objections)
    return parse_plan(ask(prompt))


def developer_prompt(ticket: Ticket, task: SubTask, *others: SubTask) -> str:
    return render(
        "developer",
        ticket=ticket,
        analysis=analysed(ticket),
        plan=Plan(tasks=(task, *others)),
        task=task,
        scope=task.scope,
        spec=GreenfieldSpec(applies=False),
    ).as_one()


def rework_prompt(ticket: Ticket, feedback: str) -> str:
    tasks = planned(ticket)
    scope = tuple(glob for task in tasks for glob in task.scope)
    plan = Plan(tasks=tasks)
    return render(
        "rework", ticket=ticket, analysis=analysed(ticket), plan=plan, scope=scope, feedback=(feedback,)
    ).as_one()


def qa_prompt(ticket: Ticket) -> str:
    return render("qa", ticket=ticket, analysis=analysed(ticket)).as_one()


def work(
    checkout: Path,
    prompt: str,
    *,
    tools: Collection[str] = TOOLS,
    refuse: Collection[str] = (),
    answer: Callable[[Conversation], Reply] = roles.answer,
) -> str:
    """Let the script work in `checkout` until it ends; its closing words. Tools in `refuse` always fail."""
    functions: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in tools
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for turn in range(40):
        reply = answer(read_conversation({"messages": messages, "tools": functions}))
        if not reply.calls:
            return reply.text
        calls = [
            {"id": f"{turn}-{i}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for i, c in enumerate(reply.calls)
        ]
        messages.append({"role": "assistant", "content": reply.text, "tool_calls": calls})
        for call, made in zip(calls, reply.calls, strict=True):
            output = _use(checkout, made.name, made.arguments, tools, refuse)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    raise AssertionError("the script does not come to an end")


def _use(checkout: Path, name: str, raw: str, tools: Collection[str], refuse: Collection[str]) -> str:
    try:
        arguments = json.loads(raw)
    except ValueError as error:
        return f"The arguments provided to the tool are invalid: {error}"
    if name not in tools or name in refuse:
        return f"Error: the tool {name} is not to be had"
    if name == "bash":
        return shell(checkout, arguments["command"])
    file = checkout / arguments["filePath"]
    assert file.resolve().is_relative_to(checkout.resolve())
    match name:
        case "write":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(arguments["content"])
        case "edit":
            text = file.read_text()
            if text.count(arguments["oldString"]) != 1:
                return "Error: oldString was not found exactly once"
            file.write_text(text.replace(arguments["oldString"], arguments["newString"]))
        case "read":
            return file.read_text()
        case _:
            raise AssertionError(f"the script has no use for {name}")
    return "Done."


def shell(checkout: Path, command: str) -> str:
    """What a shell in the checkout prints, without this machine's configuration."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(checkout.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def passes_its_tests(checkout: Path) -> bool:
    """Whether the checkout's own tests pass."""
    output = shell(checkout, "bash .devcontainer/test.sh && echo tests-passed")
    return bool(re.search(r"^tests-passed$", output, re.MULTILINE))
