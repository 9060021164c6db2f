"""What needs several ports at once: delegate, integrate, verify, push, tell, clean up. Not here: when, or whether."""

from atelier_dagster.delivery._bundle import BundleLimits, BundleRejected
from atelier_dagster.delivery.repository import HostRepository, Merged

__all__ = ["BundleLimits", "BundleRejected", "HostRepository", "Merged"]
