"""The arrays that the counts are made of: ``python -m tests.oracles.arrays`` wrote them once.

They are committed, so that the counts do not hang on how a generator of random numbers works.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from cook.scoring.simulate import Positions
from tests.oracles.freeze import FILES

FILE = FILES / "positions.json"
STEPS = 16
"""Tokens of every rollout: the longest draft that the counts try."""
EOG = frozenset({9})
DRAFTS = {"weak": 0.45, "fair": 0.7, "strong": 0.9}
REPLIES, LENGTH = 4, 64


def replies(draft: str) -> list[Positions]:
    """The replies as a draft of that name sees them."""
    return [_positions(one) for one in json.loads(FILE.read_text(encoding="utf-8"))[draft]]


def texts() -> list[tuple[list[int], list[int], int]]:
    """Requests of one server: the prompt, the tokens recorded, and the length of the reply."""
    return [tuple(one) for one in json.loads(FILE.read_text(encoding="utf-8"))["texts"]]


def _positions(one: dict[str, Any]) -> Positions:
    match = np.array([flag == "1" for flag in one["match"]])
    eog = np.zeros(len(match), np.bool_)
    eog[one["eog"]] = True
    return Positions(
        prompt=one["prompt"],
        reply=one["reply"],
        match=match,
        confidence=np.array(one["confidence"], np.float32),
        eog=eog,
        rollout={int(at): np.array(c, np.float32) for at, c in one["rollout"].items()},
        tail=np.array(one["tail"], np.float32),
        n_predict=one["n_predict"],
        context=one["context"],
    )


def _draw(rng: np.random.Generator, skill: float, number: int) -> dict[str, Any]:
    """Of two replies the limit is the end, of two an end of generation, with tokens beyond it."""
    ends = number % 2 == 1
    count = LENGTH + (STEPS if ends else 0)
    match = rng.random(count) < skill
    prompt = int(rng.integers(5, 40))

    def confidences(size: int, matched: float) -> list[float]:
        return [round(float(c), 2) for c in rng.random(size) ** (0.4 if matched else 1.2)]

    return {
        "prompt": prompt,
        "reply": LENGTH,
        "match": "".join("01"[int(flag)] for flag in match),
        "confidence": [confidences(1, bool(flag))[0] for flag in match],
        "eog": [LENGTH - 1] if ends else [],
        "rollout": {str(at): confidences(STEPS, 0) for at in np.nonzero(~match)[0].tolist()},
        "tail": confidences(STEPS, 1),
        "n_predict": LENGTH + (100 if ends else 0),
        "context": prompt + LENGTH + (3 if number == 3 else 300),
    }


def _texts(rng: np.random.Generator) -> list[tuple[list[int], list[int], int]]:
    """Phrases that come again, within a request and from one to the next."""
    phrases = [rng.integers(10, 60, int(n)).tolist() for n in rng.integers(4, 90, 7)]
    found = []
    for number in range(4):
        said = [t for at in rng.integers(0, len(phrases), 8) for t in phrases[at]]
        for at in rng.integers(0, len(said), 5):  # where a phrase goes on in another way
            said[at] = int(rng.integers(10, 60))
        cut = len(said) // 2
        reply = said[cut:] + ([9, 11, 12] if number % 2 else [])
        found.append((said[:cut], reply, len(said) - cut + number % 2))
    return found


if __name__ == "__main__":
    rng = np.random.default_rng(20_261_126)
    drawn: dict[str, Any] = {
        name: [_draw(rng, skill, number) for number in range(REPLIES)]
        for name, skill in DRAFTS.items()
    }
    drawn["texts"] = _texts(rng)
    FILES.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in drawn.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
