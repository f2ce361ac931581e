"""Every evaluation of a search: told once, counted against the budget, and kept with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cook.formats.arrays import Floats
from cook.record.search_record import Purpose
from cook.scoring.racing import RaceRules, survivors
from cook.search.evaluate import Evaluator, Replies, joined
from cook.search.space import Mix


@dataclass(frozen=True)
class Budget:
    """What a search may take. ``evaluations``: mixes replayed on all prompts of the search; one
    on some of them counts as its share. ``seconds`` of wall time. None: no limit."""

    evaluations: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """One mix as far as it was replayed. ``dropped``: why it left its race."""

    purpose: Purpose
    why: str
    mix: Mix
    replies: Replies
    seconds: float
    dropped: str | None = None


@dataclass(eq=False)
class Ledger:
    """What ``evaluator`` told of mixes on the prompts of ``rounds``, ids in the order of a race.

    ``spent`` evaluations, of which a search that goes on where it was broken off was told most
    before; ``entries`` by mix, in the order in which they were first asked for.
    """

    evaluator: Evaluator
    rounds: tuple[tuple[str, ...], ...]
    budget: Budget = Budget()
    cycle: Callable[[Mix], float] = lambda _: 1.0
    """What a cycle of a mix costs: a race is for the most tokens for that."""
    began: float = field(default_factory=time.monotonic)
    spent: float = 0.0
    entries: dict[Mix, Evaluated] = field(default_factory=dict)
    known: dict[Mix, Replies] = field(default_factory=dict)
    """Those of mixes that were replayed on all prompts."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Those of all rounds."""
        return tuple(name for share in self.rounds for name in share)

    @property
    def left(self) -> float:
        """Evaluations that may still be made: by their number, or by what those so far took."""
        found = float("inf")
        if self.budget.evaluations is not None:
            found = self.budget.evaluations - self.spent
        if self.budget.seconds is not None:
            taken = time.monotonic() - self.began
            pace = taken / self.spent if self.spent else 0.0
            remaining = self.budget.seconds - taken
            found = min(found, remaining / pace if pace else float("inf"))
        return found

    def whole(self, mixes: Sequence[Mix], purpose: Purpose, why: str) -> list[Replies]:
        """``mixes`` on all prompts."""
        fresh = [m for m in dict.fromkeys(mixes) if m not in self.entries]
        if fresh and len(self.rounds) > 1:
            self._ask(fresh, self.prompts, purpose, why)
        for number in range(len(self.rounds)):
            self._round(list(dict.fromkeys(mixes)), number, purpose, why)
        return [self.known[mix] for mix in mixes]

    def race(
        self, mixes: Sequence[Mix], lead: Mix, rules: RaceRules, purpose: Purpose, why: str
    ) -> list[Mix]:
        """Those of ``mixes`` that were replayed on all prompts; the others left on the way, as they
        were behind ``lead``, which was."""
        alive = [m for m in dict.fromkeys(mixes) if m != lead]
        for number in range(len(self.rounds)):
            alive = self._affordable(alive, number)
            if not alive:
                break
            self._round(alive, number, purpose, why)
            if number + 1 == len(self.rounds):
                break
            seen = tuple(name for share in self.rounds[: number + 1] for name in share)
            field_ = [self.entries[m].replies.on(seen) for m in (lead, *alive)]
            costs = [self.cycle(m) for m in (lead, *alive)]
            kept = survivors(lead_scores(field_, costs), tuple(range(len(field_))), rules, lead=0)
            for place, mix in enumerate(alive, 1):
                if place not in kept and self._seen(mix) == number + 1:
                    told = f"behind after {len(seen)} of {len(self.prompts)} prompts"
                    self.entries[mix] = replace(self.entries[mix], dropped=told)
            alive = [m for place, m in enumerate(alive, 1) if place in kept]
        return [m for m in alive if m in self.known]

    def _affordable(self, mixes: Sequence[Mix], number: int) -> list[Mix]:
        """Those that were replayed on a round already, and as many of the others as the budget
        has room for."""
        room = max(self.left, 0.0) * len(self.prompts) / len(self.rounds[number])
        found = []
        for mix in mixes:
            if self._seen(mix) <= number:
                room -= 1
            if self._seen(mix) > number or room >= 0:
                found.append(mix)
        return found

    def value(self, mix: Mix) -> float:
        """Tokens for what cycles cost, over all prompts."""
        return self.known[mix].acceptance_length / self.cycle(mix)

    def _seen(self, mix: Mix) -> int:
        """Rounds that ``mix`` was replayed on."""
        entry = self.entries.get(mix)
        if entry is None:
            return 0
        seen = set(entry.replies.ids)
        return next(
            (n for n, share in enumerate(self.rounds) if share[0] not in seen), len(self.rounds)
        )

    def _round(self, mixes: Sequence[Mix], number: int, purpose: Purpose, why: str) -> None:
        wanted = [m for m in mixes if self._seen(m) == number]
        if wanted:
            self._ask(wanted, self.rounds[number], purpose, why)

    def _ask(
        self, mixes: Sequence[Mix], prompts: tuple[str, ...], purpose: Purpose, why: str
    ) -> None:
        began = time.monotonic()
        found = self.evaluator(mixes, prompts)
        seconds = (time.monotonic() - began) / len(mixes)
        self.spent += len(mixes) * len(prompts) / len(self.prompts)
        for mix, replies in zip(mixes, found, strict=True):
            before = self.entries.get(mix)
            if before is None:
                self.entries[mix] = Evaluated(purpose, why, mix, replies, seconds)
            else:
                both = joined([before.replies, replies])
                self.entries[mix] = replace(
                    before, replies=both, seconds=before.seconds + seconds, dropped=None
                )
            if self._seen(mix) == len(self.rounds):
                self.known[mix] = self.entries[mix].replies.on(self.prompts)


def lead_scores(field: Sequence[Replies], costs: Sequence[float]) -> Floats:
    """[mixes, prompts] scores whose mean is 0 for the first of them: what each prompt takes of how
    far a mix is behind the first in tokens for what its cycles cost, as a share."""
    first = field[0].acceptance_length / costs[0]
    parts = np.array([r.tokens - first * c * r.cycles for r, c in zip(field, costs, strict=True)])
    return np.asarray(parts / float(field[0].tokens.mean()))
