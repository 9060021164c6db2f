"""Budgets and who may decide, as a resource, so that a run's configuration shows what it was held to."""

from __future__ import annotations

from typing import Any, Literal

import dagster as dg

from atelier_dagster.factory.routing import Policy


class PolicyResource(dg.ConfigurableResource[Any]):
    """What routing and approval follow."""

    architecture_redos: int = 3
    correction_redos: int = 3
    review_redos: int = 3
    plan_review: Literal["auto", "human"] = "auto"
    label: str = "atelier"
    authors: list[str] = []
    approvers: list[str] = []
    bot: str = "atelier[bot]"
    allow_ui_approval: bool = False
    workshop_ttl_hours: float = 72.0

    def policy(self) -> Policy:
        """The part that routing wants."""
        return Policy(
            architecture_redos=self.architecture_redos,
            correction_redos=self.correction_redos,
            review_redos=self.review_redos,
            plan_review=self.plan_review,
        )
