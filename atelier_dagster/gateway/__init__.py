"""Chat and embeddings over an OpenAI-compatible endpoint (LiteLLM is the reference). Not here: prompts and verdicts."""

from atelier_dagster.gateway._openai import OpenAIGateway

__all__ = ["OpenAIGateway"]
