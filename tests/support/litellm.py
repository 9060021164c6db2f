"""A real LiteLLM proxy for tests, from a locked environment of its own. Belongs here: starting it in front of a URL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.support.processes import free_ports, stopped, wait_until

MASTER_KEY = "sk-master-key-of-this-test-run"
PROJECT = Path(__file__).parents[1] / "services" / "litellm"
_INSTALL_WITHIN = 600.0
_READY_WITHIN = 180.0


@dataclass(frozen=True)
class LiteLLMProxy:
    """A running proxy: an OpenAI-compatible base URL and the key that it wants."""

    base_url: str
    api_key: str
    models: Sequence[str]


def uv_command() -> list[str]:
    """How to run uv here. Fails, saying so, where it is neither on PATH nor installed beside this Python."""
    found = shutil.which("uv")
    if found:
        return [found]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    raise AssertionError("uv is needed for LiteLLM's own environment: install uv, or `pip install uv` in this one")


@contextmanager
def litellm_proxy(
    upstream: str,
    *,
    models: Sequence[str] = ("model-a",),
    upstream_model: str = "",
    upstream_key: str = "unused",
    input_price: float = 0.0,
    output_price: float = 0.0,
) -> Generator[LiteLLMProxy]:
    """A proxy, ready to be asked, that routes `models` to the OpenAI-compatible base URL `upstream`.

    `upstream_model`: the name asked for there, the same one by default. Prices are in dollars a token. No database:
    chat, streaming, embeddings and the master key work; teams, keys and spend do not.
    """
    uv = uv_command()
    sync = [*uv, "sync", "--project", str(PROJECT), "--frozen", "--quiet"]
    subprocess.run(sync, check=True, timeout=_INSTALL_WITHIN, env=_environment(), cwd=PROJECT)
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="litellm-") as folder:
        config, log = Path(folder, "config.yaml"), Path(folder, "log")
        routes = [_route(m, upstream_model or m, upstream, upstream_key, input_price, output_price) for m in models]
        config.write_text(yaml.safe_dump(_config(routes)))
        argv = [*uv, "run", "--project", str(PROJECT), "--frozen", "--no-sync", "litellm"]
        argv += ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as output:
            started = subprocess.Popen(
                argv,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_environment() | {"HOME": folder},
                cwd=folder,
                start_new_session=True,
            )
            with stopped(started) as process:
                address = f"http://127.0.0.1:{port}"
                wait_until(lambda: _answers(address), process, log, _READY_WITHIN)
                yield LiteLLMProxy(f"{address}/v1", MASTER_KEY, tuple(models))


def _environment() -> dict[str, str]:
    """The parent's, without what would lead uv to the main environment or the proxy to an account of the user's."""
    led_astray = ("UV_PROJECT_ENVIRONMENT", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONWARNINGS", "DATABASE_URL")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in led_astray and not name.startswith(("OPENAI_", "LITELLM_", "ATELIER_"))
    }
    return kept | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1"}


def _config(routes: list[dict[str, object]]) -> dict[str, object]:
    return {
        "model_list": routes,
        "litellm_settings": {"telemetry": False, "num_retries": 0, "include_cost_in_streaming_usage": True},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": MASTER_KEY},
    }


def _route(
    model: str, name: str, upstream: str, key: str, input_price: float, output_price: float
) -> dict[str, object]:
    return {
        "model_name": model,
        "litellm_params": {
            "model": f"openai/{name}",
            "api_base": upstream,
            "api_key": key,
            "input_cost_per_token": input_price,
            "output_cost_per_token": output_price,
        },
    }


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/readiness", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
