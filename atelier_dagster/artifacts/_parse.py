"""Which model an asset's value has, for reading it back. Belongs here: the table. Not here: what values mean."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from atelier_dagster.factory import approval, change, plan, ticket, verdict
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.lineage import Artifact

VALUE_TYPES: dict[str, type[BaseModel]] = {
    "ticket": ticket.Ticket,
    "analysis": ticket.Analysis,
    "plan": plan.Plan,
    "greenfield_spec": plan.GreenfieldSpec,
    "architecture_review": plan.ArchitectureReview,
    "plan_document": plan.PlanDocument,
    "approved_plan": plan.ApprovedPlan,
    "workshops": change.Campaign,
    "changes": change.Changes,
    "integration": change.Integration,
    "diff": change.DiffStat,
    "test_report": change.TestReport,
    "tested_diff": change.TestedDiff,
    "code_review": verdict.Review,
    "security_review": verdict.Review,
    "ops_review": verdict.Review,
    "review_gate": change.ReviewGate,
    "pull_request": change.PullRequest,
    "approval": approval.Approval,
    "merge": change.Merge,
    "knowledge": change.Knowledge,
    "qa_report": change.QaReport,
    "outcome": change.Outcome,
}


class _Named(BaseModel):
    asset: str


def parse_artifact(data: bytes) -> Artifact[Any]:
    """The artifact in stored bytes. Raises `InvalidInput` for an unknown asset, `ValidationError` for a wrong form."""
    asset = _Named.model_validate_json(data).asset
    if asset not in VALUE_TYPES:
        raise InvalidInput(f"there is no asset {asset[:80]!r}", fix="read it with the version that wrote it")
    return Artifact[VALUE_TYPES[asset]].model_validate_json(data)
