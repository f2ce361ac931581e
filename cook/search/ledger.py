"""Every evaluation of a search: made once, counted against the budget, and kept with its reason."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cook.record.search_record import Purpose
from cook.search.evaluate import Evaluator, Replies
from cook.search.space import Mix


@dataclass(frozen=True)
class Budget:
    """What a search may take: ``evaluations``, mixes replayed on the prompts of the search, and
    ``seconds`` of wall time. None: no limit."""

    evaluations: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One mix that was replayed, and how long that took."""

    purpose: Purpose
    why: str
    replies: Replies
    seconds: float


@dataclass(eq=False)
class Ledger:
    """What ``evaluator`` found of mixes on ``prompts`` (ids).

    ``entries`` by mix, in the order in which they were first asked for. A search that goes on
    where it was interrupted makes the same evaluations again, from the store.
    """

    evaluator: Evaluator
    prompts: tuple[str, ...]
    budget: Budget = Budget()
    began: float = field(default_factory=time.monotonic)
    entries: dict[Mix, Evaluated] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Evaluations that may still be made: by their number, or by what those so far took."""
        found, spent = float("inf"), len(self.entries)
        if self.budget.evaluations is not None:
            found = self.budget.evaluations - spent
        if self.budget.seconds is not None and spent:
            taken = time.monotonic() - self.began
            found = min(found, (self.budget.seconds - taken) * spent / taken)
        return found

    def known(self, mix: Mix) -> Replies | None:
        """What ``mix`` did; None where it was not replayed."""
        return self.entries[mix].replies if mix in self.entries else None

    def replay(self, mix: Mix, purpose: Purpose, why: str) -> Replies:
        """What ``mix`` does, evaluated unless it was before."""
        if mix not in self.entries:
            began = time.monotonic()
            replies = self.evaluator(mix, self.prompts)
            seconds = time.monotonic() - began
            self.entries[mix] = Evaluated(purpose, why, replies, seconds)
        return self.entries[mix].replies
