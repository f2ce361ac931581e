"""A target that tells text: its chat template is rendered here, its text tokenized the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.remote import Remote
from cook.errors import InputError, StepError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TokenizerFacts
from cook.formats.vocabulary import Vocabulary
from cook.prompts.prompt_set import Prompt
from cook.trace.session import Dropped, TraceRequest, record
from cook.trace.text_target import TextTarget, model_name, render

PROMPTS = (Prompt("p", "code", "ab", "pick"), Prompt("q", "code", "ba", "report"))
PLAN = TraceRequest(PROMPTS, 8, 64, Sampling(0.0, seed=1).applied("server"))
TEXTS = (b"a", b"b", b"c", b"ab", b"</s>")


class Letters:
    """A tokenizer of letters that joins ``ab``; its decoder knows no z."""

    vocabulary = Vocabulary("BPE", None, 4, False, False, TEXTS)
    size, eog, template, path = 5, frozenset({4}), None, Path("t.gguf")
    facts = TokenizerFacts(kind="BPE", bos=None, eos=4, add_bos=False, add_eos=False, size=5)

    def tokenize(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        found = []
        while text:
            taken = "ab" if text.startswith("ab") else text[0]
            found.append({"a": 0, "b": 1, "c": 2, "ab": 3, "z": 2}[taken])
            text = text[len(taken) :]
        return tuple(found)

    def detokenize(self, tokens: Any) -> str:
        return b"".join(TEXTS[t] for t in tokens).decode()


def target(fake: Any, text: str, finish: str, counted: int | None) -> TextTarget:
    answer: dict[str, Any] = {"choices": [{"text": text, "finish_reason": finish}]}
    if counted is not None:
        answer["usage"] = {"completion_tokens": counted}
    server = fake({"/v1/completions": lambda _: (200, answer)})
    return TextTarget(Remote(server.url), "m", Letters())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "finish", "counted", "tokens"),
    [
        ("cab", "length", 2, [2, 3]),
        ("cab", "length", None, [2, 3]),
        ("cab", "stop", 3, [2, 3, 4]),
        ("cab", "stop", 2, [2, 3, 4]),
    ],
)
def test_text_that_tokenizes_the_same(
    fake: Any, text: str, finish: str, counted: int | None, tokens: list[int]
) -> None:
    found = target(fake, text, finish, counted).reply(PROMPTS[0], PLAN)
    assert not isinstance(found, Dropped)
    assert found.tokens.tolist() == tokens
    assert found.head.stop == ("eog" if finish == "stop" else "limit")
    assert not found.known.any()


@pytest.mark.parametrize(
    ("prompt", "text", "counted", "told"),
    [
        ("ab", "cab", 3, "2 tokens here, 3 there"),
        ("ab", "cz", 2, "another text"),
        ("ba", "bc", 2, "make one token"),
        ("ab", "", 0, "wrote nothing"),
    ],
)
def test_text_that_does_not(fake: Any, prompt: str, text: str, counted: int, told: str) -> None:
    found = target(fake, text, "length", counted).reply(Prompt("p", "c", prompt, "pick"), PLAN)
    assert isinstance(found, Dropped)
    assert told in found.reason


def test_such_a_trace_is_greedy(fake: Any) -> None:
    warm = TraceRequest(PROMPTS, 8, 64, Sampling(0.7, seed=1).applied("server"))
    with pytest.raises(InputError, match="greedy"):
        target(fake, "c", "length", 1).header(warm)


def test_dropped_prompts_are_told_and_the_others_kept(fake: Any, tmp_path: Path) -> None:
    told = record(target(fake, "bc", "length", 2), PLAN, tmp_path / "t.trace")
    assert (told.replies, told.asked, [d.id for d in told.dropped]) == (1, 1, ["q"])
    assert told.holes == told.tokens == 2


def test_other_answers_are_step_errors(fake: Any) -> None:
    server = fake({"/v1/completions": lambda _: (200, {"choices": []})})
    with pytest.raises(StepError, match="without a text"):
        TextTarget(Remote(server.url), "m", Letters()).reply(  # type: ignore[arg-type]
            PROMPTS[0], PLAN
        )


def test_the_model_is_the_first_listed(fake: Any) -> None:
    for data, name in (([{"id": "x"}], "x"), ({}, None), ([], None), ([{"id": 1}], None)):
        server = fake({"/v1/models": lambda _, data=data: (200, {"data": data})})
        assert model_name(Remote(server.url)) == name


CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_message_becomes_a_prompt_without_bos() -> None:
    assert render(CHATML, "hi", "<s>", "</s>") == "<|user|>hi<|assistant|>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ raise_exception('no users here') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 9000000 }}",
    ],
)
def test_bad_and_hostile_templates_are_input_errors(template: str) -> None:
    with pytest.raises(InputError):
        render(template, "hi", "", "")
