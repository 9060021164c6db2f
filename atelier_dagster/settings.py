"""Everything that can be configured: `ATELIER_*` environment variables over `atelier.toml`, read when called."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.routing import Policy


class Settings(BaseSettings):
    """Settings of one installation. Environment names are the field names in capitals after `ATELIER_`."""

    model_config = SettingsConfigDict(env_prefix="ATELIER_", extra="forbid", frozen=True)

    home: Path = Path(".atelier")
    """Where everything that Atelier keeps lives: tickets, repositories, artifacts, workshops, Dagster's own storage."""

    label: str = "atelier"
    """Tickets with this label are taken in."""
    authors: tuple[str, ...] = ()
    """Whose tickets are taken in besides those of people with write access."""
    approvers: tuple[str, ...] = ()
    """Who may decide besides people with write access on the forge."""
    bot: str = "atelier[bot]"
    """The name under which Atelier writes: its own comments and reviews never count as decisions."""
    allow_ui_approval: bool = False
    """Accept decisions made in Dagster's UI, which knows no users. They are recorded as unauthenticated."""

    plan_review: Literal["auto", "human"] = "auto"
    architecture_redos: int = Field(default=3, ge=0, le=20)
    correction_redos: int = Field(default=3, ge=0, le=20)
    review_redos: int = Field(default=3, ge=0, le=20)

    llm_base_url: str = ""
    """OpenAI-compatible URL, e.g. of a LiteLLM proxy."""
    llm_api_key: SecretStr | None = None
    llm_model: str = ""
    llm_role_models: dict[str, str] = Field(default_factory=dict)
    """Role -> model, where a role uses another one."""
    llm_embedding_model: str = ""
    llm_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one answer, retries included."""

    agent: Literal["opencode", "command"] = "opencode"
    agent_binary: Path | None = None
    """OpenCode's program; found in the installation's tools and on PATH when not given."""
    agent_command: tuple[str, ...] = ()
    """With `agent = "command"`: a program inside the workshop that reads the prompt from stdin."""
    agent_timeout: float = Field(default=2700.0, gt=0)
    """Seconds for one delivery of one agent."""
    test_timeout: float = Field(default=1800.0, gt=0)
    qa_timeout: float = Field(default=1800.0, gt=0)
    qa_devcontainer: str = ""
    """Devcontainer of the QA workshop where it differs from the ticket's."""

    workshops_unsafe: bool = False
    """Run agents without a sandbox. Never do this with tickets that strangers can write."""
    workshops_memory_mib: int = Field(default=4096, ge=128)
    workshops_processes: int = Field(default=512, ge=16)
    workshops_disk_mib: int = Field(default=8192, ge=64)
    egress: tuple[str, ...] = ()
    """Hosts that workshops may reach besides the package registries: exact, or `*.domain`."""
    workshop_ttl_hours: float = Field(default=72.0, gt=0)
    """How long a suspended workshop of an ended ticket is kept."""

    artifacts: Literal["directory", "s3"] = "directory"
    s3_bucket: str = ""
    s3_prefix: str = ""
    s3_endpoint_url: str = ""
    s3_region: str = ""
    s3_access_key_id: str = ""
    s3_secret_access_key: SecretStr | None = None

    knowledge: bool = True
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
        file = TomlConfigSettingsSource(settings_cls, toml_file=Path("atelier.toml"))
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
