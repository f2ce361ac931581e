"""From a tool's raw output to "12 of 34", for whoever draws it."""

from __future__ import annotations

from cook.engines import parse
from cook.engines.process import Supervisor

_KEEP = 2048


class Meter:
    """An ``on_output`` callback that tells ``supervisor.on_progress`` how far a tool is.

    Output comes in arbitrary pieces and without newlines, so each stream keeps its last part.
    """

    def __init__(self, supervisor: Supervisor, total: int | None = None) -> None:
        self._report, self._total = supervisor.on_progress, total
        self._last: dict[str, str] = {}
        self._told: tuple[int, int | None] | None = None

    def __call__(self, stream: str, chunk: bytes) -> None:
        if self._report is None:
            return
        text = self._last.get(stream, "") + chunk[-_KEEP:].decode("utf-8", errors="replace")
        self._last[stream] = text[-_KEEP:]
        if self._total is None:
            self._total = parse.parse_planned_chunks(text)
        progress = parse.progress_of(text, self._total)
        if progress is not None and progress != self._told:
            self._told = progress
            self._report(*progress)
