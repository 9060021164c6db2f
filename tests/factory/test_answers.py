"""Reading answers: the last object counts, hostile text costs bounded work, and nothing but typed errors comes out."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier_dagster.factory.answers import clean, last_object
from atelier_dagster.factory.errors import InvalidInput
from atelier_dagster.factory.plan import parse_answered, parse_greenfield, parse_plan
from atelier_dagster.factory.ticket import RepoRef, Ticket, TicketKey, parse_analysis
from atelier_dagster.factory.verdict import Decision, QaDecision, parse_qa, parse_review

TICKET = Ticket(
    key=TicketKey(repo=RepoRef(tracker="local", owner="a", name="b"), number=1),
    title="Add a shop",
    body="",
    author="bob",
    base_branch="trunk",
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
names = ("verdict", "comments", "evidence_files", "tasks", "id", "scope", "job_story", "criteria", "entry_point")
near_misses = st.dictionaries(st.sampled_from(names), json_values, max_size=6).map(json.dumps)
texts = st.text() | near_misses | st.lists(st.text() | near_misses | st.sampled_from('{}[]"\\,:`')).map("".join)


@pytest.mark.parametrize(
    ("text", "verdict", "comments"),
    [
        ('{"verdict": "approve", "comments": []}', Decision.APPROVE, ()),
        ('```json\n{"verdict": "request_changes", "comments": ["x"]}\n```', Decision.REQUEST_CHANGES, ("x",)),
        (
            'First {"verdict":"approve"} no: {"verdict":"request_changes","comments":["y"]} so',
            "request_changes",
            ("y",),
        ),
        ('{"verdict":"request_changes","comments":["a } and { b"]}', "request_changes", ("a } and { b",)),
        ('if (x) { return "{" } {"verdict":"Request Changes","comments":"one"}', "request_changes", ("one",)),
        ('{"verdict":"approve"} {"note": "no verdict"}', "approve", ()),
        (
            '{"verdict":"request_changes","comments":["x"]} and a broken {"verdict": "approve"',
            "request_changes",
            ("x",),
        ),
        ('{"result": {"verdict": "request_changes", "comments": ["in"]}}', "request_changes", ("in",)),
        ('{"verdict":"request_changes","comments":[{"verdict":"approve","text":"t"}]}', "request_changes", ("t",)),
        (
            '{"verdict":"request_changes","comments":[{"file":"a.py","line":3,"severity":"high","text":"t"}]}',
            "request_changes",
            ("a.py:3 [high] t",),
        ),
    ],
)
def test_review_answers(text: str, verdict: str, comments: tuple[str, ...]) -> None:
    found = parse_review(text)
    assert (found.verdict, found.comments, found.concern) == (verdict, comments, "")


@pytest.mark.parametrize(
    "text", ["", "LGTM!", '{"verdict": "maybe"}', '{"verdict": 1}', '{"verdict": NaN}', "{'verdict': 'approve'}"]
)
def test_unread_review_approves_but_is_a_concern(text: str) -> None:
    found = parse_review(text)
    assert found.verdict is Decision.APPROVE
    assert found.concern


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"verdict":"pass","comments":["ok"],"evidence_files":["a.png"]}', QaDecision.PASS),
        ('{"verdict":"fail","comments":["no"],"evidence_files":["a.txt"]}', QaDecision.FAIL),
        ('{"verdict":"pass","comments":["ok"],"evidence_files":[]}', QaDecision.FAIL),
        ('{"verdict":"pass","comments":["ok"]}', QaDecision.FAIL),
        ("all good", QaDecision.FAIL),
        ("", QaDecision.FAIL),
    ],
)
def test_qa_answers(text: str, verdict: QaDecision) -> None:
    assert parse_qa(text).verdict is verdict


def test_comments_are_bounded() -> None:
    answer = json.dumps({"verdict": "approve", "comments": ["x" * 5_000] * 60})
    found = parse_review(answer)
    assert len(found.comments) <= 50
    assert max(map(len, found.comments)) <= 4_000


HOSTILE = {
    "braces": "{" * 3_000_000,
    "nested": '{"a":' * 600_000,
    "nested lists": '{"a":[' * 600_000,
    "open strings": '{"a":"' * 600_000,
    "padded": ('{"a":"' + "x" * 1000 + '","b":') * 1000,
    "long number": '{"a":' + "1" * 900_000 + "}",
    "escapes": '{"\\"' * 300_000,
    "lists of objects": '{"a":[{},' * 100_000,
    "spaces": ("{" + " " * 100) * 30_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_costs_bounded_work(text: str) -> None:
    start = time.process_time()
    last_object(text, ("verdict",))
    assert time.process_time() - start < 5


def test_answer_after_megabytes_of_braces_is_found() -> None:
    assert parse_review("{" * 3_000_000 + '{"verdict":"request_changes"}').refused


@settings(max_examples=150, deadline=None)
@given(texts)
def test_parsers_raise_nothing_but_typed_errors(text: str) -> None:
    parse_review(text).model_dump_json()
    parse_qa(text).model_dump_json()
    parse_analysis(text, TICKET).model_dump_json()
    parse_answered(text)
    for parse in (parse_plan, parse_greenfield):
        try:
            parse(text)
        except InvalidInput as error:
            assert error.fix


@given(st.text(alphabet=st.characters(exclude_categories=())), st.integers(1, 50))
def test_cleaned_text_can_be_stored_and_is_bounded(text: str, length: int) -> None:
    found = clean(text, length)
    found.encode()
    assert len(found) <= length
    assert "\0" not in found


@pytest.mark.parametrize(
    ("text", "story", "criteria", "concerns"),
    [
        ('{"job_story":"As","criteria":["a","b"]}', "As", ("a", "b"), 0),
        ('{"job_story":"As","criteria":["a"]}', "As", ("a",), 1),
        ('{"job_story":"As","criteria":["a","b","c","d","e","f"]}', "As", ("a", "b", "c", "d", "e"), 1),
        ('{"criteria":["a","b"]}', "Add a shop", ("a", "b"), 1),
        ("prose", "Add a shop", ("What the ticket asks for is done: Add a shop",), 2),
    ],
)
def test_analysis(text: str, story: str, criteria: tuple[str, ...], concerns: int) -> None:
    found = parse_analysis(text, TICKET)
    assert (found.job_story, found.criteria, len(found.concerns)) == (story, criteria, concerns)
