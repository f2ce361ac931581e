"""What a server said of each request: the counts and times that every figure is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptRun:
    """What the server said of one request.

    ``tokens`` are the emitted ids (None where the engine returns none: ik). Times in ms:
    ``prompt_ms`` and ``predicted_ms`` are the server's, ``wall_ms`` the client's from request
    to answer, which holds the prefill of target and draft. ``draft_n`` is None when nothing was
    drafted, never 0. ``draft_prompt_ms``: of ``prompt_ms``, the draft's reading of the prompt, as
    it was timed apart, where the server calls that decoding (ik); None where the times are the
    server's own words.
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

    @property
    def cycles(self) -> int | None:
        """Verification cycles, by token identity: emitted = 1 + accepted + cycles."""
        if self.draft_n_accepted is None:
            return None
        return self.predicted_n - 1 - self.draft_n_accepted
