"""What the UI shows of every artifact: it renders, it stays small, and no word of a stranger becomes markup."""

from __future__ import annotations

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import BaseModel

from atelier_dagster.factory.change import ObjectRef, PullRequest
from atelier_dagster.factory.lineage import ASSETS, VALUE_TYPES, Artifact
from atelier_dagster.factory.plan import SubTask
from atelier_dagster.factory.ticket import RepoRef, TicketKey
from atelier_dagster.orchestration.display import bullets, code_block, escaped, show, table

HOSTILE = [
    "```\n<script>alert(1)</script>\n```",
    "````\n```` <img src=x onerror=y>",
    "| a | b |\n|---|---|\n| [x](javascript:y) | ![z](http://evil/z.png) |",
    "<!-- hidden --> <https://evil.example> &lt;b&gt;",
    "[a]: http://evil.example\n\n[a]",
    "\\[not escaped\\](http://evil.example)",
    "# heading\n---\n* list\n1. one",
]
_PARSER = MarkdownIt("commonmark").enable("table")

_MARKUP = {"link_open", "image", "html_block", "html_inline", "heading_open", "hr", "code_inline", "ordered_list_open"}


def tokens(markdown: str) -> list[Token]:
    found: list[Token] = []
    for token in _PARSER.parse(markdown):
        found += [token, *(token.children or [])]
    return found


def markup(markdown: str) -> set[str]:
    """Kinds of what could act or mislead."""
    return {token.type for token in tokens(markdown)} & _MARKUP


text = st.one_of(st.text(max_size=200), st.sampled_from(HOSTILE), st.text(alphabet="`~|<>[]()!\\\n #*_-", max_size=60))


@given(text)
def test_escaped_text_holds_no_markup(value: str) -> None:
    assert not markup(escaped(value))


@given(st.lists(text, max_size=5))
def test_lists_have_one_item_a_text_and_no_markup(values: list[str]) -> None:
    shown = bullets(values)
    assert not markup(shown)
    if values:
        assert [token.type for token in _PARSER.parse(shown)].count("list_item_open") == len(values)


@given(st.lists(st.tuples(text, text), max_size=5))
def test_tables_have_one_row_a_tuple_and_no_markup(rows: list[tuple[str, str]]) -> None:
    shown = table(("a", "b"), rows)
    assert not markup(shown)
    kinds = [token.type for token in _PARSER.parse(shown)]
    assert kinds.count("tr_open") == len(rows) + 1
    assert kinds.count("td_open") == 2 * len(rows)


@given(text, st.booleans())
def test_no_text_ends_its_own_code_block(value: str, tail: bool) -> None:
    parsed = _PARSER.parse(code_block(value, "diff", 150, tail=tail))
    assert [token.type for token in parsed] == ["fence"]


def test_what_is_cut_says_so() -> None:
    assert code_block("x" * 50, limit=10) == "```\n" + "x" * 10 + "\n[...]\n```"
    assert code_block("x" * 50 + "end", limit=3, tail=True) == "```\n[...]\nend\n```"
    assert escaped("x" * 50, 10) == "x" * 10 + " \\[...\\]"
    assert bullets(["a"] * 300).endswith("- and 100 more")
    assert table(("a",), [("b",)] * 300).endswith("and 100 more")
    assert bullets([]) == "none"


# --------------------------------------------------------------------------------------------- every asset's value


def _strategy(name: str) -> st.SearchStrategy[BaseModel]:
    return st.builds(VALUE_TYPES[name])


_KEY = TicketKey(repo=RepoRef(tracker="local", owner="demo", name="shop"), number=1)
st.register_type_strategy(str, text)
st.register_type_strategy(SubTask, st.builds(SubTask, service_port=st.none()))
st.register_type_strategy(TicketKey, st.just(_KEY))
st.register_type_strategy(ObjectRef, st.builds(ObjectRef, size=st.integers(0, 10**9)))


def metadata(artifact: Artifact[BaseModel]) -> dict[str, str]:
    """As Dagster takes it: it refuses what it cannot show."""
    event = dg.AssetMaterialization("x", metadata=show(artifact))
    return {name: str(value.value) for name, value in event.metadata.items()}


@pytest.mark.parametrize("asset", ASSETS)
def test_every_value_of_every_asset_renders_without_markup(asset: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(_strategy(asset))
    def check(value: BaseModel) -> None:
        artifact = Artifact(asset=asset, ticket=_KEY.partition, cycle=1, value=value)
        shown = show(artifact)
        assert shown["sha256"] == artifact.sha256
        assert set(shown) - {"sha256", "attempt"}
        assert all(metadata(artifact))
        for name, item in shown.items():  # fences hold what they want
            if isinstance(item, dg.MarkdownMetadataValue) and (asset, name) != ("pull_request", "body"):
                assert not markup(str(item.value)), name  # the body is our own Markdown, of words made plain

    check()


@pytest.mark.parametrize("asset", ASSETS)
def test_what_is_shown_stays_small(asset: str) -> None:
    huge = "x" * 20_000

    def grow(value: object, count: int = 250) -> object:
        if type(value) is str:
            return huge
        if isinstance(value, tuple):
            items: tuple[object, ...] = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return tuple(grow(item, 3) for item in (items * count)[:count])
        if isinstance(value, BaseModel) and not isinstance(value, TicketKey):
            fields = {name: grow(getattr(value, name), count) for name in type(value).model_fields}
            return value.model_copy(update=fields)
        return value

    @settings(max_examples=3, deadline=None)
    @given(_strategy(asset))
    def check(value: BaseModel) -> None:
        grown = grow(value)
        assert isinstance(grown, BaseModel)
        artifact = Artifact[BaseModel].model_construct(
            asset=asset, ticket="t", cycle=1, round=1, attempt=1, inputs={}, feedback={}, final=False, value=grown
        )
        sizes = {name: len(item) for name, item in metadata(artifact).items()}
        assert max(sizes.values()) < 450_000, sizes

    check()


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", ""])
def test_only_web_addresses_become_links(url: str) -> None:
    value = PullRequest(
        number=1, url=url, title="t", body="", head="a", base="b", branch="c", base_branch="d", changed_files=1,
        diff_sha256="e",
    )  # fmt: skip
    shown = show(Artifact(asset="pull_request", ticket="t", cycle=1, value=value))
    assert "link" not in shown
    assert shown["where"] == url
