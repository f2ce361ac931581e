"""Lines that a log reader should survive: noise, and lines made to look almost like figures."""

from __future__ import annotations

import random

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


def hostile_log(size_bytes: int, seed: int = 1) -> bytes:
    """``size_bytes`` of lines, none of which tells of a request; the same for the same seed."""
    dice = random.Random(seed)
    kinds = (_random_bytes, _cut, _lying, _nested, _long, _quoted, _repeated)
    parts: list[bytes] = []
    size = 0
    while size < size_bytes:
        line = dice.choice(kinds)(dice) + b"\n"
        parts.append(line)
        size += len(line)
    return b"".join(parts)[: size_bytes - 1] + b"\n"


def _random_bytes(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(300)).replace(b"\n", b"")


def _cut(dice: random.Random) -> bytes:
    """A line of figures that ends too early."""
    line = dice.choice((_EVAL, _DRAFT, _ANSWER, _STATISTICS))
    return line[: dice.randrange(len(line) - 4)].encode()


def _lying(dice: random.Random) -> bytes:
    """Figures that contradict each other."""
    wrong = (
        _EVAL.replace("101.00 tokens", f"{dice.randrange(200, 999)}.00 tokens"),
        _DRAFT.replace("171", f"{dice.randrange(298, 9999)}"),
        _ANSWER.replace('"draft_n_accepted":29', '"draft_n_accepted":39'),
        _ANSWER.replace("70.2", "-1"),
        _ANSWER.replace("40", "NaN"),
    )
    return dice.choice(wrong).encode()


def _nested(dice: random.Random) -> bytes:
    opening = dice.choice(('{"timings":', '{"msg":', "[", '{"MESSAGE":['))
    answer = '"predicted_n":1,"predicted_ms":'
    return (opening * dice.randrange(1, 2000) + answer).encode()


def _long(dice: random.Random) -> bytes:
    text = dice.choice((" ", "eval time = ", "\\", "predicted_ms", "loading model '", "\x1b["))
    return (text * dice.randrange(1, 4000)).encode()


def _quoted(dice: random.Random) -> bytes:
    """What a user might paste into a prompt, as the server logs it."""
    content = dice.choice((_EVAL, _DRAFT, _ANSWER)).replace('"', '\\"')
    return f'srv log_server_r: request: {{"prompt": "my log says\\n{content}"}}'.encode()


def _repeated(dice: random.Random) -> bytes:
    needle = dice.choice(("eval time = 1.00 ms / 1", "loading model '", "general.name", "MESSAGE"))
    return "\n".join([needle] * dice.randrange(1, 200)).encode()
