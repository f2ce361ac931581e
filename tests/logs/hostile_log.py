"""Lines that a log reader should survive: noise, and lines made to look almost like figures."""

from __future__ import annotations

import random
from collections.abc import Callable

_EVAL = (
    "       eval time =    1000.00 ms /   101 tokens (    9.90 ms per token,   "
    "101.00 tokens per second)"
)
_DRAFT = "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)"
_STATISTICS = (
    "statistics draft: #calls(b,g,a) = 1 10 10, #gen drafts = 10, #acc drafts = 9, "
    "#gen tokens = 38, #acc tokens = 29"
)
_ANSWER = '{"timings":{"predicted_n":40,"predicted_ms":70.2,"draft_n":38,"draft_n_accepted":29}}'


def _repeated(words: tuple[str, ...], most: int, between: str = "") -> Callable[..., str]:
    return lambda dice: between.join([dice.choice(words)] * dice.randrange(1, most))


def _cut(dice: random.Random) -> str:
    """A line of figures that ends too early."""
    line = dice.choice((_EVAL, _DRAFT, _ANSWER, _STATISTICS))
    return line[: dice.randrange(len(line) - 4)]


def _lying(dice: random.Random) -> str:
    """Figures that contradict each other."""
    wrong = (
        _EVAL.replace("101.00 tokens", f"{dice.randrange(200, 999)}.00 tokens"),
        _DRAFT.replace("171", f"{dice.randrange(298, 9999)}"),
        _ANSWER.replace('"draft_n_accepted":29', '"draft_n_accepted":39'),
        _ANSWER.replace("70.2", "-1"),
        _ANSWER.replace("40", "NaN"),
    )
    return dice.choice(wrong)


def _quoted(dice: random.Random) -> str:
    """What a user might paste into a prompt, as the server logs it."""
    content = dice.choice((_EVAL, _DRAFT, _ANSWER)).replace('"', '\\"')
    return f'srv log_server_r: request: {{"prompt": "my log says\\n{content}"}}'


_nested = _repeated(('{"timings":', '{"msg":', "[", '{"MESSAGE":['), 2000)
_KINDS: tuple[Callable[[random.Random], str], ...] = (
    lambda dice: dice.randbytes(dice.randrange(300)).decode("latin-1").replace("\n", ""),
    _cut,
    _lying,
    lambda dice: _nested(dice) + '"predicted_n":1,"predicted_ms":',
    _repeated((" ", "eval time = ", "\\", "predicted_ms", "loading model '", "\x1b["), 4000),
    _quoted,
    _repeated(("eval time = 1.00 ms / 1", "loading model '", "general.name", "MESSAGE"), 200, "\n"),
)


def hostile_log(size_bytes: int, seed: int = 1) -> list[bytes]:
    """``size_bytes`` of lines, none of which tells of a request; the same for the same seed."""
    dice, text, size = random.Random(seed), [], 0
    while size < size_bytes:
        text.append(dice.choice(_KINDS)(dice).encode("latin-1"))
        size += len(text[-1]) + 1
    return b"\n".join(text).split(b"\n")
