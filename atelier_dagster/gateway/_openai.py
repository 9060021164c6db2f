"""An OpenAI-compatible endpoint. Belongs here: calls, retries, limits. Not here: prompts, or what errors mean."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from atelier_dagster.factory.errors import AtelierError, InvalidInput, ModelRefused, ModelUnavailable, NotFound
from atelier_dagster.gateway import _failures as failures
from atelier_dagster.gateway._answers import Draft, read_body, read_chunks
from atelier_dagster.gateway._failures import Failure, unavailable
from atelier_dagster.gateway._preflight import check_endpoint
from atelier_dagster.ports import ChatAnswer, ChatMessage, Check, ModelUpstream

if TYPE_CHECKING:
    from openai import AsyncOpenAI, Omit

R = TypeVar("R")

_CONNECT_WITHIN = 10.0
_LONGEST_PAUSE = 20.0
_EMBED_BATCH = 128


class OpenAIGateway:
    """A `Gateway` on one base URL. Imports its client when first called: that takes a second or two.

    `timeout` bounds a call with all its attempts, `idle_timeout` a server's silence, `backoff` is the first pause
    between attempts (all in seconds). A stream that breaks off, an empty answer, 408, 409, 425, 429, 5xx and lost
    connections are tried again, after `Retry-After` where given; everything else is final at once.
    """

    def __init__(
        self,
        base_url: str,
        api_key: SecretStr | None,
        model: str,
        *,
        role_models: Mapping[str, str] | None = None,
        embedding_model: str = "",
        timeout: float = 120.0,
        idle_timeout: float = 60.0,
        max_attempts: int = 4,
        backoff: float = 0.5,
    ) -> None:
        self._base_url = _check_url(base_url)
        self._api_key = api_key if api_key and api_key.get_secret_value() else None
        self._model = model
        self._role_models = dict(role_models or {})
        self._embedding_model = embedding_model
        self._timeout = timeout
        self._idle_timeout = idle_timeout
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._asks_usage = True

    def __repr__(self) -> str:
        return f"OpenAIGateway({self._base_url!r}, model={self._model!r})"

    @property
    def embedding_model(self) -> str:
        """Name of the embedding model, "" when there is none."""
        return self._embedding_model

    @property
    def workshop_upstream(self) -> ModelUpstream:
        """See `Gateway`."""
        return ModelUpstream(self._base_url, self._api_key, self._model)

    async def chat(self, role: str, messages: Sequence[ChatMessage]) -> ChatAnswer:
        """See `Gateway`."""
        started = time.monotonic()
        model = self._role_models.get(role) or self._model
        self._require(model)

        async def ask(client: AsyncOpenAI) -> ChatAnswer:
            draft = await self._stream(client, model, messages)
            return draft.finished(time.monotonic() - started)

        return await self._attempts(ask)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `Gateway`. Texts go in batches, each with retries and time limit of its own."""
        if not self._embedding_model:
            raise NotFound("no embedding model is configured", fix="set ATELIER_LLM_EMBEDDING_MODEL")
        self._require(self._embedding_model)
        vectors: list[Sequence[float]] = []
        for first in range(0, len(texts), _EMBED_BATCH):
            vectors += await self._embed_batch(list(texts[first : first + _EMBED_BATCH]))
        return vectors

    async def preflight(self) -> Sequence[Check]:
        """Whether address, key and model are set, and whether the endpoint lists the model."""
        return await check_endpoint(self._base_url, self._api_key, self._model)

    # --------------------------------------------------------------------------------------------------- calls

    async def _stream(self, client: AsyncOpenAI, model: str, messages: Sequence[ChatMessage]) -> Draft:
        """Streamed, so that a server that has fallen silent is told from one that is still writing.

        Chunks stay plain dictionaries: as the client's typed models they cost ten times more than all the rest.
        """
        import openai

        draft = Draft(model)
        body: dict[str, object] = {"model": model, "messages": [_wire(message) for message in messages], "stream": True}
        if self._asks_usage:
            body["stream_options"] = {"include_usage": True}
        try:
            stream = await client.post(
                "/chat/completions",
                body=body,
                cast_to=object,
                options={"headers": self._headers()},
                stream=True,
                stream_cls=openai.AsyncStream[object],
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if not self._asks_usage or "stream_options" not in str(error.body):
                raise
            self._asks_usage = False
            return await self._stream(client, model, messages)
        async with stream:
            headers = stream.response.headers
            draft.read_headers(headers)
            if "event-stream" in headers.get("content-type", "event-stream"):
                await read_chunks(draft, aiter(stream))
            else:
                read_body(draft, await stream.response.aread())
        return draft

    async def _embed_batch(self, texts: list[str]) -> list[Sequence[float]]:
        async def ask(client: AsyncOpenAI) -> list[Sequence[float]]:
            answer = await client.embeddings.create(
                model=self._embedding_model, input=texts, encoding_format="float", extra_headers=self._headers()
            )
            vectors = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
            if len(vectors) != len(texts) or not all(vectors):
                raise unavailable(f"the model endpoint gave {len(vectors)} embeddings for {len(texts)} texts")
            return list(vectors)

        return await self._attempts(ask)

    async def _attempts(self, ask: Callable[[AsyncOpenAI], Awaitable[R]]) -> R:
        import stamina

        deadline = time.monotonic() + self._timeout
        last: list[Failure] = []

        def pause(error: Exception) -> bool | float:
            if not isinstance(error, Failure) or not error.error.transient:
                return False
            last[:] = [error]
            if error.wait is None:
                return True
            # a wait beyond the limit would only end in a less telling error
            return error.wait if time.monotonic() + error.wait < deadline else False

        retries = stamina.retry_context(
            on=pause,
            attempts=self._max_attempts,
            timeout=None,
            wait_initial=self._backoff,
            wait_max=_LONGEST_PAUSE,
            wait_jitter=self._backoff,
        )
        try:
            async with asyncio.timeout(self._timeout), self._client() as client:
                async for attempt in retries:
                    with attempt:
                        return await self._translated(ask(client))
        except TimeoutError:
            raise self._too_late(last) from None
        except Failure as failure:
            # no cause: texts and requests of client errors may hold the key, and causes are stored with a run
            raise failure.error from None
        raise AssertionError("the last attempt returns or raises")

    def _too_late(self, last: list[Failure]) -> AtelierError:
        said = f"; last: {last[0].error.message}" if last else ""
        return ModelUnavailable(
            f"the model endpoint did not finish within {self._timeout:g} s{said}",
            fix="check the model endpoint, or allow more time",
        )

    async def _translated(self, answer: Awaitable[R]) -> R:
        import openai

        try:
            return await answer
        except Failure as failure:
            raise self._scrubbed(failure) from None
        except openai.APIStatusError as error:
            failure = failures.from_status(error.status_code, error.body or error.message, error.response.headers)
        except openai.APITimeoutError:
            failure = unavailable(f"the model endpoint was silent for {self._idle_timeout:g} s")
        except openai.APIConnectionError as error:
            failure = unavailable(f"the connection to the model endpoint failed: {error.__cause__ or error.message}")
        except openai.APIError as error:
            failure = failures.from_stream(error.body)
        except (json.JSONDecodeError, UnicodeDecodeError):
            failure = unavailable("the model endpoint sent something that is no answer")
        raise self._scrubbed(failure) from None

    def _scrubbed(self, failure: Failure) -> Failure:
        """Without the key: some servers repeat it when they refuse it."""
        if self._api_key:
            failure.error.message = failure.error.message.replace(self._api_key.get_secret_value(), "***")
            failure.error.args = (failure.error.message,)
            failure.args = (str(failure.error),)
        return failure

    # ---------------------------------------------------------------------------------------------- connection

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[AsyncOpenAI]:
        """A client for one call: steps run on event loops of their own, which must not share connections."""
        import httpx2
        from openai import AsyncOpenAI

        tls = await asyncio.to_thread(_tls)
        limits = httpx2.Timeout(self._idle_timeout, connect=_CONNECT_WITHIN)
        # no redirects: the key is for this address alone
        async with (
            httpx2.AsyncClient(verify=tls, timeout=limits, follow_redirects=False) as http,
            AsyncOpenAI(
                api_key=self._api_key.get_secret_value() if self._api_key else "none",
                base_url=self._base_url,
                max_retries=0,
                timeout=limits,
                http_client=http,
            ) as client,
        ):
            yield client

    def _headers(self) -> dict[str, str | Omit]:
        """What the environment says about another OpenAI account must not reach this endpoint."""
        from openai import omit

        headers: dict[str, str | Omit] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
        return headers if self._api_key else {**headers, "Authorization": omit}

    def _require(self, model: str) -> None:
        missing = [fix for value, fix in ((self._base_url, failures.FIX_URL), (model, failures.FIX_MODEL)) if not value]
        if missing:
            raise ModelRefused("no model endpoint is configured", fix="; ".join(missing), code="MODEL_NOT_CONFIGURED")


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates take a tenth of a second to load; a context may be shared by all clients."""
    import httpx2

    return httpx2.create_ssl_context()


def _check_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        good = not base_url or (parts.scheme in {"http", "https"} and parts.hostname and not parts.query)
    except ValueError:
        good = False
        parts = None
    if not good or (parts and (parts.username or parts.password)):
        raise InvalidInput(
            "the model endpoint's address is not an http(s) URL without credentials", fix=failures.FIX_URL
        )
    return base_url.rstrip("/")


def _wire(message: ChatMessage) -> dict[str, str]:
    return {"role": message.role, "content": message.content}
