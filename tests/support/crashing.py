"""Spreads crashes over journeys, lets each journey go on to its end, and says what it lost or did twice."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from atelier_dagster.artifacts.audit import verify
from atelier_dagster.delivery.consult import CallRecord
from atelier_dagster.factory.change import Ending
from atelier_dagster.factory.routing import DoneStep, Policy, RunStep, WaitKind, WaitStep, next_step
from atelier_dagster.factory.ticket import TicketKey
from tests.support.effects import Crash, Point
from tests.support.floor import Floor, RunEnd
from tests.support.model import ModelServer, role_of

AT_ONCE = 3
"""Journeys."""
_KILLS = 4
"""Crashes of one step in one journey."""
_PATIENT = Policy(max_failures=1000)
"""So many crashes in a row would make a ticket wait for a human; here it goes on after each as after the first."""
_RUNS = 120


def crashes_of(points: Mapping[Point, int]) -> list[Crash]:
    """Every way to die at these effects.

    Right before an effect the world is as it was right after the one before it, so `before` is tried for the first
    effect of a step, and in the step whose effects run at the same time.
    """
    found: list[Crash] = []
    step = ""
    for point, ticks in points.items():
        if point.step != step or point.step == "reviews":
            found.append(Crash(point, "before"))
        step = point.step
        if ticks:
            found.append(Crash(point, "during", (ticks - 1) // 2))
        if ticks > 2 and point.kind in ("agent", "forge", "git"):
            found.append(Crash(point, "late", ticks - 1))
        found.append(Crash(point, "after"))
    return found


@dataclass
class Plan:
    """Crashes that no journey has tried yet, and those that were tried."""

    pending: dict[str, list[Crash]]
    tried: list[Crash] = field(default_factory=list[Crash])
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, crashes: Sequence[Crash]) -> Plan:
        """All of them, by step."""
        pending: dict[str, list[Crash]] = {}
        for crash in crashes:
            pending.setdefault(crash.point.step, []).append(crash)
        return cls(pending)

    def take(self) -> dict[str, list[Crash]]:
        """Crashes for one journey: of each step early and late ones, so that repetitions still come to the later."""
        with self.lock:
            taken: dict[str, list[Crash]] = {}
            for step, crashes in self.pending.items():
                stride = max(1, -(-len(crashes) // _KILLS))
                if chosen := crashes[::stride]:
                    taken[step] = list(chosen)
                    self.pending[step] = [crash for crash in crashes if crash not in chosen]
            return taken

    def give_back(self, crashes: Sequence[Crash]) -> None:
        """Crashes that a journey did not come to: first in the next one."""
        with self.lock:
            for crash in crashes:
                self.pending.setdefault(crash.point.step, []).insert(0, crash)


@dataclass
class Journey:
    """One ticket, its crashes, and what was found at its end."""

    key: TicketKey
    fired: list[Crash] = field(default_factory=list[Crash])
    lost: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Question -> how often it had been asked when a process died without having kept the answer."""
    problems: list[str] = field(default_factory=list[str])


