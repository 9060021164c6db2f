"""The course of a demo: prepare, start, watch, decide, sum up, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from atelier_dagster.cli import output, workbench
from atelier_dagster.cli.decide import decide
from atelier_dagster.cli.demo import ask, summary
from atelier_dagster.cli.demo.journey import Journey
from atelier_dagster.cli.demo.place import Model, Place, demo_home, fresh_home, make_place, only_demo, own_model
from atelier_dagster.cli.demo.show import Display
from atelier_dagster.cli.home import prepare_home
from atelier_dagster.cli.interrupts import one_interrupt
from atelier_dagster.cli.local import name_for
from atelier_dagster.cli.stack import Stack, StackOptions, check_port_free, free_port
from atelier_dagster.demo import DemoTicket, Expectation, catalogue, get_ticket
from atelier_dagster.factory.approval import Action
from atelier_dagster.factory.change import DiffStat
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused, TimedOut
from atelier_dagster.factory.ticket import RepoRef
from atelier_dagster.orchestration.client import DagsterClient
from atelier_dagster.ports import Preflight, Workshops
from atelier_dagster.settings import Settings, load_settings

_DEFAULT = "url-shortener"
_ALL = "all"
_LOOK_SECONDS = 0.5
_CLEAN_SECONDS = 60.0
_ANY_END = Expectation(reviews=())


@dataclass(frozen=True)
class Wish:
    """What the person asked for."""

    yes: bool = False
    tickets: tuple[str, ...] = ()
    leave: bool = False
    """Stop at the end instead of keeping the UI running."""
    port: int = 0
    keep: bool = False
    repository: str = ""
    title: str = ""
    body: str = ""
    time_limit: float = 1800.0
    """Seconds."""


@dataclass(frozen=True)
class Show:
    """One ticket to be shown."""

    ticket: DemoTicket
    source: str = ""
    """The user's repository; "" takes the ticket's sample."""


def list_journeys() -> None:
    """Names and titles."""
    rows = [(escape(name), escape(ticket.title)) for name, ticket in catalogue().items()]
    output.stdout().print(output.table(("journey", "ticket"), rows))


def run(wish: Wish) -> int:
    """The demo; its exit code: 0 only if every journey ended as its ticket should, 130 after Ctrl-C.

    However it ends, its processes and workshops are gone.
    """
    with one_interrupt() as interrupt:
        try:
            return _run(wish)
        except KeyboardInterrupt:
            return interrupt.exit_code


def _run(wish: Wish) -> int:
    if wish.port:
        check_port_free(wish.port)
    user = load_settings()
    shows = _shows(wish)
    console = output.stdout()
    home = demo_home(user)
    model = own_model(user)
    if wish.repository and model is None:
        raise InvalidInput(
            "the demo's script can only build its own tickets",
            fix="set ATELIER_LLM_BASE_URL and ATELIER_LLM_MODEL to run your repository",
        )
    with only_demo(home), _answering(model, console) as answering:
        ended = 0
        deadline = time.monotonic() + wish.time_limit
        for number, group in enumerate(_groups(shows)):
            if number == 0:
                clean_workshops(make_place(user, home, answering))
                fresh_home(home, keep=wish.keep)
            broken = group[0].ticket.broken_qa
            stage = _Stage(wish, make_place(user, home, answering, broken_qa=broken), answering, console, deadline)
            ended |= stage.perform(group)
        return ended


def _shows(wish: Wish) -> Sequence[Show]:
    if wish.repository:
        own = DemoTicket(
            name="your-ticket", title=wish.title, body=wish.body, labels=("atelier",), repository=None,
            broken_qa=False, expect=_ANY_END,
        )  # fmt: skip
        return [Show(own, wish.repository)]
    names = tuple(catalogue()) if _ALL in wish.tickets else (wish.tickets or (_DEFAULT,))
    return [Show(get_ticket(name)) for name in dict.fromkeys(names)]


def _groups(shows: Sequence[Show]) -> Sequence[Sequence[Show]]:
    """Tickets that can share one installation: a broken QA workshop is a setting of all."""
    groups = [[s for s in shows if not s.ticket.broken_qa], [s for s in shows if s.ticket.broken_qa]]
    return [group for group in groups if group]


@contextmanager
def _answering(own: Model | None, console: Console) -> Generator[Model]:
    """The user's model, or the script for as long as the demo runs."""
    if own is not None:
        console.print(f"Model: {escape(own.name)} at {escape(own.base_url)}")
        yield own
        return
    from atelier_dagster.demo.model import LABEL, ScriptedModel

    with ScriptedModel() as server:
        console.print(
            "[yellow]A script answers in place of a model[/] (set ATELIER_LLM_BASE_URL, _API_KEY, _MODEL to use one); "
            "all else is real: Dagster, git, the coding agent, its sandbox, the tests."
        )
        yield Model(server.url, LABEL, scripted=True)


