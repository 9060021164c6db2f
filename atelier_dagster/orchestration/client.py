"""A small client of Dagster's GraphQL API: what the command line asks of a running webserver, without Dagster imported.

Source: https://docs.dagster.io/api/graphql (the public mutations `launchRun`, `addDynamicPartition`, `terminateRun`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

import httpx

from atelier_dagster.factory.errors import NotFound, Refused, TimedOut, Unavailable
from atelier_dagster.orchestration import tags
from atelier_dagster.orchestration.orders import RunOrder

LOCATION = "atelier"
REPOSITORY = "__repository__"
ACTIVE = ("NOT_STARTED", "QUEUED", "STARTING", "STARTED", "CANCELING", "MANAGED")
"""Statuses of a run that may still do something."""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")

_START_IT = "start it with `atelier dev`, or set ATELIER_DAGSTER_URL to where it is"
_RUN = "fragment run on Run { runId jobName status creationTime startTime endTime tags { key value } }"


@dataclass(frozen=True)
class RunState:
    """A run as the webserver knows it. Times are seconds since the epoch; 0 where there is none yet."""

    run_id: str
    job: str
    status: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    created: float = 0.0
    started: float = 0.0
    ended: float = 0.0

    @property
    def is_active(self) -> bool:
        """Whether it may still do something."""
        return self.status in ACTIVE


@dataclass(frozen=True)
class Materialization:
    """One materialization of one ticket's asset."""

    asset: str
    sha256: str
    run_id: str
    timestamp: float
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Label -> text, number or truth value; other kinds of metadata are left out."""


@dataclass(frozen=True)
class Daemon:
    """One of the daemons, and whether it has been heard of lately."""

    kind: str
    required: bool
    healthy: bool


class DagsterClient:
    """Asks one webserver. Every call has a time limit, and raises `Unavailable` when nobody answers."""

    def __init__(
        self, url: str, *, location: str = LOCATION, timeout: float = 30.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._location = location
        self._http = httpx.Client(base_url=self.url, timeout=timeout, transport=transport, trust_env=False)

    def __enter__(self) -> DagsterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    # ------------------------------------------------------------------------------------------------- the server

    def is_up(self, timeout: float = 2.0) -> bool:
        """Whether a Dagster webserver answers there."""
        try:
            answer = self._http.get("/server_info", timeout=timeout)
            return answer.is_success and "dagster_webserver_version" in answer.json()
        except (httpx.HTTPError, ValueError):
            return False

    def load_error(self) -> str | None:
        """Why the code location cannot be used, "" when it is loaded, None while it loads."""
        query = """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus locationOrLoadError {
            __typename ... on PythonError { message } } } } ... on PythonError { message } } }"""
        found = self._ask(query)["workspaceOrError"]
        for entry in found.get("locationEntries", ()):
            if entry["name"] != self._location:
                continue
            if entry["loadStatus"] != "LOADED" or entry["locationOrLoadError"] is None:
                return None
            loaded = entry["locationOrLoadError"]
            return loaded["message"] if loaded["__typename"] == "PythonError" else ""
        return found.get("message") or f"the webserver has no code location {self._location!r}"

    def daemons(self) -> Sequence[Daemon]:
        """Every daemon that the instance knows."""
        query = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"
        found = self._ask(query)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return [Daemon(d["daemonType"], bool(d["required"]), bool(d["healthy"])) for d in found]

    # ----------------------------------------------------------------------------------------------- tickets, runs

    def add_ticket(self, partition: str, definition: str = "tickets") -> bool:
        """Make a ticket's partition; False when there is one already."""
        query = """mutation($key: String!, $name: String!, $repository: RepositorySelector!) {
            addDynamicPartition(partitionKey: $key, partitionsDefName: $name, repositorySelector: $repository) {
                __typename ... on Error { message } } }"""
        variables = {"key": partition, "name": definition, "repository": self._repository()}
        answer = self._ask(query, variables)["addDynamicPartition"]
        if answer["__typename"] == "DuplicateDynamicPartitionError":
            return False
        _expect(answer, "AddDynamicPartitionSuccess", "the ticket cannot be taken in")
        return True

    def launch(self, order: RunOrder) -> RunState:
        """Queue a run. Raises `Refused` with the server's reason when it will not."""
        query = (
            """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
            ... on LaunchRunSuccess { run { ...run } }
            ... on RunConfigValidationInvalid { errors { message } }
            ... on Error { message } } }"""
            + _RUN
        )
        selector = {
            **self._repository(),
            "jobName": order.job,
            "assetSelection": [{"path": [asset]} for asset in order.assets],
        }
        marks = {**order.tags, tags.PARTITION: order.partition}
        params = {
            "selector": selector,
            "runConfigData": dict(order.run_config),
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in sorted(marks.items())]},
        }
        answer = self._ask(query, {"params": params})["launchRun"]
        _expect(answer, "LaunchRunSuccess", f"the run of {order.job} cannot be started")
        return _run(answer["run"])

    def runs(
        self, partition: str = "", *, job: str = "", statuses: Sequence[str] = (), limit: int = 50
    ) -> Sequence[RunState]:
        """Runs, newest first: of one ticket, of one job, in some statuses."""
        query = (
            """query($filter: RunsFilter!, $limit: Int!) { runsOrError(filter: $filter, limit: $limit) { __typename
            ... on Runs { results { ...run } } ... on Error { message } } }"""
            + _RUN
        )
        wanted: dict[str, Any] = {"pipelineName": job} if job else {}
        wanted |= {"statuses": list(statuses)} if statuses else {}
        wanted |= {"tags": [{"key": tags.PARTITION, "value": partition}]} if partition else {}
        answer = self._ask(query, {"filter": wanted, "limit": limit})["runsOrError"]
        _expect(answer, "Runs", "the runs cannot be listed")
        return [_run(found) for found in answer["results"]]

    def active_runs(self, partition: str) -> Sequence[RunState]:
        """Runs of a ticket that are queued or running."""
        return self.runs(partition, statuses=ACTIVE)

    def run(self, run_id: str) -> RunState:
        """One run. Raises `NotFound`."""
        query = (
            "query($id: ID!) { runOrError(runId: $id) { __typename ... on Run { ...run } ... on Error { message } } }"
            + _RUN
        )
        answer = self._ask(query, {"id": run_id})["runOrError"]
        _expect(answer, "Run", f"there is no run {run_id}")
        return _run(answer)

    def terminate(self, run_id: str) -> None:
        """Ask a run to end. Raises `NotFound`, or `Refused` when it has ended already."""
        query = """mutation($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename
            ... on TerminateRunFailure { message } ... on Error { message } } }"""
        answer = self._ask(query, {"id": run_id})["terminateRun"]
        _expect(answer, "TerminateRunSuccess", f"run {run_id} cannot be ended")

    # ---------------------------------------------------------------------------------------------------- assets

    def latest(self, asset: str, partition: str) -> Materialization | None:
        """The last materialization of a ticket's asset, current or not."""
        found = self.materializations((asset,), partition, limit=1)
        return found[0] if found else None

    def materializations(self, assets: Sequence[str], partition: str, limit: int = 100) -> Sequence[Materialization]:
        """The last `limit` materializations of each asset for one ticket, oldest first."""
        fields = "\n".join(
            f"a{i}: assetNodeOrError(assetKey: {{path: [$k{i}]}}) {{ ... on AssetNode {{ "
            f"assetMaterializations(partitions: [$partition], limit: $limit) {{ ...found }} }} }}"
            for i in range(len(assets))
        )
        keys = "".join(f", $k{i}: String!" for i in range(len(assets)))
        query = f"""query($partition: String!, $limit: Int!{keys}) {{ {fields} }}
            fragment found on MaterializationEvent {{ runId timestamp tags {{ key value }} metadataEntries {{ label
                ... on TextMetadataEntry {{ text }} ... on IntMetadataEntry {{ intValue }}
                ... on FloatMetadataEntry {{ floatValue }} ... on BoolMetadataEntry {{ boolValue }} }} }}"""
        variables = {"partition": partition, "limit": limit} | {f"k{i}": asset for i, asset in enumerate(assets)}
        answer = self._ask(query, variables)
        events = [
            _materialization(asset, event)
            for i, asset in enumerate(assets)
            for event in answer[f"a{i}"].get("assetMaterializations", ())
        ]
        return sorted(events, key=lambda event: event.timestamp)

    # ------------------------------------------------------------------------------------------------- internals

    def _repository(self) -> dict[str, str]:
        return {"repositoryLocationName": self._location, "repositoryName": REPOSITORY}

    def _ask(self, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._http.post("/graphql", json={"query": query, "variables": dict(variables or {})})
        except httpx.TimeoutException:
            raise TimedOut(f"Dagster's webserver at {self.url} does not answer in time", fix=_START_IT) from None
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise Unavailable(f"Dagster's webserver at {self.url} does not answer ({kind})", fix=_START_IT) from None
        try:
            body: object = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Unavailable(
                f"{self.url} answered {answer.status_code}, and not as Dagster's webserver does", fix=_START_IT
            )
        return self._data(cast("dict[str, Any]", body), answer.status_code)

    @staticmethod
    def _data(body: dict[str, Any], status: int) -> dict[str, Any]:
        if body.get("errors") or "data" not in body:
            errors = cast("list[dict[str, Any]]", body.get("errors") or [{"message": f"status {status}"}])
            message = str(errors[0].get("message"))[:500]
            raise Refused(f"Dagster's webserver refused the question: {message}", fix="use the version it is built for")
        return cast("dict[str, Any]", body["data"])


def _expect(answer: Mapping[str, Any], kind: str, what: str) -> None:
    """Raise unless the answer is of the wanted type."""
    got = answer["__typename"]
    if got == kind:
        return
    errors = [str(error["message"]) for error in answer.get("errors", ())]
    reason = "; ".join(errors) or str(answer.get("message") or got)
    lines = reason.strip().splitlines()
    message = f"{what}: {lines[0][:500] if lines else got}"
    if got.endswith(("NotFoundError", "NotFound")):
        raise NotFound(message, fix="see whether `atelier dev` loaded the definitions: its Deployment page says")
    raise Refused(message, fix="see the webserver's log below `logs` in Atelier's home")


def _run(found: Mapping[str, Any]) -> RunState:
    return RunState(
        run_id=str(found["runId"]),
        job=str(found["jobName"]),
        status=str(found["status"]),
        tags={str(tag["key"]): str(tag["value"]) for tag in found["tags"]},
        created=float(found["creationTime"] or 0.0),
        started=float(found["startTime"] or 0.0),
        ended=float(found["endTime"] or 0.0),
    )


def _materialization(asset: str, event: Mapping[str, Any]) -> Materialization:
    marks = {str(tag["key"]): str(tag["value"]) for tag in event["tags"]}
    values = {
        str(entry["label"]): next((entry[kind] for kind in _VALUES if entry.get(kind) is not None), None)
        for entry in event["metadataEntries"]
    }
    return Materialization(
        asset=asset,
        sha256=marks.get(tags.DATA_VERSION, ""),
        run_id=str(event["runId"]),
        timestamp=float(event["timestamp"]) / 1000,
        metadata={label: value for label, value in values.items() if value is not None},
    )


_VALUES = ("text", "intValue", "floatValue", "boolValue")
