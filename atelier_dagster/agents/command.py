"""Any program as an agent: it reads the prompt from stdin and edits the checkout that it is started in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atelier_dagster.agents._events import bounded
from atelier_dagster.ports import AgentAnswer, AgentCommand, AgentTask, Check, ExecResult

_TEXT_LIMIT = 200_000


class CommandAgent:
    """Runs `argv` with the prompt on stdin; what it prints is its answer.

    The model is told in ATELIER_MODEL and ATELIER_MODEL_URL. `mounts` are host paths that the program needs read-only
    inside a local workshop, with their path there.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
    ) -> None:
        if not argv:
            raise ValueError("argv: a program is needed")
        self._argv = tuple(argv)
        self._env = dict(env or {})
        self._mounts = tuple(mounts)

    def command(self, task: AgentTask) -> AgentCommand:
        """See `Agent.command`."""
        env = {**self._env, "HOME": task.home, "ATELIER_MODEL": task.model, "ATELIER_MODEL_URL": task.model_url}
        return AgentCommand(argv=self._argv, env=env, files={}, stdin=task.prompt.encode())

    def read(self, result: ExecResult) -> AgentAnswer:
        """Exit code 0 is success; a program that prints nothing may well have worked."""
        text = result.stdout[-_TEXT_LIMIT:].decode(errors="replace").strip()
        if result.timed_out:
            return AgentAnswer(text, f"stopped at its time limit after {result.duration:.0f} s", "AGENT_TIMEOUT")
        if result.exit_code == 0:
            return AgentAnswer(text)
        ended = f"exit code {result.exit_code}" if result.exit_code is not None else f"killed: {result.reason}"
        said = result.stderr[-8000:].decode(errors="replace")
        return AgentAnswer(text, bounded(f"the agent ended with {ended}: {said}"), "AGENT_CRASHED")

    def mounts(self) -> Sequence[tuple[Path, str]]:
        """See `Agent.mounts`."""
        return self._mounts

    async def preflight(self) -> Sequence[Check]:
        """The program lives in the workshop, so only its mounts can be looked at."""
        missing = [str(path) for path, _ in self._mounts if not path.exists()]
        detail = f"missing: {', '.join(missing)}" if missing else f"runs {self._argv[0]}"
        return [Check("agent", not missing, detail, "make these paths exist" if missing else "")]
