"""What is kept of commands: bounds of output, at most one run an id, results that outlive the supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.sandbox import execs
from atelier_dagster.sandbox.execs import Exec, ExecStore, Outcome
from atelier_dagster.sandbox.output import BoundedOutput


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(0, 300))
def test_output_keeps_its_ends_within_the_limit(pieces: list[bytes], limit: int) -> None:
    output = BoundedOutput(limit)
    head = b"".join(output.feed(piece) for piece in pieces)
    rest = output.finish()
    whole = b"".join(pieces)
    if len(whole) <= limit:
        assert (head + rest, output.truncated) == (whole, False)
        return
    assert output.truncated
    assert whole.startswith(head)
    tail = rest.removeprefix(output.marker)
    assert whole.endswith(tail)
    assert len(head) + len(tail) == limit
    assert f"{len(whole) - limit} bytes dropped".encode() in output.marker


def test_large_streams_are_trimmed_on_the_way() -> None:
    output = BoundedOutput(1000)
    for number in range(1000):
        output.feed(bytes([number % 256]) * 1000)
    assert output.finish().endswith(bytes([999 % 256]) * 500)


def finished(store: ExecStore, exec_id: str, output: bytes) -> Outcome:
    """Run a command as the supervisor would."""
    key = store.claim(exec_id)
    assert key is not None
    command = Exec(exec_id, key, 1_000_000)
    command.feed("stdout", output)
    command.feed("stderr", b"e\n" + output)
    command.status = 0
    outcome = command.finish()
    store.save(command, outcome)
    return outcome


@pytest.mark.parametrize("exec_id", ["a", "../../x", "a/b", "ü\n", "x" * 500])
def test_an_id_is_claimed_once_and_found_again(tmp_path: Path, exec_id: str) -> None:
    store = ExecStore(tmp_path)
    outcome = finished(store, exec_id, b"binary\0\n\xff")
    assert store.claim(exec_id) is None
    for later in (store, ExecStore(tmp_path)):
        found = later.load(exec_id)
        assert found is not None
        assert found.outcome == outcome
        assert found.output("stdout") == b"binary\0\n\xff"
        assert found.output("stderr") == b"e\nbinary\0\n\xff"
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


def test_what_had_not_ended_is_lost_and_not_run_again(tmp_path: Path) -> None:
    ExecStore(tmp_path).claim("a")
    store = ExecStore(tmp_path)
    store.recover()
    found = store.load("a")
    assert found is not None
    assert found.outcome is not None
    assert (found.outcome.exit_code, found.outcome.reason) == (None, execs.LOST)
    assert store.claim("a") is None


def test_the_number_of_commands_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "MAX_EXECS", 1)
    store = ExecStore(tmp_path)
    store.claim("a")
    with pytest.raises(OverflowError):
        store.claim("b")
    again = ExecStore(tmp_path)
    again.recover()
    with pytest.raises(OverflowError):
        again.claim("b")


def test_the_oldest_output_goes_first_and_outcomes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "MAX_OUTPUT_BYTES", 10_000)
    store = ExecStore(tmp_path)
    for number in range(10):
        finished(store, str(number), b"x" * 1000)
    oldest, newest = store.load("0"), store.load("9")
    assert oldest is not None
    assert newest is not None
    assert oldest.outcome is not None
    assert (oldest.outcome.exit_code, oldest.outcome.truncated, oldest.output("stdout")) == (0, True, b"")
    assert newest.output("stdout") == b"x" * 1000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


@pytest.mark.parametrize(
    ("status", "reason", "code", "told"),
    [
        (0, "", 0, ""),
        (256, "", 1, ""),
        (9, "", None, "killed by signal 9"),
        (9, "memory", None, "memory"),
        (0, "time", None, "time"),
        (None, "", None, "its keeper was killed"),
    ],
)
def test_how_a_command_ended(status: int | None, reason: str, code: int | None, told: str) -> None:
    command = Exec("a", "a", 10)
    command.status, command.reason = status, reason
    outcome = command.finish()
    assert (outcome.exit_code, outcome.reason) == (code, told)
