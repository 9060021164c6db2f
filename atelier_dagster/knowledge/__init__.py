"""What earlier tickets taught: an index of how they were solved. Not here: writing the summaries."""

from atelier_dagster.knowledge._lance import LanceKnowledge

__all__ = ["LanceKnowledge"]
