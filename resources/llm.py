"""The model gateway as a resource."""

from __future__ import annotations

from typing import Any

import dagster as dg
from pydantic import SecretStr

from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.ports import Gateway


class LlmResource(dg.ConfigurableResource[Any]):
    """Any OpenAI-compatible URL; a LiteLLM proxy is the reference."""

    base_url: str = ""
    api_key: str = ""
    """Give it as `EnvVar`."""
    model: str = ""
    role_models: dict[str, str] = {}
    embedding_model: str = ""
    timeout: float = 300.0
    """Seconds for one answer, retries included."""

    def gateway(self) -> Gateway:
        """A client."""
        return OpenAIGateway(
            self.base_url,
            SecretStr(self.api_key) if self.api_key else None,
            self.model,
            role_models=self.role_models,
            embedding_model=self.embedding_model,
            timeout=self.timeout,
        )