class _Stage:
    """One installation with its tickets, from start to end."""

    def __init__(self, wish: Wish, place: Place, model: Model, console: Console, deadline: float) -> None:
        self._wish = wish
        self._place = place
        self._settings: Settings = place.settings
        self._model = model
        self._console = console
        self._deadline = deadline
        self._told = False
        self._expected: dict[str, Expectation] = {}

    def perform(self, shows: Sequence[Show]) -> int:
        """Start, watch to the end, sum up; 0 when everything ended as it should."""
        with asyncio.Runner() as runner:
            runner.run(check_ready(self._settings))
            journeys = [runner.run(self._write_ticket(show)) for show in shows]
            runner.run(prepare_home(self._settings.home))
            options = StackOptions(
                home=self._settings.home,
                port=self._wish.port or free_port(),
                environment=self._place.environment,
                directory=self._settings.home,
            )
            try:
                with Stack(options) as stack:
                    return self._on_stack(stack, runner, journeys)
            finally:
                clean_workshops(self._place)

    async def _write_ticket(self, show: Show) -> Journey:
        """Take the repository in, and write the ticket into the tracker: the sensors do the rest."""
        ticket = show.ticket
        repo = name_for(show.source) if show.source else RepoRef.parse(f"local/demo/{ticket.name}")
        await take_sample(self._settings, repo, show)
        issue = await workbench.local_tracker(self._settings).create_issue(
            repo, title=ticket.title, body=ticket.body, labels=ticket.labels
        )
        self._expected[ticket.name] = ticket.expect
        return Journey(ticket.name, issue.key, ticket.title)

    def _on_stack(self, stack: Stack, runner: asyncio.Runner, journeys: list[Journey]) -> int:
        with Display(self._console, journeys) as display:
            try:
                stack.start(lambda text: display.line(f"Dagster: {text}"))
                display.line(f"Dagster is ready: {stack.url}")
                self._follow(stack, runner, journeys, display)
            except BaseException:
                with contextlib.suppress(OSError):  # the terminal may be gone
                    display.line("stopping")
                cancel_runs(stack.url, journeys)
                raise
            finally:
                display.refresh()
            seconds = display.seconds
        code = self._sum_up(journeys, stack.url, seconds)
        self._linger(stack)
        return code

    def _follow(self, stack: Stack, runner: asyncio.Runner, journeys: list[Journey], display: Display) -> None:
        from atelier_dagster.cli.demo.watch import Watcher
        from atelier_dagster.cli.standing import open_instance

        store = workbench.artifact_store(self._settings)
        with open_instance(self._settings) as instance:
            watcher = Watcher(instance, store, self._settings.policy, journeys)
            while not all(journey.ended or journey.stuck for journey in journeys):
                stack.check()
                for journey, what in runner.run(watcher.look()):
                    display.news(journey, what)
                display.refresh()
                for journey in journeys:
                    if journey.subject:
                        self._decide(journey, runner, display)
                if time.monotonic() > self._deadline:
                    raise self._too_late(journeys, stack)
                time.sleep(_LOOK_SECONDS)

    def _decide(self, journey: Journey, runner: asyncio.Runner, display: Display) -> None:
        assert journey.subject is not None
        choice = self._choose(journey, runner, display)
        if choice is None:
            return
        journey.decided.add(journey.subject[1])
        if choice.action is None:
            display.line(f"{journey.name}: not decided; decide elsewhere: {self._elsewhere(journey)}")
            return
        decided = runner.run(decide(self._settings, journey.key, choice.action, reason=choice.reason))
        display.line(f"{journey.name}: {decided.action} of {decided.head[:12]}, {decided.note or 'it is judged now'}")

    def _choose(self, journey: Journey, runner: asyncio.Runner, display: Display) -> ask.Choice | None:
        if self._wish.yes:
            if journey.subject and journey.subject[0] == "pull_request":
                self._console.print(ask.describe_pull_request(journey), soft_wrap=True)
            return ask.Choice(Action.APPROVE, "approved by --yes")
        if self._console.is_terminal and sys.stdin.isatty():
            display.pause()
            try:
                store = workbench.artifact_store(self._settings)

                def read_diff(diff: DiffStat) -> bytes:
                    return runner.run(store.get_object(diff.text))

                return ask.ask(self._console, journey, read_diff)
            finally:
                display.resume()
        if not self._told:
            self._told = True
            display.line(f"{journey.name}: waits for your decision: {self._elsewhere(journey)}")
        return None

    def _elsewhere(self, journey: Journey) -> str:
        return f"ATELIER_HOME={self._settings.home} atelier approve '{journey.key}'"

    def _too_late(self, journeys: Sequence[Journey], stack: Stack) -> TimedOut:
        left = "; ".join(f"{j.name}: {j.in_words()}" for j in journeys if not (j.ended or j.stuck))
        return TimedOut(
            f"the demo did not end within {self._wish.time_limit:.0f} s ({left})",
            fix=f"read the logs in {stack.logs}, or give it more: --time-limit SECONDS",
        )

    def _sum_up(self, journeys: list[Journey], url: str, seconds: float) -> int:
        failed = False
        for journey in journeys:
            summary.show(self._console, journey, url, self._settings.home)
            expected = self._expected[journey.name]
            for text in summary.differences(journey, expected, exactly=self._model.scripted):
                failed = True
                output.stderr().print(f"[red]{escape(journey.name)}: {escape(text)}[/]", soft_wrap=True)
        summary.total(self._console, journeys, seconds, scripted=self._model.scripted)
        if not failed:
            self._console.print("[green]Every journey ended as it should.[/]")
        return int(failed)

    def _linger(self, stack: Stack) -> None:
        """Keep the UI for a person who wants to look around."""
        if self._wish.leave or not (self._console.is_terminal and sys.stdin.isatty()):
            return
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            self._console.input(f"\nLook around: {escape(stack.url)}. Press Enter to stop. ")


