"""A chat template rendered here, for endpoints that tell only text.

The template comes from a model's file: it runs in jinja2's immutable sandbox, as transformers
runs it, and its output is bounded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cook.errors import InputError, PrerequisiteError

MAX_BYTES = 8 << 20


def render(template: str, message: str, bos: str, eos: str) -> str:
    """``message`` as the first user turn, ready for the reply; InputError for a bad template."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise PrerequisiteError(
            "jinja2 is needed to render chat templates", hint="pip install jinja2"
        ) from None

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(told: object) -> Any:
        raise TemplateError(str(told))

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        text = environment.from_string(template).render(
            messages=[{"role": "user", "content": message}],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
        )
    # a template is a program of somebody else's: whatever it raises is its fault
    except Exception as error:
        raise InputError(f"the chat template cannot be rendered: {str(error)[:200]}") from None
    if len(text) > MAX_BYTES:
        raise InputError(f"the chat template makes more than {MAX_BYTES} characters of one prompt")
    # the tokenizer adds BOS by itself
    return text.removeprefix(bos) if bos else text
