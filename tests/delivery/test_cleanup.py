"""Cleaning up after a ticket: its workshops go, whatever one of them says, and others stay."""

from __future__ import annotations

from atelier_dagster.delivery import remove_workshops
from atelier_dagster.factory.errors import Unavailable
from tests.support.delivery import Setting

TICKET = "local~demo~shop~1"


async def test_workshops_of_the_ticket_go_and_are_named(setting: Setting) -> None:
    for name in ("pm-one", "pm-two", "pm-qa"):
        await setting.workshops.create(setting.spec(setting.record(name)))
    setting.workshops.undeletable["pm-one"] = Unavailable("not now")
    first = await remove_workshops(setting.workshops, TICKET, keep={"pm-qa"})
    assert first.removed == ("pm-two",)
    assert first.problems == ("pm-one: [UNAVAILABLE] not now",)
    setting.workshops.undeletable.clear()
    assert (await remove_workshops(setting.workshops, "local~demo~shop~2")).removed == ()
    assert (await remove_workshops(setting.workshops, TICKET, keep={"pm-qa"})).removed == ("pm-one",)
    assert (await remove_workshops(setting.workshops, TICKET, keep={"pm-qa"})).removed == ()
