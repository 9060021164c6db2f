"""The index of past resolutions as a resource."""

from __future__ import annotations

from typing import Any

import dagster as dg

from atelier_dagster.knowledge import LanceKnowledge
from atelier_dagster.ports import KnowledgeIndex
from resources.llm import LlmResource


class KnowledgeResource(dg.ConfigurableResource[Any]):
    """A LanceDB directory. `enabled` False: nothing is remembered."""

    uri: str
    llm: LlmResource
    enabled: bool = True

    def index(self) -> KnowledgeIndex | None:
        """The index, or None when it is off."""
        if not self.enabled:
            return None
        if not self.llm.embedding_model:
            return LanceKnowledge(self.uri)
        return LanceKnowledge(self.uri, self.llm.gateway().embed, self.llm.embedding_model)
