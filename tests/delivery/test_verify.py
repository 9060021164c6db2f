"""The repository's own tests: run on exactly one commit in a fresh clone, once, with secrets masked."""

from __future__ import annotations

import base64

import pytest
from pydantic import SecretStr

from atelier_dagster.delivery import verify
from atelier_dagster.factory.change import TestReport, TestStatus
from atelier_dagster.factory.errors import Unavailable
from atelier_dagster.ports import GitRemote
from tests.support.delivery import Setting


async def check(
    setting: Setting, script: str | None, exec_id: str = "t1", timeout: float = 30, start: str | None = None
) -> TestReport:
    """Commit a test script (not executable) and verify that commit."""
    head = setting.work.commit("tests", {".devcontainer/test.sh": script} if script is not None else {"x": "y"})
    await setting.host.fetch(GitRemote(str(setting.work.path)), ["trunk"])
    record = setting.record(start=start)
    return await verify(
        setting.workshops,
        setting.host,
        setting.store,
        spec=setting.spec(record),
        head=head,
        exec_id=exec_id,
        timeout=timeout,
        tail=100,
        secrets=[SecretStr("hunter22/+"), SecretStr("hunter22"), SecretStr("x")],
    )


async def test_passing_tests_say_so_with_their_whole_output(setting: Setting) -> None:
    report = await check(setting, "echo out; echo err >&2; cat src/a; git log --oneline | wc -l; pwd")
    assert (report.status, report.exit_code, report.head) == (TestStatus.PASSED, 0, setting.work.head)
    assert report.output is not None
    output = (await setting.store.get_object(report.output)).decode()
    assert output.split("\n")[:4] == ["out", "err", "1", "2"]
    assert report.output_tail == output[-100:]


async def test_failing_tests_say_so(setting: Setting) -> None:
    report = await check(setting, "exit 7")
    assert (report.status, report.exit_code, report.timed_out) == (TestStatus.FAILED, 7, False)


async def test_no_tests_are_missing_and_need_no_workshop(setting: Setting) -> None:
    report = await check(setting, None)
    assert (report.status, report.exit_code, report.output) == (TestStatus.MISSING, None, None)
    assert setting.workshops.requests == []
    setting.work.write(".devcontainer/test.sh/is a directory", "")
    assert (await check(setting, None)).status is TestStatus.MISSING


async def test_hanging_tests_are_stopped_and_count_as_failed(setting: Setting) -> None:
    report = await check(setting, "echo started; exec sleep 600", timeout=1)
    assert (report.status, report.exit_code, report.timed_out) == (TestStatus.FAILED, None, True)
    assert report.output_tail == "started\n"


async def test_what_lies_in_the_checkout_is_not_tested(setting: Setting) -> None:
    await setting.workshops.create(setting.spec(setting.record()))
    checkout = setting.workshops.checkout("pm-one")
    (checkout / "src" / "a").write_text("changed by an agent")
    (checkout / ".git" / "hooks").mkdir(exist_ok=True)
    (checkout / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\nexit 1\n")
    report = await check(setting, "cat src/a; ls")
    assert report.output_tail == "1\nREADME\nsrc\n"


async def test_the_same_tests_are_run_once_and_again_under_another_id(setting: Setting) -> None:
    script = "date +%N"
    first = await check(setting, script)
    record = setting.record()
    again = await verify(
        setting.workshops, setting.host, setting.store,
        spec=setting.spec(record), head=first.head, exec_id="t1", timeout=30, tail=100,
    )  # fmt: skip
    assert again == first
    assert sum(request.id == "t1" for request in setting.workshops.requests) == 1
    other = await check(setting, script, "t2")
    assert other.output != first.output


async def test_a_workshop_that_lacks_the_history_gets_all_of_it(setting: Setting) -> None:
    first = await check(setting, "echo one")
    await setting.workshops.create(setting.spec(setting.record()))
    report = await check(setting, "cat src/a", "t2", start=first.head)
    assert (report.status, report.output_tail) == (TestStatus.PASSED, "1\n")


async def test_a_lost_connection_is_no_result(setting: Setting) -> None:
    def lose(request: object) -> None:
        raise Unavailable("lost")

    setting.workshops.before = lose
    with pytest.raises(Unavailable):
        await check(setting, "exit 0")


async def test_secrets_are_masked_in_every_form(setting: Setting) -> None:
    encoded = base64.b64encode(b"hunter22/+").decode()
    report = await check(setting, f"echo hunter22/+ hunter22 hunter22%2F%2B {encoded} x")
    assert report.output_tail == "*** *** *** ***== x\n"
    assert report.output is not None
    assert b"hunter" not in await setting.store.get_object(report.output)


async def test_nothing_stays_in_the_workshop(setting: Setting) -> None:
    await check(setting, "echo x >left")
    home = setting.workshops.root / "pm-one" / "home" / "verify"
    assert list(home.iterdir()) == []
