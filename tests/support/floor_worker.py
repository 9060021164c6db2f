"""A process that has the definitions loaded and forks one child for each run it is asked for. Started by `floor`.

Standard input stays open for as long as it is wanted. One connection a run: an order as a line of JSON, then a line
with the child's wait status when it has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

_NOT_BEFORE_A_FORK = ("__mp_main__", "tests.", "lance", "pyarrow")
"""What tests replace in a child, and libraries that start threads when they are imported."""


def main(address: str) -> None:
    """Serve until standard input ends."""
    from atelier_dagster.definitions import defs

    jobs = {name: defs.resolve_job_def(name) for name in ("deliver", "release", "close")}
    jobs["__ASSET_JOB"] = defs.resolve_implicit_global_asset_job_def()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would break the child"
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        warm = False
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    conn, _ = listener.accept()
                    pid = _fork(conn, jobs)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, conn))
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    pid, conn = key.data
                    _, status = os.waitpid(pid, 0)
                    with conn:
                        conn.sendall(f"{status}\n".encode())
                    if not warm:
                        warm = _import_what_a_run_imports(Path(address).with_name("modules"))


def _import_what_a_run_imports(names: Path) -> bool:
    """Later children find it in memory. True when a run has told what it is."""
    if not names.exists():
        return False
    for name in names.read_text().splitlines():
        if not name.startswith(_NOT_BEFORE_A_FORK):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would break the child"
    return True


def _fork(conn: socket.socket, jobs: dict[str, Any]) -> int:
    with conn.makefile("r") as reader:
        order = json.loads(reader.readline())
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _work(order, jobs[order["job"]])
            Path(order["modules"]).write_text("\n".join(sys.modules))
        except Exception:  # noqa: BLE001 - as the interpreter would
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def _work(order: dict[str, Any], job: Any) -> int:
    """One run in this process, as a run worker has one: 0 for success."""
    import dagster as dg

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _watch(order)
    with dg.DagsterInstance.from_config(order["dagster_home"]) as instance:
        result = job.execute_in_process(
            run_config={**order["run_config"], "loggers": {"console": {"config": {"log_level": "WARNING"}}}},
            instance=instance,
            partition_key=order["partition"],
            asset_selection=[dg.AssetKey(asset) for asset in order["assets"]],
            tags=order["tags"],
            run_id=order["run_id"],
            raise_on_error=False,
        )
    return 0 if result.success else 1


def _watch(order: dict[str, Any]) -> None:
    from tests.support.effects import Crash, Point, Watch, install

    _keep_executions(Path(order["workshops"]), Path(order["executions"]))
    armed = [Crash(Point(**crash["point"]), crash["when"], crash["tick"]) for crash in order["armed"]]
    install(Watch(Path(order["journal"]), Path(order["fired"]), armed))


def _keep_executions(workshops: Path, kept: Path) -> None:
    """What an agent noted about its executions is kept when its workshop is removed."""
    from atelier_dagster.workshops import LocalWorkshops

    delete = LocalWorkshops.delete

    async def keep_and_delete(self: LocalWorkshops, name: str) -> None:
        noted = workshops / name / "data/home/executions"
        if noted.exists():
            kept.mkdir(exist_ok=True)
            (kept / name).write_bytes(noted.read_bytes())
        await delete(self, name)

    LocalWorkshops.delete = keep_and_delete


if __name__ == "__main__":
    main(sys.argv[1])
