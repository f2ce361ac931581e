"""The arrays that the counts are made of: drawn once, and committed, so that the counts do not
hang on how a generator of random numbers works."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from cook.scoring.simulate import Positions
from tests.oracles.freeze import FILES

EOG = frozenset({9})
DRAFTS = ("weak", "fair", "strong")


def replies(draft: str) -> list[Positions]:
    """The replies as a draft of that name sees them."""
    return [_positions(one) for one in _drawn()[draft]]


def texts() -> list[tuple[list[int], list[int], int]]:
    """Requests of one server: the prompt, the tokens recorded, and the length of the reply."""
    return [tuple(one) for one in _drawn()["texts"]]


def _drawn() -> Any:
    return json.loads((FILES / "positions.json").read_text(encoding="utf-8"))


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
