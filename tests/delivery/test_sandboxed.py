"""A whole delivery in a real sandboxed workshop: delegate, rework, verify, evidence, clean up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from atelier_dagster.delivery import collect_evidence, delegate, remove_workshops, verify
from atelier_dagster.factory.change import TaskChange, TestStatus, WorkshopRecord
from atelier_dagster.ports import Workshops
from atelier_dagster.workshops import LocalWorkshops
from tests.support.delivery import Setting

pytestmark = pytest.mark.service
TICKET = "local~demo~shop~1"


@pytest.fixture
async def workshops(tmp_path: Path) -> AsyncGenerator[Workshops]:
    workshops = LocalWorkshops(tmp_path / "real")
    yield workshops
    for status in await workshops.list():
        await workshops.delete(status.name)


async def run(setting: Setting, workshops: Workshops, record: WorkshopRecord, attempt: str) -> TaskChange:
    return await delegate(
        workshops,
        setting.agent,
        setting.host,
        setting.store,
        spec=setting.spec(record),
        record=record,
        prompt="Do it",
        attempt_id=attempt,
        model="m",
        timeout=60.0,
    )


async def test_a_delivery_from_start_to_end(setting: Setting, workshops: Workshops) -> None:
    record = setting.record()
    setting.agent.script = (
        "cat >src/b; mkdir .devcontainer; echo 'test -f src/b && echo fine' >.devcontainer/test.sh;"
        "printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit;"
        "mkdir .qa-evidence; echo '{}' >.qa-evidence/answer.json; ln -s /etc/passwd .qa-evidence/link"
    )
    change = await run(setting, workshops, record, "a1")
    assert (change.problem, change.out_of_scope) == ("", (".devcontainer/test.sh",))
    assert await run(setting, workshops, record, "a1") == change

    report = await verify(
        workshops, setting.host, setting.store,
        spec=setting.spec(record), head=change.head, exec_id="t1", timeout=60,
    )  # fmt: skip
    assert (report.status, report.output_tail) == (TestStatus.PASSED, "fine\n")

    kept, problems = await collect_evidence(workshops, setting.store, record.name, TICKET, 1)
    assert ([item.path for item in kept], problems) == ([".qa-evidence/answer.json"], [])

    elsewhere = setting.work.commit("elsewhere", {"src/other": "1\n"})
    await setting.host.fetch(setting.spec(record).source.remote, ["trunk"])
    merged = await setting.host.merge({"one": change.head, "two": elsewhere}, setting.base)
    rework = setting.record("pm-one", merged.head, "atelier/1", task_id="rework")
    await workshops.suspend(record.name)
    setting.agent.script = "cat src/other src/b >src/c"
    again = await run(setting, workshops, rework, "a2")
    assert await setting.host.read_file(again.head, "src/c") == b"1\nDo it"

    assert (await remove_workshops(workshops, TICKET)).removed == (record.name,)
    assert (await remove_workshops(workshops, TICKET)).removed == ()
