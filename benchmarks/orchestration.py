"""What orchestration costs: a whole ticket with an instant model and an agent that writes one file at once.

Prints, as medians: `atelier submit` to pull request, label to pull request, approval to the end of QA, where the time
goes, and the ratio to the bare `execute_in_process` of the same assets.
Usage: `python -m benchmarks.orchestration [N]`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg

from atelier_dagster.factory.lineage import JOBS
from atelier_dagster.factory.ticket import TicketKey
from tests.support.installation import Installation, installation
from tests.support.model import ModelServer, model_server

FILES = {"README.md": "# Shop\n", ".devcontainer/test.sh": "echo ok\n"}


def materialized_at(house: Installation, key: TicketKey, asset: str) -> float:
    """When an asset of a ticket was last materialized; seconds since the epoch."""
    filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[key.partition])
    return house.instance.fetch_materializations(filters, limit=1).records[0].timestamp


def atelier(house: Installation, *argv: str) -> None:
    """Run a command of the command line, as a user does."""
    program = Path(sys.executable).with_name("atelier")
    environment = {**os.environ, **house.environment}
    subprocess.run([str(program), *argv], env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)


def submitted(house: Installation, name: str) -> tuple[TicketKey, float]:
    """`atelier submit` to pull request."""
    key = house.ticket(house.repository(name, FILES), name, "x", labels=())
    started = time.time()
    atelier(house, "submit", str(key))
    house.deliver(key)
    return key, materialized_at(house, key, "pull_request") - started


def labelled(house: Installation, name: str) -> tuple[TicketKey, float]:
    """Label to pull request, by the sensor."""
    key = house.ticket(house.repository(name, FILES), name, "x", labels=())
    started = time.time()
    asyncio.run(house.tracker.set_labels(key, ["atelier"]))
    house.deliver(key)
    return key, materialized_at(house, key, "pull_request") - started


def approved(house: Installation, key: TicketKey) -> float:
    """Approval to the end of QA."""
    started = time.time()
    atelier(house, "approve", str(key))
    house.wait_current(key, "qa_report")
    taken = materialized_at(house, key, "qa_report") - started
    house.wait_current(key, "outcome")
    return taken


def steps(house: Installation, key: TicketKey) -> dict[str, float]:
    """Seconds of each part of the ticket's deliver run."""
    run = house.instance.get_runs(dg.RunsFilter(job_name="deliver", tags={"dagster/partition": key.partition}))[-1]
    stats = {s.step_key: (s.end_time or 0) - (s.start_time or 0) for s in house.instance.get_run_step_stats(run.run_id)}
    record = house.instance.get_run_record_by_id(run.run_id)
    assert record is not None and record.start_time and record.end_time
    created = record.create_timestamp.timestamp()
    return {
        "queue and launch": record.start_time - created,
        "steps": sum(stats.values()),
        "between steps": record.end_time - record.start_time - sum(stats.values()),
        **dict(sorted(stats.items(), key=lambda item: -item[1])[:5]),
    }


def bare(model: ModelServer, house: Installation) -> float:
    """The same assets by `execute_in_process`, in this process, on an instance of its own."""
    home = Path(tempfile.mkdtemp(prefix="atelier-bare-"))
    os.environ.update({**house.environment, "ATELIER_HOME": str(home), "ATELIER_LLM_BASE_URL": model.url})
    from atelier_dagster.definitions import build_defs

    job = build_defs().resolve_job_def("deliver")
    other = Installation(
        home, house.stack, house.instance, type(house.forge)(home / "forge"), type(house.tracker)(home / "forge")
    )
    key = other.ticket(other.repository("bare", FILES), "bare", "x")
    (home / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(home / "dagster")) as instance:
        instance.add_dynamic_partitions("tickets", [key.partition])
        started = time.time()
        result = job.execute_in_process(
            partition_key=key.partition, instance=instance, asset_selection=[dg.AssetKey(a) for a in JOBS["deliver"]]
        )
        assert result.success
        return time.time() - started


def repeat(count: int, measure: Callable[[int], tuple[TicketKey, float]]) -> tuple[list[TicketKey], float]:
    """Keys, and the median of what was measured."""
    found = [measure(number) for number in range(count)]
    return [key for key, _ in found], statistics.median(seconds for _, seconds in found)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with model_server() as model, installation(model.url) as house:
        submitted(house, "warm-up")
        keys, by_hand = repeat(count, lambda n: submitted(house, f"submit-{n}"))
        _, by_label = repeat(count, lambda n: labelled(house, f"label-{n}"))
        qa = statistics.median(approved(house, key) for key in keys)
        alone = statistics.median(bare(model, house) for _ in range(count))
        print(f"atelier submit to pull request   {by_hand:6.2f} s   (aim: 8)")
        print(f"label to pull request            {by_label:6.2f} s   (aim: 12)")
        print(f"approval to the end of QA        {qa:6.2f} s   (aim: 8)")
        print(f"bare execute_in_process          {alone:6.2f} s")
        print(f"submit to pull request / bare    {by_hand / alone:6.2f}")
        print("where a submitted ticket's time goes:")
        for name, seconds in steps(house, keys[-1]).items():
            print(f"  {name:<20} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
