"""Everything that can be configured: `ATELIER_*` environment variables over `atelier.toml`, read when called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.routing import Policy


def _as_list(value: Any) -> Any:
    """Environment variables hold lists as JSON, or simply with commas between the items."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return json.loads(text)
    return [item.strip() for item in text.split(",") if item.strip()]


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_as_list)]


_SECRETS = frozenset({"llm_api_key", "s3_secret_access_key"})


class _FileWithoutSecrets(TomlConfigSettingsSource):
    """`atelier.toml`, which people commit: a secret in it is refused rather than ignored."""

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        if secrets := sorted(_SECRETS & set(found)):
            names = ", ".join(f"ATELIER_{name.upper()}" for name in secrets)
            raise InvalidInput(
                f"atelier.toml holds {', '.join(secrets)}", fix=f"set {names} in the environment instead"
            )
        return found


class Settings(BaseSettings):
    """Settings of one installation. Environment names are the field names in capitals after `ATELIER_`."""

    model_config = SettingsConfigDict(env_prefix="ATELIER_", env_ignore_empty=True, extra="forbid", frozen=True)

    home: Path = Path(".atelier")
    """Where everything that Atelier keeps lives: tickets, repositories, artifacts, workshops, Dagster's own storage."""

    label: str = "atelier"
    """Tickets with this label are taken in."""
    authors: Names = ()
    """Whose tickets are taken in besides those of people with write access."""
    approvers: Names = ()
    """Who may decide besides people with write access on the forge."""
    bot: str = "atelier[bot]"
    """The name under which Atelier writes: its own comments and reviews never count as decisions."""
    allow_ui_approval: bool = False
    """Accept decisions made in Dagster's UI, which knows no users. They are recorded as unauthenticated."""

    plan_review: Literal["auto", "human"] = "auto"
    """`human`: a plan waits for a person before anything is built."""
    architecture_redos: int = Field(default=3, ge=0, le=20)
    """How often a refused plan is made anew."""
    correction_redos: int = Field(default=3, ge=0, le=20)
    """How often an agent is sent back with failing tests."""
    review_redos: int = Field(default=3, ge=0, le=20)
    """How often an agent is sent back with objections of reviewers."""

    llm_base_url: str = ""
    """OpenAI-compatible URL, e.g. of a LiteLLM proxy."""
    llm_api_key: SecretStr | None = None
    """Its key, if it wants one. Read from the environment only."""
    llm_model: str = ""
    """The model of every role and of the agents."""
    llm_role_models: dict[str, str] = Field(default_factory=dict)
    """Role -> model, where a role uses another one."""
    llm_embedding_model: str = ""
    """Model for the index of past resolutions; without one it uses hashed words."""
    llm_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one answer, retries included."""

    agent: Literal["opencode", "command"] = "opencode"
    """The coding agent."""
    agent_binary: Path | None = None
    """OpenCode's program; found in the installation's tools and on PATH when not given."""
    agent_command: Names = ()
    """With `agent = "command"`: a program inside the workshop that reads the prompt from stdin."""
    agent_timeout: float = Field(default=2700.0, gt=0)
    """Seconds for one delivery of one agent."""
    test_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for a repository's own tests."""
    qa_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for QA's look at the merged code."""
    qa_devcontainer: str = ""
    """Devcontainer of the QA workshop where it differs from the ticket's."""

    workshops_unsafe: bool = False
    """Run agents without a sandbox. Never do this with tickets that strangers can write."""
    workshops_memory_mib: int = Field(default=4096, ge=128)
    """Memory of one workshop, in MiB."""
    workshops_processes: int = Field(default=512, ge=16)
    """Processes of one workshop."""
    workshops_disk_mib: int = Field(default=8192, ge=64)
    """Disk of one workshop, in MiB."""
    egress: Names = ()
    """Hosts that workshops may reach besides the package registries: exact, or `*.domain`."""
    workshop_ttl_hours: float = Field(default=72.0, gt=0)
    """How long a suspended workshop of an ended ticket is kept."""

    artifacts: Literal["directory", "s3"] = "directory"
    """Where artifacts, objects, evidence and the ledger are kept."""
    s3_bucket: str = ""
    """Bucket, with `artifacts = "s3"`; it must exist."""
    s3_prefix: str = ""
    """What every key begins with."""
    s3_endpoint_url: str = ""
    """Endpoint of a store that is not Amazon's."""
    s3_region: str = ""
    """Region."""
    s3_access_key_id: str = ""
    """Access key; without one the usual AWS credential chain is used."""
    s3_secret_access_key: SecretStr | None = None
    """Its secret. Read from the environment only."""

    knowledge: bool = True
    """Remember how tickets were solved, and look for similar ones."""
    dagster_url: str = "http://127.0.0.1:3000"
    """Where the command line finds Dagster's webserver."""

    @property
    def policy(self) -> Policy:
        """Budgets and review mode, as routing wants them."""
        return Policy(
            architecture_redos=self.architecture_redos,
            correction_redos=self.correction_redos,
            review_redos=self.review_redos,
            plan_review=self.plan_review,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over `atelier.toml`."""
        file = _FileWithoutSecrets(settings_cls, toml_file=Path("atelier.toml"))
        return init_settings, env_settings, file


def load_settings() -> Settings:
    """Read the settings of the working directory. Raises `InvalidInput` naming each wrong setting, never its value."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors())
        raise InvalidInput(
            f"configuration is not valid: {wrong}", fix="mend ATELIER_* variables or atelier.toml"
        ) from None
