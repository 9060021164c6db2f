"""The GraphQL client against a real webserver on tiny definitions."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from atelier_dagster.cli.home import prepare_home
from atelier_dagster.cli.stack import Stack, StackOptions
from atelier_dagster.factory.errors import AtelierError, NotFound, Refused, Unavailable
from atelier_dagster.orchestration.client import DagsterClient, RunState
from atelier_dagster.orchestration.orders import RunOrder, decision_config, deliver_order, release_order
from tests.support.processes import free_ports
from tests.support.tiny import write_tiny

_LIMIT = 180.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[DagsterClient]:
    home = tmp_path_factory.mktemp("home")
    asyncio.run(prepare_home(home))
    module, (port,) = write_tiny(home / "code"), free_ports(1)
    paths = os.pathsep.join([str(Path.cwd()), str(home / "code")])
    wanted = StackOptions(
        home=home, port=port, module=module, directory=home / "code", environment={"PYTHONPATH": paths},
        start_timeout=_LIMIT,
    )  # fmt: skip
    with Stack(wanted) as stack:
        stack.start()
        with DagsterClient(stack.url) as client:
            yield client


def until(run: Callable[[], RunState], wanted: Callable[[RunState], bool]) -> RunState:
    """Ask until a run is as wanted."""
    pause, deadline = threading.Event(), time.monotonic() + _LIMIT
    while not wanted(found := run()):
        assert time.monotonic() < deadline, found
        pause.wait(0.1)
    return found


@pytest.mark.service
def test_a_ticket_is_taken_in_once_and_its_run_recorded(client: DagsterClient) -> None:
    partition = "local~acme~shop~1"
    assert client.add_ticket(partition)
    assert not client.add_ticket(partition)
    assert client.latest("ticket", partition) is None
    order = RunOrder(partition, "deliver", ("ticket",), tags={"atelier/reason": 'a "quoted" $reason'})
    launched = client.launch(order)
    assert launched.is_active
    assert launched.tags["atelier/reason"] == 'a "quoted" $reason'
    ended = until(lambda: client.run(launched.run_id), lambda run: not run.is_active)
    assert (ended.status, ended.job, ended.tags["dagster/partition"]) == ("SUCCESS", "deliver", partition)
    assert ended.created <= ended.started <= ended.ended
    made = client.latest("ticket", partition)
    assert made is not None
    assert (made.sha256, made.run_id) == ("a" * 64, launched.run_id)
    assert {"tokens in": 7, "cost (USD)": 0.5, "final": True}.items() <= made.metadata.items()
    assert client.latest("ticket", "local~acme~shop~2") is None
    assert [run.run_id for run in client.runs(partition, job="deliver")] == [launched.run_id]
    assert client.active_runs(partition) == []
    with pytest.raises(Refused):
        client.terminate(launched.run_id)


@pytest.mark.service
def test_a_run_that_goes_on_can_be_ended(client: DagsterClient) -> None:
    partition = "local~acme~shop~3"
    client.add_ticket(partition)
    config = decision_config("cli:slow")
    launched = client.launch(RunOrder(partition, "release", ("approval",), config))
    until(lambda: client.run(launched.run_id), lambda run: run.status == "STARTED")
    assert [run.run_id for run in client.active_runs(partition)] == [launched.run_id]
    client.terminate(launched.run_id)
    assert until(lambda: client.run(launched.run_id), lambda run: not run.is_active).status == "CANCELED"


@pytest.mark.service
def test_refusals_have_a_reason(client: DagsterClient) -> None:
    with pytest.raises(Refused, match="Missing required config"):
        client.launch(RunOrder("local~acme~shop~1", "release", ("approval",)))
    with pytest.raises(AtelierError, match="nonsense"):
        client.launch(RunOrder("local~acme~shop~1", "nonsense", ("ticket",)))
    with pytest.raises(NotFound):
        client.run("5d1c1b1c-0000-4000-8000-000000000000")
    with pytest.raises(NotFound):
        client.terminate("5d1c1b1c-0000-4000-8000-000000000000")


@pytest.mark.service
def test_the_server_tells_of_itself(client: DagsterClient) -> None:
    assert client.is_up()
    assert client.load_error() == ""
    assert {"SENSOR", "QUEUED_RUN_COORDINATOR"} <= {daemon.kind for daemon in client.daemons() if daemon.healthy}
    with DagsterClient(client.url, location="elsewhere") as other:
        assert "elsewhere" in str(other.load_error())


def test_nobody_there_is_unavailable_with_a_fix() -> None:
    with DagsterClient("http://127.0.0.1:9") as client:
        assert not client.is_up()
        with pytest.raises(Unavailable) as caught:
            client.add_ticket("local~a~b~1")
    assert "atelier dev" in caught.value.fix


@pytest.mark.parametrize(("status", "body"), [(500, "<html>"), (404, ""), (200, "[]"), (200, '"x"')])
def test_another_server_is_not_taken_for_dagster(httpserver: HTTPServer, status: int, body: str) -> None:
    httpserver.expect_request("/graphql").respond_with_data(body, status=status)
    httpserver.expect_request("/server_info").respond_with_data(body, status=status)
    with DagsterClient(httpserver.url_for("").rstrip("/")) as client:
        assert not client.is_up()
        with pytest.raises(AtelierError):
            client.daemons()


def test_orders_say_why_and_what_about() -> None:
    assert deliver_order("local~a~b~1", 2, "why").tags == {"atelier/reason": "why", "atelier/cycle": "2"}
    order = release_order("local~a~b~1", "cli", "cli-7", "f" * 64)
    assert order.run_config == {"ops": {"approval": {"config": {"source": "cli", "id": "cli-7"}}}}
    assert order.tags["atelier/subject"] == "f" * 64
    assert order.assets == ("approval", "merge", "knowledge", "qa_report")
