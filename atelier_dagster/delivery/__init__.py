"""What needs several ports at once: delegate, integrate, verify, push, tell, clean up. Not here: when, or whether."""

from atelier_dagster.delivery._bundle import BundleLimits, BundleRejected
from atelier_dagster.delivery.cleanup import Cleanup, remove_workshops
from atelier_dagster.delivery.delegate import delegate, run_agent, tokens_of
from atelier_dagster.delivery.evidence import collect_evidence
from atelier_dagster.delivery.integrate import integrate
from atelier_dagster.delivery.repository import HostRepository, Merged
from atelier_dagster.delivery.verify import verify

__all__ = [
    "BundleLimits",
    "BundleRejected",
    "Cleanup",
    "HostRepository",
    "Merged",
    "collect_evidence",
    "delegate",
    "integrate",
    "remove_workshops",
    "run_agent",
    "tokens_of",
    "verify",
]