async def take_sample(settings: Settings, repo: RepoRef, show: Show) -> None:
    """The ticket's repository in the local forge: a sample, an empty one, or the user's."""
    forge = workbench.local_forge(settings)
    if show.source:
        await forge.init(repo, show.source)
        return
    if show.ticket.repository is None:
        await forge.init(repo)
        return
    from atelier_dagster.demo import repositories

    with tempfile.TemporaryDirectory(prefix="atelier-sample-") as scratch:
        bare = Path(scratch) / "sample.git"
        await asyncio.to_thread(repositories.build, show.ticket.repository, bare)
        await forge.init(repo, bare)


async def check_ready(settings: Settings) -> None:
    """Refuse at once what could only fail minutes later. Raises the first required check that fails, with its fix."""
    from atelier_dagster.cli.wiring import configured_resources

    resources = configured_resources(settings, ("agent", "workshops"))
    adapters: list[Preflight] = [resources.agent.agent(), resources.workshops.workshops()]
    found = await asyncio.gather(*(adapter.preflight() for adapter in adapters))
    for check in [check for part in found for check in part]:
        if not check.ok and check.required:
            raise InvalidInput(f"{check.name}: {check.detail}", fix=check.fix, code="NOT_READY")


def cancel_runs(url: str, journeys: Sequence[Journey]) -> None:
    """Ask what still runs to end: nobody will watch it."""
    with DagsterClient(url, timeout=5.0) as client, contextlib.suppress(AtelierError):
        for journey in journeys:
            for run_ in client.active_runs(journey.key.partition):
                with contextlib.suppress(NotFound, Refused):  # it has ended meanwhile
                    client.terminate(run_.run_id)


def clean_workshops(place: Place) -> None:
    """Remove the workshops of this home with all that runs in them."""
    if not (place.settings.home / "workshops").exists():
        return
    from atelier_dagster.cli.wiring import configured_resources

    async def clean() -> None:
        backend: Workshops = configured_resources(place.settings, ("workshops",)).workshops.workshops()
        async with asyncio.timeout(_CLEAN_SECONDS):
            await asyncio.gather(*(backend.delete(status.name) for status in await backend.list()))

    try:
        asyncio.run(clean())
    except (AtelierError, TimeoutError) as error:
        output.say(f"workshops in {place.settings.home} could not all be removed: {error}")
