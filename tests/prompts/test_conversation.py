"""Conversations of data sets as prompts, in every spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError
from cook.prompts.conversation import ROLES
from cook.prompts.prompt_set import load_prompts

SAID = (("system", "Be short."), ("user", "Hi."), ("assistant", "Hello."))
ASKED = "And a joke?"

OPENAI = [{"role": role, "content": text} for role, text in (*SAID, ("user", ASKED))]
SHAREGPT = [
    {"from": {"user": "human", "assistant": "gpt"}.get(role, role), "value": text}
    for role, text in (*SAID, ("user", ASKED))
]
LAST = {"role": "assistant", "content": "No."}
PARTS: list[dict[str, Any]] = [
    {"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]}
    for turn in OPENAI
]
PARTS[0]["content"] = [OPENAI[0]["content"]]

RECORDS: dict[str, dict[str, Any]] = {
    # OpenAI's fine-tuning format; also what a client sends to /v1/chat/completions.
    "openai": {"messages": [*OPENAI, {**LAST, "weight": 1}], "tools": []},
    "parts": {"messages": PARTS, "model": "gpt-4o"},
    # HuggingFaceH4/ultrachat_200k: the first turn again in `prompt`.
    "ultrachat": {"prompt": "Hi.", "prompt_id": "f0e37e9f", "messages": [*OPENAI, LAST]},
    # ShareGPT_V3_unfiltered_cleaned_split.json (anon8231489123).
    "sharegpt": {"id": "QWJhYvA_0", "conversations": [*SHAREGPT, {"from": "gpt", "value": "No."}]},
    # teknium/OpenHermes-2.5: null next to what is said.
    "openhermes": {
        "category": None,
        "source": "airoboros2.2",
        "conversations": [{**turn, "weight": None} for turn in SHAREGPT],
    },
    # LLaMA-Factory's sharegpt: the system's turn apart.
    "llama-factory": {"system": "Be short.", "conversations": SHAREGPT[1:], "tools": ""},
    # lmsys/lmsys-chat-1m and allenai/WildChat: `conversation`.
    "lmsys": {
        "conversation_id": "33f0",
        "conversation": [*OPENAI, LAST],
        "turn": 2,
        "model": "vicuna-13b",
    },
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("as_list", [False, True])
def test_every_spelling_is_the_conversation_up_to_the_last_question(
    name: str, as_list: bool, tmp_path: Path
) -> None:
    record = RECORDS[name]
    path = tmp_path / ("p.json" if as_list else "p.jsonl")
    path.write_text(json.dumps([record], indent=2) if as_list else json.dumps(record) + "\n")
    (prompt,) = load_prompts(path).prompts
    assert (prompt.earlier, prompt.text) == (SAID, ASKED)
    assert prompt.messages == OPENAI
    ids = {"ultrachat": "f0e37e9f", "sharegpt": "QWJhYvA_0", "lmsys": "33f0"}
    assert prompt.id == ids.get(name, "conversation-1")
    assert prompt.category == "conversation"


def test_a_lone_question_is_the_prompt_it_always_was(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    whole = {"id": "a", "category": "c", "half": "pick"}
    path.write_text(json.dumps({**whole, "messages": [{"role": "user", "content": "say"}]}))
    as_turns = load_prompts(path)
    path.write_text(json.dumps({**whole, "prompt": "say"}))
    assert load_prompts(path) == as_turns
    path.write_text(json.dumps({**whole, "messages": OPENAI}))
    conversation = load_prompts(path)
    assert conversation.sha256 != as_turns.sha256
    assert json.loads(conversation.prompts[0].whole)[:3] == [list(turn) for turn in SAID]


@pytest.mark.parametrize("name", ROLES)
def test_speakers_have_the_roles_of_templates(name: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    turns = [{"from": name, "value": "one"}, {"from": "human", "value": "two"}]
    path.write_text(json.dumps({"conversations": turns}))
    (prompt,) = load_prompts(path).prompts
    assert prompt.earlier == ((ROLES[name], "one"),)
    assert ROLES[name] in ("system", "developer", "user", "assistant")


def turn(**keys: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "user", **keys}]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (turn(role="narrator", content="x"), "turn 2: unknown role 'narrator'"),
        ({"conversations": [{"from": "alice", "value": "x"}]}, "turn 1: unknown role 'alice'"),
        (turn(role="tool", content="12"), "turn 2: calls of tools"),
        (turn(role="assistant", content=None, tool_calls=[{}]), "turn 2: calls of tools"),
        (turn(content=[{"type": "image_url", "image_url": {}}]), "a part of type 'image_url'"),
        ({**turn(content="<image>"), "images": ["a.png"]}, "an image belongs to"),
        (turn(content=[{"type": "text"}]), "turn 2: a part of its content is no text"),
        (turn(content=""), "turn 2 of the user has no text"),
        (turn(content={"a": 1}), "turn 2 of the user has no text"),
        ({"messages": [LAST]}, "no turn of the user"),
        ({"conversations": "text"}, "a conversation is a list of turns"),
        ({"messages": ["text"]}, "turn 1 is no object"),
        ({"conversations": [{"from": "human", "value": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_what_is_no_text_is_refused_at_its_line(
    record: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    first, second = json.dumps(RECORDS["openai"]), json.dumps(record)
    for text in (f"{first}\n{second}", f"[{first},\n{second}\n]"):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            load_prompts(path)
        assert caught.value.message.startswith(f"{path}:2: ")
        assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[\n{"messages": []},\n{"a": }\n]', 3, "not JSON"),
        ("[\n1]", 2, "not a JSON object"),
        ("[]", 1, "no prompt in this file"),
        ('[{"id": "a"}] {}', 1, "not JSON: Extra data"),
    ],
)
def test_a_list_that_is_none(text: str, line: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_prompts(path)
    assert caught.value.message.startswith(f"{path}:{line}: {message}")
