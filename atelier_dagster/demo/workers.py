"""The scripted developer and QA engineer: each turn is decided from what the tools have answered so far."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib import resources

from atelier_dagster.demo.conversation import Conversation, Reply, ToolCall, ToolUse
from atelier_dagster.demo.features import Edit, Feature, recognise

SURVEY = (
    "pwd; git log --oneline -5 2>&1; git ls-files --cached --others --exclude-standard | head -n 60 | "
    'while IFS= read -r file; do echo "=== $file"; head -c 8000 "$file"; echo; done; echo "=== end"'
)
TESTS = 'if [ -f .devcontainer/test.sh ]; then sh .devcontainer/test.sh 2>&1 | tail -n 40; else echo "no tests"; fi'
_TRIES = 2


def develop(talk: Conversation) -> Reply:
    """The next turn of a developer, first delivery or rework."""
    if survey := _survey(talk):
        return survey
    seen = _seen(talk)
    rework = "rework" in talk.role
    features = recognise(talk.wish)
    files = _wanted_files(talk, features, seen, rework=rework)
    if calls := _writes(talk, files, seen):
        return Reply("I write the files.", tuple(calls))
    if calls := _edits(talk, features, seen):
        return Reply("I change what is there.", tuple(calls))
    if command := next((c for c in _commands(features, files) if not _ran(talk, c)), None):
        return Reply("", (_bash(talk, command, "Finish the change"),))
    first_try = not rework and any(feature.first for feature in features)
    if not first_try and not _ran(talk, TESTS):
        return Reply("I run the tests.", (_bash(talk, TESTS, "Run the tests"),))
    return Reply(_closing(talk, features, files))


def examine(talk: Conversation) -> Reply:
    """The next turn of a QA engineer: look, start the application, judge by what it answered."""
    if survey := _survey(talk):
        return survey
    documented = re.search(r"(?im)^\W*(?:run|start)\b[^`\n]*`([^`\n]+)`", _seen(talk))
    if documented is None:
        return _verdict(False, ["the README does not say how the application is started"], [])
    features = recognise(talk.wish)
    command = _examination(documented.group(1), features)
    ran = next((use for use in reversed(talk.uses) if use.arguments.get("command") == command), None)
    if ran is None:
        return Reply("I start the application.", (_bash(talk, command, "Start the application and check it"),))
    return _judge(ran.output)


# ------------------------------------------------------------------------------------------------------ looking


def _survey(talk: Conversation) -> Reply | None:
    """Look at the checkout first; None once that is done, or has failed too often to be tried again."""
    tried = [use for use in talk.uses if use.arguments.get("command") == SURVEY or use.failed]
    if "bash" not in talk.tools or len(tried) >= _TRIES or any(not use.failed for use in tried):
        return None
    return Reply("I look at the repository.", (_bash(talk, SURVEY, "Look at the repository"),))


def _seen(talk: Conversation) -> str:
    return next((use.output for use in talk.uses if use.arguments.get("command") == SURVEY and not use.failed), "")


def _place(seen: str, path: str) -> str:
    """Absolute path, if the survey said where the checkout is."""
    first = next(iter(seen.lstrip().splitlines()), "")
    return f"{first.rstrip('/')}/{path}" if first.startswith("/") else path


def _content(seen: str, path: str) -> str | None:
    found = re.search(rf"^=== {re.escape(path)}\n(.*?)\n?(?=^=== )", seen, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else None


# ------------------------------------------------------------------------------------------------------ writing


def _wanted_files(talk: Conversation, features: Sequence[Feature], seen: str, *, rework: bool) -> Mapping[str, str]:
    """The files of all that is asked for, within the task's scope where that has any of them."""
    files = {p: t for feature in features for p, t in feature.files(first=not rework).items()}
    if not features:
        return {"docs/requests.md": _note(talk.wish, _content(seen, "docs/requests.md") or "")}
    scope = [line.removeprefix("- ") for text in talk.data("scope") for line in text.splitlines()]
    chosen = {path: text for path, text in files.items() if any(fnmatch(path, glob) for glob in scope)} or files
    if rework:
        chosen = {path: _revised(path, text, _content(seen, path)) for path, text in chosen.items()}
    return chosen


def _note(prompt: str, before: str) -> str:
    """For what the script has no program for: the request is written down, which is at least true."""
    words = " ".join(re.findall(r"[\w'-]+", prompt))[:200]
    entry = f"- Request {before.count('- Request ') + 1}, not built: the demo's script has no program for it. ({words})"
    return f"{before.rstrip() or '# Requests'}\n\n{entry}\n"


def _revised(path: str, text: str, before: str | None) -> str:
    """A module that a reviewer did not like is delivered again with a note, and so is never the same twice."""
    if before is None or not path.endswith(".py") or _without_note(before).rstrip() != text.rstrip():
        return text
    earlier = re.search(r"^# Revision (\d+)", before, re.MULTILINE)
    head, _, rest = text.partition("\n")
    number = int(earlier.group(1)) + 1 if earlier else 2
    return f"{head}\n# Revision {number}: gone through again after the review.\n{rest}"


def _without_note(text: str) -> str:
    return re.sub(r"^# Revision \d+: [^\n]*\n", "", text, flags=re.MULTILINE)


