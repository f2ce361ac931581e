"""Prompts kept apart for calibration: what the target writes on them may tune an imatrix.

A draft that was calibrated on the very text it is scored on would look better than it is. So a
prompt calibrates or scores, never both, and which of the two depends on its id alone: adding or
leaving out other prompts moves none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cook.errors import InputError
from cook.prompts.prompt_set import PromptSet, load_prompts, subset

OWN_SETS = {"demo": "demo-calibration"}
"""Sets that come with prompts of their own for calibration."""
SHARE = 3
"""One prompt in so many calibrates, where a set has none of its own for it."""


@dataclass(frozen=True)
class Split:
    """Prompts to calibrate on, and those left to score on."""

    calibration: PromptSet
    scoring: PromptSet


def calibrates(prompt_id: str) -> bool:
    """Whether the prompt of this id is kept for calibration, in any set and for ever."""
    digest = hashlib.sha256(f"calibration\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SHARE == 0


def split_for_calibration(source: str | Path, prompts: PromptSet) -> Split:
    """``prompts`` of ``source``, split in two before any limit or choice of categories.

    InputError when one part is empty, or a text is in both.
    """
    if source in OWN_SETS:
        split = Split(load_prompts(OWN_SETS[str(source)]), prompts)
    else:
        kept = [p for p in prompts.prompts if calibrates(p.id)]
        rest = [p for p in prompts.prompts if not calibrates(p.id)]
        if not kept or not rest:
            empty = "calibration" if not kept else "scoring"
            raise InputError(
                f"{prompts.name}: of {len(prompts.prompts)} prompts none is left for {empty} "
                "(imatrix.corpus: trace keeps one in three apart, by its id)",
                hint="give more prompts, or a text as imatrix.corpus",
            )
        split = Split(subset(prompts, kept), subset(prompts, rest))
    require_apart(split.calibration, split.scoring)
    return split


def require_apart(calibration: PromptSet, scoring: PromptSet) -> None:
    """InputError for a prompt text that both sets have."""
    texts = {p.whole.strip(): p.id for p in calibration.prompts}
    for prompt in scoring.prompts:
        if (twin := texts.get(prompt.whole.strip())) is not None:
            raise InputError(
                f"{scoring.name}: prompt {prompt.id} is also calibrated on (as {twin}): its score "
                "would flatter",
                hint="leave one of the two out",
            )
