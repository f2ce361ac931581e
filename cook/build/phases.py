"""What a build does, in a few words: kinds of steps gathered into phases, in their usual order."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """One thing that a build does; its value is what a plan and a nightly call it."""

    CONVERT = "convert the source"
    IMATRIX = "importance matrix"
    QUANTIZE = "quantize the drafts"
    QUALITY = "PPL, KLD and memory"
    TRACE = "record the target"
    REPLAY = "replay the drafts"
    TIMES = "time target and drafts"
    LIVE = "live runs"
    CHECKS = "check outputs and counts"


_OF = {
    "convert": Phase.CONVERT,
    "trace-corpus": Phase.IMATRIX,
    "imatrix": Phase.IMATRIX,
    "quantize": Phase.QUANTIZE,
    "head": Phase.QUANTIZE,
    "reduce": Phase.QUANTIZE,
    "perplexity": Phase.QUALITY,
    "divergence": Phase.QUALITY,
    "memory": Phase.QUALITY,
    "trace": Phase.TRACE,
    "recorded-trace": Phase.TRACE,
    "replay": Phase.REPLAY,
    "curve": Phase.TIMES,
    "slot-curve": Phase.TIMES,
    "deal": Phase.LIVE,
    "live": Phase.LIVE,
    "compare": Phase.CHECKS,
    "control": Phase.CHECKS,
    "selfcheck": Phase.CHECKS,
}


def phase_of(kind: str) -> Phase:
    """The phase of a step of this kind; KeyError for a kind that no build has."""
    return _OF[kind]
