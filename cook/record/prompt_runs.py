"""What a server said of each request: the counts and times that every figure is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

TIMES = ("prompt_ms", "predicted_ms", "wall_ms", "draft_prompt_ms", "late_reading_ms")
"""What of a :class:`PromptRun` are times."""


@dataclass(frozen=True)
class PromptRun:
    """What the server said of one request.

    ``tokens`` are the emitted ids (None where the engine returns none: ik). Times in ms:
    ``prompt_ms`` and ``predicted_ms`` are the server's, ``wall_ms`` the client's from request
    to answer, which holds the prefill of target and draft. ``draft_n`` is None when nothing was
    drafted, never 0.

    Where the server calls the draft's reading of the prompt decoding (ik), ``late_reading_ms`` is
    what of ``predicted_ms`` it took, as the answer tells, and once it is counted there,
    ``draft_prompt_ms`` what of ``prompt_ms`` it is; each None where it is not so.
    """

    id: str
    category: str
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    wall_ms: float
    draft_n: int | None
    draft_n_accepted: int | None
    tokens: tuple[int, ...] | None
    text: str
    stop: str
    draft_prompt_ms: float | None = None
    late_reading_ms: float | None = None

    @property
    def cycles(self) -> int | None:
        """Verification cycles, by token identity: emitted = 1 + accepted + cycles."""
        if self.draft_n_accepted is None:
            return None
        return self.predicted_n - 1 - self.draft_n_accepted

    def slowed(self, factor: float) -> PromptRun:
        """The same request with all its times multiplied by ``factor``."""
        times = {name: getattr(self, name) for name in TIMES}
        return replace(self, **{n: ms * factor for n, ms in times.items() if ms is not None})
