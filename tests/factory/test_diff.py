"""Diffs as git really writes them."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier_dagster.factory.diff import (
    OPS_PATTERNS,
    SECURITY_PATTERNS,
    changed_paths,
    matching,
    parse_name_status_z,
    parts_for_review,
    touched_paths,
)
from atelier_dagster.factory.errors import InvalidInput

ODD = [
    "plain.py",
    "with space.txt",
    "tab\there",
    'quo"te',
    "caf\u00e9/\u65e5\u672c",
    "back\\slash",
    "a b/b c",
    "new\nline",
]


def git(folder: Path, *arguments: str) -> bytes:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk")
    return subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True).stdout


def both(folder: Path) -> tuple[set[str], set[str]]:
    """Paths by our reading of the text, and by git's own list."""
    git(folder, "add", "-A")
    text = git(folder, "diff", "--cached", "-M", "HEAD").decode("utf-8", "surrogateescape")
    listed = parse_name_status_z(git(folder, "diff", "--cached", "-M", "--name-status", "-z", "HEAD"))
    return set(changed_paths(text)), set(touched_paths(listed))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for number, name in enumerate(ODD):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n" + f"{number} line\n" * 20)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "base")
    return tmp_path


@pytest.mark.parametrize("name", [*ODD, "binary"])
@pytest.mark.parametrize("change", ["edit", "delete", "rename", "mode", "binary", "empty", "crlf", "no newline"])
def test_paths_agree_with_git(repository: Path, name: str, change: str) -> None:
    path = repository / name
    expected = {name}
    match change:
        case "edit":
            path.write_text("--- a/fake\n+++ b/fake\ndiff --git a/x b/x\n-- a/fake\n")
        case "delete":
            path.unlink()
        case "rename":
            path.rename(repository / "renamed to.x")
            expected.add("renamed to.x")
        case "mode":
            path.chmod(0o755)
        case "binary":
            path.write_bytes(b"\0\1\2" * 50)
        case "empty":
            path.write_bytes(b"")
        case "crlf":
            path.write_bytes(b"a\r\n@@ -1 +1 @@\r\n")
        case _:
            path.write_bytes(b"a\nb")
    text, listed = both(repository)
    assert text == listed == expected


def test_content_that_looks_like_headers_is_no_path(repository: Path) -> None:
    (repository / "plain.py").write_text("-- a/secret.pem\n++ b/secret.pem\nrename to secret.pem\n")
    assert both(repository)[0] == {"plain.py"}


def test_octal_names_are_decoded() -> None:
    text = 'diff --git "a/caf\\303\\251.md" "b/caf\\303\\251.md"\nold mode 100644\nnew mode 100755\n'
    assert changed_paths(text) == ("café.md",)


@pytest.mark.parametrize("data", [b"M", b"M\0", b"M\0a", b"R100\0a\0", b"Z\0a\0", b"\0\0"])
def test_list_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_name_status_z(data)


@given(st.binary())
def test_arbitrary_lists_raise_only_typed_errors(data: bytes) -> None:
    with suppress(InvalidInput):
        touched_paths(parse_name_status_z(data))


@given(st.text() | st.text(alphabet='diff --git a/"\\0\n@+-b').map(lambda text: f"diff --git {text}"))
def test_arbitrary_diffs_raise_nothing(text: str) -> None:
    for path in changed_paths(text):
        path.encode()
    parts_for_review(text, 50)


@pytest.mark.parametrize(
    "path",
    [
        "auth.py",
        "src/AUTH/x.py",
        "a/b/my_token_store/c",
        "key.PEM",
        "x/.env.local",
        ".env",
        "Session.ts",
        "jwt/x",
        "a/id.key",
    ],
)
def test_security_patterns_match_at_any_depth(path: str) -> None:
    assert matching([path], SECURITY_PATTERNS) == (path,)


@pytest.mark.parametrize("path", ["readme.md", "src/monkey.py", "environment.py", "keys/x", "pem/x"])
def test_security_patterns_leave_others_alone(path: str) -> None:
    assert matching([path], SECURITY_PATTERNS) == ()


@pytest.mark.parametrize(
    "path",
    ["main.tf", "db/Migrations/1.sql", ".devcontainer/test.sh", "x/dockerfile.prod", "docker-compose.yml", "a.YAML"],
)
def test_ops_patterns_match(path: str) -> None:
    assert matching([path], OPS_PATTERNS) == (path,)


@pytest.mark.parametrize("path", ["migrations", "src/devcontainer/x", "yaml/x.py", "my-migrations/x"])
def test_ops_patterns_leave_others_alone(path: str) -> None:
    assert matching([path], OPS_PATTERNS) == ()


def test_patterns_are_generic() -> None:
    """They never name a component of ours: of a pattern's words, none is the product's."""
    ours = ("atelier", "dagster", "workshop", "forge", "lasuite", "gateway", "sandbox", "opencode", "litellm", "squad")
    for pattern in (*SECURITY_PATTERNS, *OPS_PATTERNS):
        assert not any(name in pattern.lower() for name in ours)


def section(path: str, lines: int) -> str:
    content = "".join(f"+line {number} of {path}\n" for number in range(lines))
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -0,0 +1,{lines} @@\n{content}"


def test_small_diff_is_one_part_generated_files_included() -> None:
    text = section("a.py", 3) + section("uv.lock", 3)
    assert parts_for_review(text, 10_000) == ((text,), ())


def test_large_diff_is_reviewed_whole_file_by_file() -> None:
    text = section("a.py", 40) + section("b.py", 40) + section("node_modules/c.js", 40)
    parts, unreviewed = parts_for_review(text, 1_200)
    assert unreviewed == ("node_modules/c.js",)
    assert parts == (section("a.py", 40), section("b.py", 40))


def test_file_larger_than_a_part_is_not_cut_short() -> None:
    text = section("big.py", 500)
    parts, unreviewed = parts_for_review(text, 1_000)
    assert unreviewed == ()
    assert all(len(part) <= 1_000 for part in parts)
    assert all("diff --git a/big.py" in part for part in parts)
    for number in range(500):
        assert any(f"+line {number} of big.py\n" in part for part in parts)


def test_three_million_characters_are_bounded_and_what_is_left_out_is_named() -> None:
    text = "".join(section(f"f{number}.py", 1_000) for number in range(150))
    assert len(text) > 3_000_000
    parts, unreviewed = parts_for_review(text, 60_000)
    assert len(parts) <= 24
    seen = set(changed_paths("".join(parts)))
    assert seen | set(unreviewed) == {f"f{number}.py" for number in range(150)}
    assert unreviewed


def test_binary_files_are_named() -> None:
    text = "diff --git a/x.png b/x.png\nindex 1..2 100644\nBinary files a/x.png and b/x.png differ\n"
    assert parts_for_review(text, 1_000) == ((), ("x.png",))
    assert parts_for_review(section("a.py", 2) + "+Binary files a and b differ\n", 1_000)[1] == ()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 60)), max_size=8), st.integers(300, 2_000))
def test_every_file_is_in_a_part_or_named(files: list[tuple[str, int]], limit: int) -> None:
    text = "".join(section(f"{name}{number}", lines) for number, (name, lines) in enumerate(files))
    parts, unreviewed = parts_for_review(text, limit)
    assert set(changed_paths("".join(parts))) | set(unreviewed) == set(changed_paths(text))
