"""The model's side of test tickets: roles answer as `MODEL:<role>=<how>` in the ticket says, else they agree."""

from __future__ import annotations

import json
import re

from tests.support.model import Answer, approve

_ORDER = re.compile(r"MODEL:([a-z]+)=([a-z0-9-]+)")
_NAMES = {
    "analyst": "analyst",
    "planner": "planner",
    "greenfield designer": "greenfield",
    "architect": "architect",
    "code reviewer": "code",
    "security reviewer": "security",
    "operations reviewer": "ops",
}

TWO = [
    {"id": "left", "title": "Left", "description": "d", "scope": ["left/**"]},
    {"id": "right", "title": "Right", "description": "d", "scope": ["right/**"]},
]
OVERLAP = [
    {"id": "one", "title": "One", "description": "d", "scope": ["src/**"]},
    {"id": "two", "title": "Two", "description": "d", "scope": ["src/core/**"]},
]


def respond(role: str, prompt: str) -> Answer:
    """Answers decided from the prompt alone."""
    orders = dict(_ORDER.findall(prompt))
    how = orders.get(_NAMES.get(role, ""), "") or orders.get("all", "")
    if how.isdigit():
        return int(how), {"error": {"message": f"status {how}", "type": "test"}}
    if how == "garbage":
        return "I would rather talk about the weather { not json"
    if how == "refuse" or (how == "refuse-once" and "change 2" not in prompt):
        return json.dumps({"verdict": "request_changes", "comments": ["this is not good enough"]})
    if role == "planner" and how == "two":
        return json.dumps({"tasks": TWO})
    if role == "planner" and how in ("overlap", "overlap-once"):
        replanned = how == "overlap-once" and 'name="objections"' in prompt
        return json.dumps({"tasks": TWO if replanned else OVERLAP})
    return approve(role, prompt)
