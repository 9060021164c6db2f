"""A tiny journey for tests of what runs around the definitions: two assets of the real names, no work."""

from __future__ import annotations

import textwrap
from pathlib import Path

TINY = textwrap.dedent(
    """
    import time
    from pathlib import Path

    import dagster as dg

    tickets = dg.DynamicPartitionsDefinition(name="tickets")


    @dg.asset(partitions_def=tickets)
    def ticket(context):
        version = dg.DataVersion("a" * 64)
        metadata = {"sha256": "a" * 64, "tokens in": 7, "cost (USD)": 0.5, "final": True, "other": {"k": 1}}
        yield dg.Output(1, data_version=version, metadata=metadata)


    @dg.asset(partitions_def=tickets, config_schema={"source": str, "id": str})
    def approval(context):
        if context.op_config["id"] == "slow":
            for _ in range(600):
                time.sleep(0.1)
        return context.op_config["source"]


    def job(name, *assets):
        return dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(*assets),
            partitions_def=tickets,
            executor_def=dg.in_process_executor,
        )


    defs = dg.Definitions(
        assets=[ticket, approval],
        jobs=[job("deliver", "ticket"), job("release", "approval")],
        resources={"io_manager": dg.mem_io_manager},
        executor=dg.in_process_executor,
    )
    """
)


def write_tiny(directory: Path) -> str:
    """Write the definitions below `directory`; returns the module's name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tiny_definitions.py").write_text(TINY, "utf-8")
    return "tiny_definitions"
