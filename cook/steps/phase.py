"""What a build does, in a few words: what plans and nights call a group of steps."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """One part of a build, in the usual order."""

    CONVERT = "convert the source"
    IMATRIX = "importance matrix"
    QUANTIZE = "quantize the drafts"
    QUALITY = "PPL, KLD and memory"
    TRACE = "record the target"
    REPLAY = "replay the drafts"
    TIMES = "time target and drafts"
    LIVE = "live runs"
    CHECKS = "check outputs and counts"
