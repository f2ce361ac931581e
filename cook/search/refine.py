"""From allocations to the best mix: whole mixes in a race, then changes to the leader.

An allocation is as good as its model: groups interact, and what moves the target's tokens is not
quite what moves all probabilities. So allocations are replayed whole, and the leader is changed
where it costs no bytes: one span a type up, another down (the level switches of EvoPress, arXiv
2410.14649, from a knapsack's answer on). Changes that the costs favour are tried first; each
generation races against the leader, paired by prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cook.scoring.racing import RaceRules
from cook.search.evaluate import Replies
from cook.search.ledger import Ledger
from cook.search.sensitivity import Sensitivity, kld, nll
from cook.search.space import Mix, Span

GENERATION = 6
"""Changes that race at a time."""
PATIENCE = 3
"""Generations without a better mix before the search ends by itself."""
CHANCE = 0.05
"""Of dropping the best of a generation."""
EXPLORED = 0.34
"""Share of a generation that is drawn by lot among the likelier half, not by rank."""


@dataclass(eq=False)
class Refinement:
    """The search among whole mixes of at most ``max_bytes``."""

    sensitivity: Sensitivity
    max_bytes: int
    rng: np.random.Generator

    @property
    def ledger(self) -> Ledger:
        return self.sensitivity.ledger

    def allocations(self) -> list[Mix]:
        """The mixes of least damage: by KLD, by perplexity, and where both count."""

        def both(replies: Replies) -> float:
            return kld(replies) + nll(replies)

        found = [self.sensitivity.allocated(self.max_bytes, m)[0] for m in (kld, nll, both)]
        return list(dict.fromkeys(found))

    def best(self) -> Mix:
        """Of what fits and was replayed on all prompts, that of the most tokens for its cycles."""
        space = self.sensitivity.space
        fitting = [m for m in self.ledger.known if space.bytes_of(m) <= self.max_bytes]
        return max(fitting, key=lambda m: (self.ledger.value(m), -space.bytes_of(m)))

    def run(self, starts: Sequence[Mix]) -> Mix:
        """The best mix found, from ``starts`` and the allocations on."""
        space, ledger = self.sensitivity.space, self.ledger
        first = [*self.allocations(), *starts]
        first = [m for m in dict.fromkeys(first) if space.bytes_of(m) <= self.max_bytes]
        for mix in first[: max(1, int(ledger.left))]:
            ledger.whole([mix], "candidate", "an allocation")
        idle = 0
        while idle < PATIENCE and ledger.left >= 1:
            lead = self.best()
            generation = self._changes(lead)
            if not generation:
                break
            rules = RaceRules(rounds=len(ledger.rounds), delta=CHANCE)
            ledger.race(generation, lead, rules, "repair", "a change to the leader")
            idle = 0 if self.best() != lead else idle + 1
        return self.best()

    def _changes(self, lead: Mix) -> list[Mix]:
        """The next generation: changes of ``lead`` that were not tried."""
        ranked = sorted(
            (m for m in dict.fromkeys(self._switches(lead)) if m not in self.ledger.entries),
            key=self._predicted(),
        )
        if len(ranked) <= GENERATION:
            return ranked
        sure = GENERATION - int(GENERATION * EXPLORED)
        rest = ranked[sure : max(len(ranked) // 2, GENERATION)]
        drawn = self.rng.choice(len(rest), GENERATION - sure, replace=False)
        return [*ranked[:sure], *(rest[i] for i in sorted(drawn))]

    def _switches(self, lead: Mix) -> Iterator[Mix]:
        """``lead`` with one span up and one or two down, as large as fits; and with one up or down
        where that alone fits."""
        space, spans = self.sensitivity.space, self.sensitivity.spans
        steps = {span.name: self._steps(lead, span) for span in spans}
        for up in spans:
            for higher in steps[up.name][1]:
                grown = space.changed(lead, up, higher)
                if space.bytes_of(grown) <= self.max_bytes:
                    yield grown
                    continue
                others = [s for s in spans if s is not up]
                for downs in itertools.chain(
                    itertools.combinations(others, 1), itertools.combinations(others, 2)
                ):
                    for lower in itertools.product(*(steps[d.name][0] for d in downs)):
                        mix = grown
                        for span, type_name in zip(downs, lower, strict=True):
                            mix = space.changed(mix, span, type_name)
                        if space.bytes_of(mix) <= self.max_bytes:
                            yield mix

    @staticmethod
    def _steps(mix: Mix, span: Span) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The types up to two steps below and above that of ``span``, the nearest first."""
        now = mix[span.ties[0]]
        at = span.types.index(now) if now in span.types else len(span.types)
        return tuple(reversed(span.types[max(0, at - 2) : at])), span.types[at + 1 : at + 3]

    def _predicted(self) -> Callable[[Mix], float]:
        """Damage by the costs: what a mix adds to the reference's KLD and takes off the
        likelihood."""
        spans = self.sensitivity.spans
        tables = [
            {cost.type: cost.damage for cost in one.costs}
            for metric in (kld, nll)
            for one in self.sensitivity.costs(metric)
        ]
        places = [span.ties[0] for span in spans] * 2

        def damage(mix: Mix) -> float:
            return sum(
                table.get(mix[place], 0.0) for table, place in zip(tables, places, strict=True)
            )

        return damage