@dataclass
class Gauntlet:
    """Runs journeys on one floor until every crash was tried."""

    floor: Floor
    model: ModelServer
    plan: Plan
    journeys: list[Journey] = field(default_factory=list[Journey])

    def run(self) -> Sequence[Journey]:
        """All of them, a few at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for worker in [pool.submit(self._work, number) for number in range(AT_ONCE)]:
                worker.result()
        return self.journeys

    def _work(self, number: int) -> None:
        count, unreached = 0, 0
        while armed := self.plan.take():
            journey = Journey(self.floor.ticket(name := f"crash-{number}-{count}", f"Add a feature to {name}"))
            count += 1
            self.journeys.append(journey)
            left = self._go(journey, armed)
            unreached = unreached + 1 if left else 0
            if unreached > 3:
                journey.problems.append(f"never reached: {', '.join(map(str, left))}")
            else:
                self.plan.give_back(left)
            journey.problems += self._faults(journey)

    def _go(self, journey: Journey, armed: dict[str, list[Crash]]) -> list[Crash]:
        """To the end of the cycle; gives the crashes that were not come to."""
        key, floor = journey.key, self.floor
        decision = ""
        end: RunEnd | None = None
        for _ in range(_RUNS):
            crashes = [crash for crashes in armed.values() for crash in crashes]
            history = floor.history(key)
            step = next_step(history, _PATIENT)
            if isinstance(step, DoneStep):
                break
            if isinstance(step, RunStep):
                _, end = floor.follow(key, crashes, _PATIENT)
            elif step.kind is WaitKind.NOT_STARTED:
                end = floor.start(key, crashes)
            elif step.kind is WaitKind.APPROVAL and not decision:
                decision = floor.decide(key)
                end = floor.release(key, decision, crashes)
            else:
                journey.problems.append(f"waits for a human: {step}")
                break
            self._note(journey, armed, end)
        else:
            journey.problems.append(f"did not end within {_RUNS} runs")
        return [crash for crashes in armed.values() for crash in crashes]

    def _note(self, journey: Journey, armed: dict[str, list[Crash]], end: RunEnd | None) -> None:
        if end is None or end.ok:
            return
        if end.crash is None:
            journey.problems.append(f"a run failed by itself: {end.log[-3000:]}")
            return
        journey.fired.append(end.crash)
        self.plan.tried.append(end.crash)
        armed[end.crash.point.step].remove(end.crash)
        answered = self._answered(journey.key)
        asked = self._asked(journey.key)
        journey.lost.update({question: count for question, count in asked.items() if question not in answered})

    def _asked(self, key: TicketKey) -> Counter[tuple[str, str]]:
        """How often each question, a role and its prompt, was asked."""
        title = f"Add a feature to {key.repo.name}\n"
        return Counter(question for question in list(self.model.asked) if title in question[1])

    def _answered(self, key: TicketKey) -> set[tuple[str, str]]:
        """Questions whose answer is kept."""
        calls = self.floor.home / "artifacts" / "calls" / key.partition
        records = [CallRecord.model_validate_json(path.read_bytes()) for path in calls.glob("*.json")]
        return {(role_of(record.system), record.user) for record in records}

    # ------------------------------------------------------------------------------------------------- its end

    def _faults(self, journey: Journey) -> Iterator[str]:
        if journey.problems:
            return
        yield from self._ending(journey)
        yield from self._money(journey)
        yield from self._forge(journey)
        yield from self._evidence(journey)
        yield from self._left_over(journey)

    def _ending(self, journey: Journey) -> Iterator[str]:
        outcome = self.floor.history(journey.key).current("outcome")
        if outcome is None or outcome.artifact.value.ending is not Ending.MERGED:
            yield f"ended as {outcome and outcome.artifact.value}"
        if asyncio.run(self.floor.tracker.get_issue(journey.key)).is_open:
            yield "the ticket is still open"

    def _money(self, journey: Journey) -> Iterator[str]:
        """Each agent was run once, and no question was asked again whose answer had been kept."""
        for name, count in self.floor.executions(journey.key).items():
            if count != 1:
                yield f"the agent in {name} was run {count} times"
        if len(self.floor.executions(journey.key)) != 2:
            yield f"agents ran in {set(self.floor.executions(journey.key))}"
        for question, count in self._asked(journey.key).items():
            if count != 1 + journey.lost.get(question, 0):
                yield f"{question[0]} was asked {count} times, {journey.lost.get(question, 0)} of them in vain"

    def _forge(self, journey: Journey) -> Iterator[str]:
        place = self.floor.home / "forge" / "test" / journey.key.repo.name
        branches = _git(place / "repo.git", "for-each-ref", "--format=%(refname)")
        if branches != ["refs/heads/atelier/1", "refs/heads/main"]:
            yield f"the forge has {branches}"
        commits = _git(place / "repo.git", "rev-list", "--first-parent", "main")
        merges = _git(place / "repo.git", "rev-list", "--merges", "main")
        if len(commits) != 2 or len(merges) != 1:
            yield f"{len(commits)} commits and {len(merges)} merges on main"
        if (pulls := [path.name for path in (place / "pulls").glob("[0-9]*.md")]) != ["1.md"]:
            yield f"pull requests: {pulls}"
        markers = Counter(
            (path.parts[-4:-1], *re.findall(r"^marker: (.*)$", path.read_text(), re.MULTILINE))
            for path in place.glob("*/*/comments/*.md")
        )
        said = {marker[1] for marker in markers}
        if any(count > 1 for count in markers.values()) or not {"atelier:pull-request", "atelier:qa-1"} <= said:
            yield f"comments: {dict(markers)}"

    def _evidence(self, journey: Journey) -> Iterator[str]:
        audit = asyncio.run(verify(self.floor.store.objects, journey.key.partition))
        if not audit.intact:
            yield f"broken: {audit.broken}"
        if audit.unrecorded:
            yield f"stored, and in no ledger: {audit.unrecorded}"
        materialized = {entry.sha256 for entry in self.floor.history(journey.key).entries}
        if lost := materialized - {entry.sha256 for entry in audit.entries}:
            yield f"materialized, and in no ledger: {lost}"

    def _left_over(self, journey: Journey) -> Iterator[str]:
        names = [status.name for status in asyncio.run(self.floor.workshops.list(ticket=journey.key.partition))]
        if [name.rpartition("-")[2] for name in names] != ["qa"]:
            yield f"workshops that are left: {names}"
        repository = self.floor.home / "repositories/local/test" / f"{journey.key.repo.name}.git"
        scratch = _git(repository, "for-each-ref", "--format=%(refname)", "refs/atelier")
        if scratch:
            yield f"references that were only for a moment: {scratch}"
        for name in names:
            asyncio.run(self.floor.workshops.delete(name))
        # a removal that was killed leaves its rest to the next one
        if trash := list((self.floor.home / "workshops" / ".trash").glob(f"*{journey.key.slug}*/*")):
            yield f"remains of removed workshops: {trash}"


def _git(directory: object, *argv: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(directory), *argv], capture_output=True, text=True, check=False, timeout=60)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


__all__ = ["Crash", "Gauntlet", "Journey", "Plan", "Point", "WaitStep", "crashes_of"]
