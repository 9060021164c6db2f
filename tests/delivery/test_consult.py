"""What a step asks a model: once, and with an answer that its readers can judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier_dagster.artifacts import DirectoryStore
from atelier_dagster.delivery.consult import Consultant
from atelier_dagster.factory.errors import AtelierError, ModelSilent, ModelUnavailable
from atelier_dagster.factory.prompts import Prompt
from atelier_dagster.gateway import OpenAIGateway
from atelier_dagster.ports import ChatAnswer

PROMPT = Prompt(system="You are the analyst of a software team.", user="Title: Sort")


class Model(OpenAIGateway):
    """Answers as told, without an endpoint."""

    def __init__(self, *answers: str | AtelierError) -> None:
        super().__init__("http://127.0.0.1:9/v1", None, "m")
        self.answers = list(answers)

    async def chat(self, role: str, messages: object) -> ChatAnswer:
        answer = self.answers.pop(0)
        if isinstance(answer, AtelierError):
            raise answer
        return ChatAnswer(text=answer, model="m", tokens_in=3, tokens_out=2)


def consultant(model: Model, place: Path, generation: int = 1) -> Consultant:
    return Consultant(model, DirectoryStore(place), "local~o~r~1", generation)


async def test_an_answer_that_came_is_not_asked_for_again(tmp_path: Path) -> None:
    model = Model("first", "second")
    for _ in range(2):
        assert await consultant(model, tmp_path).ask("analyst", PROMPT) == "first"
    assert await consultant(model, tmp_path, generation=2).ask("analyst", PROMPT) == "second"


async def test_a_model_that_says_nothing_is_an_answer_that_cannot_be_read(tmp_path: Path) -> None:
    asking = consultant(Model(ModelSilent("nothing", fix="ask again")), tmp_path)
    assert await asking.ask("analyst", PROMPT) == ""
    assert await asking.ask("analyst", PROMPT) == "", "and is kept like any other"


async def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable):
        await consultant(Model(ModelUnavailable("gone", fix="wait")), tmp_path).ask("analyst", PROMPT)
