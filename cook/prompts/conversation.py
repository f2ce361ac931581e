"""Conversations as prompts: records of ``messages`` (OpenAI, UltraChat), ``conversation`` (LMSYS,
WildChat) and ``conversations`` (ShareGPT), as data sets have them.

All up to the last turn of the user is the prompt; the answer that follows in the data is dropped,
since the target writes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cook.errors import InputError

TURNS = ("messages", "conversations", "conversation")
"""Keys that hold a record's turns."""
IDS = ("id", "prompt_id", "conversation_id")
ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant")},
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "model", "bot"), "assistant"),
}
"""What a turn's speaker is called -> the role that a chat template knows."""
TOOLS = frozenset({"tool", "function", "function_call", "tool_call", "observation"})
TEXT_PARTS = ("text", "input_text")


def is_conversation(row: Mapping[str, Any]) -> bool:
    """Whether a record is one, and no prompt alone."""
    return any(key in row for key in TURNS)


def as_prompt(
    row: Mapping[str, Any], number: int
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The record ``number`` of a file with the keys of a prompt, and role and text of the turns
    before it; other keys of the record say nothing of the prompt.

    InputError, without a place, for a record that is no conversation in text.
    """
    turns = next(row[key] for key in TURNS if key in row)
    if not isinstance(turns, list):
        raise InputError("a conversation is a list of turns")
    said = [_turn(turn, count) for count, turn in enumerate(turns, 1)]
    if isinstance(system := row.get("system"), str) and system.strip():
        said.insert(0, ("system", system))
    asked = max((n for n, (role, _) in enumerate(said) if role == "user"), default=None)
    if asked is None:
        raise InputError("no turn of the user in this conversation")
    if row.get("images") or row.get("image"):
        raise InputError("an image belongs to this conversation: drafts are scored on text")
    names = (row[key] for key in IDS if isinstance(row.get(key), str | int))
    category = row.get("category")
    prompt = {
        "id": str(next(names, f"conversation-{number}")),
        "category": category if isinstance(category, str) and category else "conversation",
        "prompt": said[asked][1],
        **({"half": row["half"]} if "half" in row else {}),
    }
    return prompt, tuple(said[:asked])


def _turn(turn: object, count: int) -> tuple[str, str]:
    """Role and text of one turn."""
    if not isinstance(turn, dict):
        raise InputError(f"turn {count} is no object with a role and a content")
    name = turn.get("role", turn.get("from"))
    role = ROLES.get(name) if isinstance(name, str) else None
    if name in TOOLS or turn.get("tool_calls") or turn.get("function_call"):
        raise InputError(f"turn {count}: calls of tools and their results are not rendered")
    if role is None:
        raise InputError(
            f"turn {count}: unknown role {name!r}", hint=f"known are {', '.join(ROLES)}"
        )
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        texts: list[str] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            text = part.get("text") if isinstance(part, dict) else part
            if kind is not None and kind not in TEXT_PARTS:
                raise InputError(
                    f"turn {count} holds a part of type {kind!r}: drafts are scored on text"
                )
            if not isinstance(text, str):
                raise InputError(f"turn {count}: a part of its content is no text")
            texts.append(text)
        content = "\n".join(texts)  # as servers join them
    if not isinstance(content, str) or not content.strip():
        raise InputError(f"turn {count} of the {role} has no text")
    return role, content