def _writes(talk: Conversation, files: Mapping[str, str], seen: str) -> list[ToolCall]:
    """Calls for the files that are not written yet; by shell where the write tool is missing or refused."""
    calls: list[ToolCall] = []
    for path, text in files.items():
        if _content(seen, path) == text.rstrip("\n") or _written(talk, path, text):
            continue
        refused = [use for use in talk.uses if use.failed and _touches(use, path)]
        if len(refused) > _TRIES:
            continue
        if "write" in talk.tools and not refused:
            calls.append(ToolCall.of("write", filePath=_place(seen, path), content=text))
        elif "bash" in talk.tools:
            calls.append(_bash(talk, _shell_write(path, text), f"Write {path}"))
    return calls


def _written(talk: Conversation, path: str, text: str) -> bool:
    return any(
        not use.failed
        and (
            (use.name == "write" and _touches(use, path) and use.arguments.get("content") == text)
            or use.arguments.get("command") == _shell_write(path, text)
        )
        for use in talk.uses
    )


def _shell_write(path: str, text: str) -> str:
    encoded = base64.b64encode(text.encode()).decode()
    folder = path.rpartition("/")[0] or "."
    return f"mkdir -p {shlex.quote(folder)} && echo {encoded} | base64 -d > {shlex.quote(path)} && echo written {path}"


def _touches(use: ToolUse, path: str) -> bool:
    named = str(use.arguments.get("filePath", ""))
    return named == path or named.endswith(f"/{path}") or f"> {path} " in str(use.arguments.get("command", ""))


def _edits(talk: Conversation, features: Sequence[Feature], seen: str) -> list[ToolCall]:
    """One edit a turn: a file is read before it is changed, and by shell when the tool will not."""
    for edit in (edit for feature in features for edit in feature.edits):
        before = _content(seen, edit.path)
        if before is None or edit.new in before or _edited(talk, edit):
            continue
        path = _place(seen, edit.path)
        if not any(use.name == "read" and _touches(use, edit.path) for use in talk.uses) and "read" in talk.tools:
            return [ToolCall.of("read", filePath=path)]
        refused = sum(
            use.failed and use.name == "edit" and use.arguments.get("oldString") == edit.old for use in talk.uses
        )
        if "edit" in talk.tools and not refused:
            return [ToolCall.of("edit", filePath=path, oldString=edit.old, newString=edit.new)]
        if not _ran(talk, _shell_edit(edit)):
            return [_bash(talk, _shell_edit(edit), f"Change {edit.path}")]
    return []


def _edited(talk: Conversation, edit: Edit) -> bool:
    return any(
        use.name == "edit" and not use.failed and use.arguments.get("newString") == edit.new for use in talk.uses
    )


def _shell_edit(edit: Edit) -> str:
    program = (
        "import pathlib, sys; file = pathlib.Path(sys.argv[1]); "
        "file.write_text(file.read_text().replace(sys.argv[2], sys.argv[3], 1))"
    )
    return shlex.join(["python3", "-c", program, edit.path, edit.old, edit.new])


def _commands(features: Sequence[Feature], files: Mapping[str, str]) -> list[str]:
    scripts = [path for path in files if path.endswith(".sh")]
    made = [f"chmod +x {shlex.join(scripts)} && echo executable"] if scripts else []
    return [*made, *(feature.command for feature in features if feature.command)]


def _bash(talk: Conversation, command: str, description: str) -> ToolCall:
    """A shell call with the parameters that this agent's tool asks for."""
    properties = talk.tools.get("bash", {}).get("properties", {})
    wanted = {"description": description} if not properties or "description" in properties else {}
    return ToolCall.of("bash", command=command, **wanted)


def _ran(talk: Conversation, command: str) -> bool:
    return "bash" not in talk.tools or sum(use.arguments.get("command") == command for use in talk.uses) > 0


def _closing(talk: Conversation, features: Sequence[Feature], files: Mapping[str, str]) -> str:
    tests = next((use.output for use in reversed(talk.uses) if use.arguments.get("command") == TESTS), "")
    outcome = "The tests were not run." if not tests else "The tests fail." if "FAILED" in tests else "The tests pass."
    built = ", ".join(feature.name for feature in features) or "a note of the request, which this script cannot build"
    return f"Done: {built}. Files: {', '.join(files) or 'only existing ones were changed'}. {outcome}"


# -------------------------------------------------------------------------------------------------- quality check


def _examination(start: str, features: Sequence[Feature]) -> str:
    checks = [dict(check) for feature in features for check in feature.checks]
    environment = {name: value for feature in features for name, value in feature.environment.items()}
    plan = {
        "command": start,
        "environment": environment,
        "checks": checks or [{"name": "the application answers", "method": "GET", "path": "/"}],
    }
    program = resources.files("atelier_dagster.demo").joinpath("qa_check.py").read_text(encoding="utf-8")
    return f"python3 - {shlex.quote(json.dumps(plan))} <<'END_OF_CHECK'\n{program}\nEND_OF_CHECK\n"


def _judge(output: str) -> Reply:
    checks = re.findall(r"(?m)^CHECK (pass|fail) (.+)$", output)
    evidence = re.findall(r"(?m)^EVIDENCE (\S+)$", output)
    notes = re.findall(r"(?m)^NOTE (.+)$", output)
    failed = [what for how, what in checks if how == "fail"]
    if not checks:
        return _verdict(False, [f"the check did not run: {output.strip()[-300:]}"], evidence)
    comments = [f"failed: {what}" for what in failed] or [f"{len(checks)} checks passed on the running application"]
    return _verdict(not failed, [*comments, *notes], evidence)


def _verdict(passed: bool, comments: Sequence[str], evidence: Sequence[str]) -> Reply:
    answer = {"verdict": "pass" if passed else "fail", "comments": list(comments), "evidence_files": list(evidence)}
    return Reply(json.dumps(answer, ensure_ascii=False, indent=1))
