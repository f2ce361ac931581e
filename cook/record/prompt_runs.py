"""What a server said of each request: the counts and times that every figure is made of."""

from __future__ import annotations

from dataclasses import dataclass

TOLERATED_CORES = 0.15
"""Processor use by others, in cores, that is no disturbance: timers, the kernel, a shell."""


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

    A live request is of a ``block`` of prompts, which has servers of its own, and the ``order``-th
    of it; ``others_cores`` other programs kept busy meanwhile, None where the kernel does not say.
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
    block: int = 0
    order: int = 0
    others_cores: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether another program kept the processor busy meanwhile."""
        return self.others_cores is not None and self.others_cores > TOLERATED_CORES

    @property
    def cycles(self) -> int | None:
        """Verification cycles, by token identity: emitted = 1 + accepted + cycles."""
        if self.draft_n_accepted is None:
            return None
        return self.predicted_n - 1 - self.draft_n_accepted
