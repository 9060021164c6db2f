"""Agents that do well, badly or nothing: what they leave is taken out once, and told as it is."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from atelier_dagster.delivery import delegate
from atelier_dagster.factory.change import TaskChange, WorkshopRecord
from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.ports import AgentAnswer, ExecRequest
from tests.support.delivery import Setting
from tests.support.repositories import git


async def run(setting: Setting, record: WorkshopRecord | None = None, attempt: str = "a1", **more: float) -> TaskChange:
    record = record or setting.record()
    return await delegate(
        setting.workshops,
        setting.agent,
        setting.host,
        setting.store,
        spec=setting.spec(record),
        record=record,
        prompt="Do it",
        attempt_id=attempt,
        model="m",
        timeout=more.get("timeout", 30.0),
        title="Add\nb",
        secrets=[SecretStr("hunter22")],
    )


def agent_runs(setting: Setting, attempt: str = "a1") -> int:
    return sum(request.id == attempt for request in setting.workshops.requests)


async def test_what_an_agent_leaves_is_committed_and_taken_out(setting: Setting) -> None:
    setting.agent.script = "cat >src/b; echo out >c; echo said; echo hunter22 >&2"
    change = await run(setting)
    assert (change.problem, change.exit_code, change.answer) == ("", 0, "done")
    assert change.commits == (change.head,)
    assert change.out_of_scope == ("c",)
    assert await setting.host.read_file(change.head, "src/b") == b"Do it"
    message = git(setting.host.path, "show", "-s", "--format=%s%n%b%an", change.head)
    assert message == "Add b\nAtelier-Attempt: a1\nAtelier agent"
    assert change.transcript is not None
    assert change.transcript.key == f"objects/{change.transcript.sha256}"
    assert await setting.store.get_object(change.transcript) == b"said\n\n--- stderr ---\n***\n"
    assert await setting.host.ref("refs/heads/atelier/1-one") == change.head


async def test_repeating_an_attempt_pays_nothing_and_gives_the_same(setting: Setting) -> None:
    setting.agent.script = "date +%N >src/b"
    first = await run(setting)
    assert await run(setting) == first
    await setting.workshops.delete("pm-one")
    assert await run(setting) == first
    assert agent_runs(setting) == 1


@pytest.mark.parametrize("crash_at", ["agent", "commit", "bundle"])
async def test_a_crash_anywhere_is_gone_on_from(setting: Setting, crash_at: str) -> None:
    setting.agent.script = "date +%N >src/b; echo x >>c"
    pattern = {"agent": "date", "commit": "git add -A", "bundle": "bundle create"}[crash_at]

    def crash(request: ExecRequest) -> None:
        if pattern in " ".join(request.argv) and not crashed:
            crashed.append(request.id)
            raise Unavailable("the connection was lost")

    crashed: list[str] = []
    setting.workshops.before = crash
    with pytest.raises(Unavailable):
        await run(setting)
    change = await run(setting)
    assert change.problem == ""
    assert len(change.commits) == 1
    assert await setting.host.read_file(change.head, "c") == b"x\n"
    assert change.transcript is not None
    assert agent_runs(setting) == 1


async def test_committed_work_is_found_where_commands_are_forgotten(setting: Setting) -> None:
    setting.agent.script = "date +%N >src/b"
    setting.workshops.before = lambda request: _fail_on(request, "bundle create")
    with pytest.raises(Unavailable):
        await run(setting)
    setting.workshops.before = lambda request: None
    setting.workshops._results.clear()  # pyright: ignore[reportPrivateUsage]
    change = await run(setting)
    assert (agent_runs(setting), len(change.commits), change.answer) == (1, 1, "done")


def _fail_on(request: ExecRequest, text: str) -> None:
    if text in " ".join(request.argv):
        raise Unavailable("the connection was lost")


async def test_doing_nothing_well_is_a_problem(setting: Setting) -> None:
    change = await run(setting)
    assert (change.head, change.commits) == (setting.base, ())
    assert "changed nothing" in change.problem


async def test_commits_of_the_agent_are_kept(setting: Setting) -> None:
    setting.agent.script = (
        "git config user.name me; git config user.email me@x; echo 1 >src/b; git add -A; git commit -qm own;"
        "echo 2 >src/c"
    )
    change = await run(setting)
    subjects = git(setting.host.path, "log", "--format=%s", f"{setting.base}..{change.head}").splitlines()
    assert subjects == ["Add b", "own"]
    assert len(change.commits) == 2


async def test_an_agent_on_a_branch_of_its_own_loses_nothing(setting: Setting) -> None:
    setting.agent.script = "git checkout -qb mine; echo 1 >src/b"
    change = await run(setting)
    assert await setting.host.read_file(change.head, "src/b") == b"1\n"
    setting.agent.script = (
        "git config user.name me; git config user.email me@x; echo 1 >src/b; git add -A; git commit -qm own;"
        f"git checkout -q --detach {setting.base}"
    )
    change = await run(setting, setting.record("pm-two"), "a2")
    assert await setting.host.read_file(change.head, "src/b") == b"1\n"


async def test_a_rewritten_history_is_refused_and_told(setting: Setting) -> None:
    setting.agent.script = (
        "git config user.name me; git config user.email me@x; git checkout -q --orphan x; git commit -qm x;"
        "git update-ref refs/heads/atelier/1-one HEAD"
    )
    change = await run(setting)
    assert change.head == setting.base
    assert "BUNDLE_REJECTED" in change.problem


HINDRANCES = {
    "hook": "printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "hooks path": "mkdir h; printf '#!/bin/sh\\nexit 1\\n' >h/commit-msg; chmod +x h/*; git config core.hooksPath h",
    "signing": "git config commit.gpgSign true; git config gpg.program false",
    "lock": "touch .git/index.lock",
    "identity": "git config user.useConfigOnly true",
    "nested repository": "git init -q src/inner; echo 1 >src/inner/file",
    "nested with commit": (
        "git init -q src/inner; cd src/inner; echo 1 >file; git add -A;"
        "git -c user.name=a -c user.email=a@b commit -qm x"
    ),
    "fsmonitor": "git config core.fsmonitor 'exit 1'",
    "merge left open": (
        "git config user.name a; git config user.email a@b; git checkout -qb m; echo m >src/a; git commit -qam m;"
        "git checkout -q atelier/1-one; echo n >src/a; git commit -qam n; git merge -q m; :"
    ),
}


@pytest.mark.parametrize("kind", HINDRANCES)
async def test_what_could_keep_a_commit_from_being_made_does_not(setting: Setting, kind: str) -> None:
    setting.agent.script = f"echo 1 >src/b; {HINDRANCES[kind]}"
    change = await run(setting)
    assert change.problem == ""
    assert await setting.host.read_file(change.head, "src/b") == b"1\n"
    if "nested" in kind:
        assert await setting.host.read_file(change.head, "src/inner/file") == b"1\n"


CONTENT = {
    "crlf": ("printf 'a\\r\\nb' >src/f", b"a\r\nb"),
    "no newline": ("printf x >src/f", b"x"),
    "binary": ("printf '\\000\\001' >src/f", b"\0\1"),
}


@pytest.mark.parametrize("kind", CONTENT)
async def test_content_comes_out_as_it_was_left(setting: Setting, kind: str) -> None:
    script, expected = CONTENT[kind]
    setting.agent.script = f"git config core.autocrlf input; git config core.safecrlf true; {script}"
    change = await run(setting)
    assert await setting.host.read_file(change.head, "src/f") == expected


async def test_names_and_modes_and_removals_come_out(setting: Setting) -> None:
    setting.agent.script = "chmod +x README; git mv src/a 'src/caf\u00e9\t\"x'; rm -rf nothing"
    change = await run(setting)
    assert await setting.host.changed_paths(setting.base, change.head) == ("README", "src/a", 'src/café\t"x')


async def test_evidence_is_never_committed(setting: Setting) -> None:
    setting.agent.script = "mkdir -p .qa-evidence; echo x >.qa-evidence/shot.png; echo 1 >src/b"
    change = await run(setting)
    assert await setting.host.changed_paths(setting.base, change.head) == ("src/b",)


async def test_a_hanging_agent_is_stopped_and_its_work_is_kept(setting: Setting) -> None:
    setting.agent.script = "echo 1 >src/b; exec sleep 600"
    change = await run(setting, timeout=1.0)
    assert change.exit_code is None
    assert "limit" in change.problem
    assert await setting.host.read_file(change.head, "src/b") == b"1\n"


async def test_a_crash_of_the_agent_is_told_with_its_code(setting: Setting) -> None:
    setting.agent.script = "echo 1 >src/b; kill -9 $$"
    change = await run(setting)
    assert "[AGENT_CRASHED]" in change.problem
    assert len(change.commits) == 1
    setting.agent.script = "exit 3"
    assert "exit code 3" in (await run(setting, attempt="a2")).problem


async def test_errors_of_the_model_are_told_without_secrets(setting: Setting) -> None:
    setting.agent.answer = AgentAnswer("", "budget of key hunter22 exceeded", "MODEL_BUDGET")
    change = await run(setting)
    assert change.problem == "[MODEL_BUDGET] budget of key *** exceeded"


async def test_submodules_that_appear_are_told(setting: Setting) -> None:
    own = "git -c user.name=a -c user.email=a@b commit -qm x"
    setting.agent.script = f"git update-index --add --cacheinfo 160000,{setting.base},src/sub; mkdir src/sub; {own}"
    change = await run(setting)
    assert change.problem == "became submodules, so that their files are not in the change: src/sub"


async def test_rework_starts_from_the_integrated_head_in_the_same_workshop(setting: Setting) -> None:
    setting.agent.script = "echo 1 >src/b; echo ignored >>.git/info/exclude; echo cache >ignored"
    first = await run(setting)
    other = setting.work.commit("other", {"src/other": "1\n"})
    await setting.host.fetch(setting.spec(setting.record()).source.remote, ["trunk"])
    merged = await setting.host.merge({"x": first.head, "y": other}, setting.base)
    record = setting.record("pm-one", merged.head, "atelier/1", task_id="rework")
    setting.agent.script = "cat src/other src/b ignored >src/c"
    change = await run(setting, record, "a2")
    assert change.base == merged.head
    assert await setting.host.read_file(change.head, "src/c") == b"1\n1\ncache\n"
    assert await setting.host.ref("refs/heads/atelier/1") == change.head
    assert await setting.host.commits(merged.head, change.head) == change.commits


async def test_an_empty_repository_gets_its_first_commit(setting: Setting) -> None:
    setting.agent.script = "mkdir -p src; echo 1 >src/b"
    change = await run(setting, setting.record(start=""))
    assert (change.base, len(change.commits), change.problem) == ("", 1, "")
    nothing = await run(setting, setting.record("pm-none", start=""), "a2")
    setting.agent.script = ":"
    idle = await run(setting, setting.record("pm-idle", start=""), "a3")
    assert (idle.head, nothing.head != "") == ("", True)


async def test_tasks_run_at_the_same_time(setting: Setting) -> None:
    setting.agent.script = 'echo "$AGENT_HOME" >src/b'
    records = [setting.record(f"pm-{name}") for name in ("one", "two", "three")]
    changes = await asyncio.gather(*(run(setting, record, f"a-{record.name}") for record in records))
    assert len({change.head for change in changes}) == 3


async def test_attempts_and_tasks_may_have_any_name(setting: Setting) -> None:
    setting.agent.script = "echo 1 >src/b"
    change = await run(setting, attempt="$(touch /x); `a`\nAtelier-Attempt: other '\" é")
    assert (change.problem, len(change.commits)) == ("", 1)
