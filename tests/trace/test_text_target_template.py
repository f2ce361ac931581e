"""Chat templates rendered here."""

from __future__ import annotations

import pytest

from cook.errors import InputError
from cook.trace.text_target import render

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
