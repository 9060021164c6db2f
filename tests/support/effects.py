"""Numbers every outside effect of a run, and kills the run's process with SIGKILL at the ones that are armed.

For processes that only serve tests: it wraps the adapters' methods in place.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from sqlalchemy import event as sql_event
from sqlalchemy.engine import Connection, Engine

from atelier_dagster.artifacts import DirectoryStore
from atelier_dagster.delivery import HostRepository
from atelier_dagster.forges import LocalForge, LocalTracker
from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.knowledge import LanceKnowledge
from atelier_dagster.ports import ExecRequest
from atelier_dagster.workshops import LocalWorkshops

When = Literal["before", "during", "late", "after"]

KINDS = ("tracker", "forge", "workshops", "agent", "gateway", "store", "git", "knowledge", "materialize")


@dataclass(frozen=True, order=True)
class Point:
    """One outside effect of one step: the `nth` of its kind and label there."""

    step: str
    kind: str
    label: str
    nth: int

    def __str__(self) -> str:
        return f"{self.step}: {self.kind} {self.label}#{self.nth}"


@dataclass(frozen=True, order=True)
class Crash:
    """Where a process is to die. `tick` counts the moments inside the effect at which it can."""

    point: Point
    when: When
    tick: int = -1

    def __str__(self) -> str:
        return f"{self.when} {self.point}"


@dataclass
class _Effect:
    point: Point
    crash: Crash | None
    ticks: int = 0


@dataclass
class Watch:
    """What a process does outside, and where it is to die. Recorded as JSON lines in `journal`."""

    journal: Path
    fired: Path
    armed: Sequence[Crash]
    step: str = ""
    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    open: list[_Effect] = field(default_factory=list[_Effect])

    def begin(self, kind: str, label: str) -> _Effect:
        self.seen[self.step, kind, label] += 1
        point = Point(self.step, kind, label, self.seen[self.step, kind, label])
        effect = _Effect(point, next((crash for crash in self.armed if crash.point == point), None))
        self._die_if(effect, "before")
        self.open.append(effect)
        return effect

    def tick(self, effect: _Effect) -> None:
        """A moment inside an effect at which the process can die."""
        if effect.crash and effect.crash.when in ("during", "late") and effect.crash.tick == effect.ticks:
            self._die(effect.crash)
        effect.ticks += 1

    def tick_open(self) -> None:
        for effect in self.open[-1:]:
            self.tick(effect)

    def end(self, effect: _Effect) -> None:
        self.open.remove(effect)
        if effect.crash and effect.crash.when != "before":
            self._die(effect.crash)
        line = {**asdict(effect.point), "ticks": effect.ticks}
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _die_if(self, effect: _Effect, when: When) -> None:
        if effect.crash and effect.crash.when == when:
            self._die(effect.crash)

    def _die(self, crash: Crash) -> None:
        descriptor = os.open(self.fired, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, (json.dumps(asdict(crash)) + "\n").encode())
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # a thread may get here before the signal does


def install(watch: Watch) -> None:
    """Wrap everything through which this process reaches outside."""
    for kind, owner, labels in _PORTS:
        for name, label in labels.items():
            setattr(owner, name, _watched(watch, kind, getattr(owner, name), label))
    _watch_events(watch)

    def audit(name: str, _: Any) -> None:
        if name in ("os.link", "os.rename"):
            watch.tick_open()

    sys.addaudithook(audit)


def _watched(watch: Watch, kind: str, function: Any, label: Callable[[dict[str, Any]], str]) -> Any:
    signature = inspect.signature(function)

    async def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        named = label(given)
        effect = watch.begin("agent" if named.startswith("agent") else kind, named)
        try:
            result = await _Ticking(function(*args, **kwargs), lambda: watch.tick(effect))
        except BaseException:
            watch.open.remove(effect)
            raise
        watch.end(effect)
        return result

    return call


class _Ticking:
    """Awaits a coroutine, and ticks each time it goes on after having waited for something."""

    def __init__(self, coroutine: Any, tick: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._tick = tick

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coroutine.__await__()
        try:
            waits = next(inner)
            while True:
                try:
                    got = yield waits
                except BaseException as error:  # noqa: BLE001 - passed on
                    waits = inner.throw(error)
                else:
                    self._tick()
                    waits = inner.send(got)
        except StopIteration as done:
            return done.value


def _watch_events(watch: Watch) -> None:
    """Materializations are effects too; the start of a step says whose effects follow."""
    store = dg.DagsterInstance.handle_new_event

    def handle_new_event(self: dg.DagsterInstance, event: dg.EventLogEntry, **options: Any) -> None:
        happened = event.dagster_event
        kind = happened.event_type_value if happened else ""
        if happened and kind == "STEP_START":
            watch.step = happened.step_key or ""
            watch.seen.clear()
        if happened is None or kind != "ASSET_MATERIALIZATION":
            return store(self, event, **options)
        assert happened.asset_key is not None
        effect = watch.begin("materialize", happened.asset_key.path[-1])
        store(self, event, **options)
        return watch.end(effect)

    setattr(dg.DagsterInstance, "handle_new_event", handle_new_event)  # noqa: B010 - no assignment to a method

    def commit(_: Connection) -> None:
        watch.tick_open()

    sql_event.listen(Engine, "commit", commit)


def _named(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda _: name


def _marked(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: f"{name} {given['marker']}"


def _at(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: f"{name} {given['name'].rpartition('-')[2]}"


def _execution(given: dict[str, Any]) -> str:
    request: ExecRequest = given["request"]
    for prefix, name in (("git-", "git"), ("test-", "clone" if "-clone" in request.id else "tests")):
        if request.id.startswith(prefix):
            return name
    return "agent qa" if request.id.startswith("qa-") else "agent developer"


def _object(given: dict[str, Any]) -> str:
    kind, *parts = given["key"].split("/")
    if kind == "artifacts":
        return f"artifact {parts[1]}"
    if kind == "ledger":
        return f"ledger {json.loads(given['data'])['asset']}"
    if kind == "calls":
        return f"call {json.loads(given['data'])['role']}"
    return parts[-1] if kind == "attempts" else kind


_PORTS: tuple[tuple[str, type, dict[str, Callable[[dict[str, Any]], str]]], ...] = (
    ("tracker", LocalTracker, {"upsert_comment": _marked("comment"), "close_issue": _named("close")}),
    (
        "forge",
        LocalForge,
        {
            "open_pull_request": _named("open"),
            "merge": _named("merge"),
            "upsert_pull_request_comment": _marked("comment"),
        },
    ),
    (
        "workshops",
        LocalWorkshops,
        {
            "create": lambda given: f"create {given['spec'].name.rpartition('-')[2]}",
            "wait_running": _at("wait"),
            "suspend": _at("suspend"),
            "delete": _at("delete"),
            "put_file": _at("put"),
            "exec": _execution,
        },
    ),
    ("gateway", OpenAIGateway, {"chat": lambda given: given["role"]}),
    ("store", DirectoryStore, {"put_if_absent": _object}),
    (
        "git",
        HostRepository,
        {
            name: _named(name)
            for name in ("fetch", "push", "import_bundle", "set_ref", "delete_ref", "merge", "update_with_base")
        },
    ),
    ("knowledge", LanceKnowledge, {"add": _named("add")}),
)
"""Kind of effect, the adapter, and its methods that change something outside, each with what tells calls apart."""
