"""Searches on a space that was exhausted: what they miss, whom they beat, how often they are worse.

Every mix of the space was replayed once (:mod:`bench.mix_table`), so a search is given the table in
the place of replays, and the best mix of every size is known. The sizes go evenly from the smallest
mix to the largest.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.mix_table import MixTable
from bench.study import Study
from cook.search.findings import Explored
from cook.search.judge import CONFIDENCE, MARGIN, Contender, Judged, judge
from cook.search.ledger import Budget, Ledger
from cook.search.pace import ByCycle
from cook.search.search import Aims, explored
from cook.search.sensitivity import kld, nll
from cook.search.space import Mix

DATA = Path(__file__).parent.parent / "tests" / "data"
FAMILIES = ("demo", "dense")
SHARE = 0.05
"""Of the mixes of the space, the evaluations that a search may take; in a space too small for it
:data:`FEWEST`."""
FEWEST = 24
WITHIN = 0.99
SIZES = 24
SEEDS = 100
HAND = {
    "small": ("q2_K", {}),
    "middle": ("q4_K", {}),
    "puffed": ("q8_0", {"experts": "q2_K"}),
    "puffed-4": ("q8_0", {"experts": "q4_K"}),
    "layered": ("q4_K", {"experts": "q2_K"}),
    "output": ("q2_K", {"output": "q8_0"}),
    "output-4": ("q2_K", {"output": "q4_K", "embeddings": "q4_K"}),
}
"""Types as people write them: one for all; the experts small and what every token uses larger; the
output spared. ``experts`` is the dense network of a model that has none."""


@dataclass(frozen=True, eq=False)
class Played:
    """One search of the table: what it ended with, the evaluations it spent, and the verdict."""

    found: Explored
    spent: float
    judged: Judged
    contenders: tuple[Contender, ...]

    def types_of(self, name: str) -> dict[str, str]:
        """Types by tensor."""
        return dict(next(c.types for c in self.contenders if c.name == name))


def tables() -> dict[str, MixTable]:
    """By family: the demo's mixture of experts, and the dense pair of ``tools/demo/dense.py``."""
    return {name: MixTable.read(DATA / f"mixes_{name}.npz") for name in FAMILIES}


def by_hand(table: MixTable, max_bytes: int) -> dict[str, Mix]:
    """The hand-made mixes that fit, by name."""
    groups = [tie.group for tie in table.space.ties]
    large = "routed_experts" if "routed_experts" in groups else "dense_ffn"
    found = {}
    for name, (usual, others) in HAND.items():
        own = {large if g == "experts" else g: t for g, t in others.items()}
        mix = tuple(own.get(group, usual) for group in groups)
        if table.space.bytes_of(mix) <= max_bytes:
            found[name] = mix
    return found


def sizes(table: MixTable, count: int) -> list[int]:
    """Evenly between the smallest mix and the largest, ends left out."""
    least = table.space.bytes_of(tuple(types[0] for types in table.space.types))
    most = table.space.bytes_of(table.space.largest)
    return [int(x) for x in np.linspace(least, most, count + 2)[1:-1]]


def deal(ids: Sequence[str], parts: Sequence[float], seed: int) -> list[tuple[str, ...]]:
    """``ids`` dealt by lot into ``parts`` of them all."""
    order = np.random.default_rng(seed).permutation(len(ids))
    ends = np.round(np.cumsum([0, *parts]) * len(ids)).astype(int)
    return [tuple(ids[i] for i in sorted(order[a:b])) for a, b in itertools.pairwise(ends)]


def play(
    table: MixTable,
    max_bytes: int,
    search: Sequence[str],
    verdict: Sequence[str],
    seed: int = 0,
) -> Played:
    """Search the table as `cook search` does, and judge."""
    third = max(len(search) // 4, 1)
    rounds = (tuple(search[:third]), tuple(search[third : 2 * third]), tuple(search[2 * third :]))
    ledger = Ledger(table, rounds, Budget(evaluations=_budget(table)))
    hand = by_hand(table, max_bytes)
    aims = Aims(max_bytes, ByCycle(), 8, seed)
    found = explored(table.space, ledger, aims, list(hand.values()))
    entered: dict[str, tuple[str, Mix]] = {name: ("given", mix) for name, mix in hand.items()}
    entered["kld"] = "kld", found.sensitivity.allocated(max_bytes, kld)[0]
    entered["perplexity"] = "perplexity", found.sensitivity.allocated(max_bytes, nll)[0]
    entered["found"] = "found", found.best
    contenders = tuple(
        Contender(
            name,
            family,  # type: ignore[arg-type]
            table.space.tensor_types(mix),
            table.space.bytes_of(mix),
            table.replies(mix).on(verdict),
        )
        for name, (family, mix) in entered.items()
    )
    return Played(found, ledger.spent, judge(contenders, CONFIDENCE), contenders)


def _budget(table: MixTable) -> float:
    return max(SHARE * len(table.place), FEWEST)


def best_of(table: MixTable, max_bytes: int, prompts: Sequence[str]) -> Mix:
    """Of all mixes that fit, the one of the greatest acceptance length on ``prompts``."""
    fitting = (m for m in table.place if table.space.bytes_of(m) <= max_bytes)
    return max(fitting, key=lambda m: table.replies(m).on(prompts).acceptance_length)


def _ratio(table: MixTable, one: Mix, other: Mix, prompts: Sequence[str]) -> float:
    lengths = [table.replies(m).on(prompts).acceptance_length for m in (one, other)]
    return lengths[0] / lengths[1]


@dataclass(frozen=True)
class Exhausted:
    """At one size: what was found over the best of all mixes, by their acceptance length on every
    prompt of the table, of which the search saw half."""

    max_bytes: int
    ratio: float
    held_out: float
    """On the other half: what was found over the mix that is the best of all on the first."""
    share: float
    """Evaluations, whole ones, over the mixes that there are."""


def exhausted(table: MixTable, count: int) -> list[Exhausted]:
    """A search at every one of ``count`` sizes, on half of the prompts."""
    found = []
    search, verdict = deal(table.ids, (0.5, 0.5), 0)
    for max_bytes in sizes(table, count):
        played = play(table, max_bytes, search, verdict)
        mine, every = played.found.best, table.ids
        found.append(
            Exhausted(
                max_bytes,
                _ratio(table, mine, best_of(table, max_bytes, every), every),
                _ratio(table, mine, best_of(table, max_bytes, search), verdict),
                played.spent / len(table.place),
            )
        )
    return found


def duels(table: MixTable, count: int) -> dict[str, Counter[str]]:
    """How the found mix stands against the best by hand, and those of least KLD and perplexity, on
    prompts that the search did not see, at ``count`` sizes: better, worse (the interval of the
    difference excludes zero), or a tie."""
    counts = {"hand": Counter[str](), "kld": Counter[str](), "perplexity": Counter[str]()}
    search, verdict = deal(table.ids, (0.5, 0.5), 0)
    for max_bytes in sizes(table, count):
        played = play(table, max_bytes, search, verdict)
        by_name = {c.name: c for c in played.contenders}
        mine = replace(by_name["found"], name="mine")
        rivals = {"kld": by_name["kld"], "perplexity": by_name["perplexity"]}
        if played.judged.given is not None:
            rivals["hand"] = by_name[played.judged.given]
        for name, rival in rivals.items():
            pair = judge((mine, replace(rival, family="given")), CONFIDENCE)
            interval = pair.gain["mine"].interval
            assert interval is not None, "there are prompts enough"
            told = "better" if interval.low > 0 else "worse" if interval.high < 0 else "tie"
            counts[name][told] += 1
    return counts


@dataclass(frozen=True)
class Outside:
    """One seeded search: what it returned beside the given, on prompts that neither search nor
    verdict had."""

    ratio: float
    worse: bool
    """By more than the margin, beyond chance: the whole interval."""


def seeded(table: MixTable, seeds: Sequence[int], count: int = SIZES) -> list[Outside]:
    """A search a seed, each at a size, with the prompts dealt anew in three."""
    found = []
    for seed in seeds:
        search, verdict, outside = deal(table.ids, (0.4, 0.3, 0.3), seed)
        every = sizes(table, count)
        max_bytes = every[seed % len(every)]
        played = play(table, max_bytes, search, verdict, seed)
        given = played.judged.given
        assert given is not None, "the smallest by hand is the smallest of all"
        pair = {}
        for name, role in ((given, "given"), (played.judged.best, "best")):
            mix = table.space.mix_of(played.types_of(name))
            assert mix is not None, "of the table"
            pair[role] = table.replies(mix).on(outside)
        own = pair["given"].acceptance_length
        contest = judge(
            (
                Contender("best", "found", {}, 0, pair["best"]),
                Contender("given", "given", {}, 0, pair["given"]),
            ),
            CONFIDENCE,
        )
        interval = contest.gain["best"].interval
        worse = interval is not None and interval.high < -MARGIN * own
        found.append(Outside(pair["best"].acceptance_length / own, worse))
    return found


def search_contests() -> Study:
    """All three, on each family's table."""
    lines, within = [], True
    duelled: dict[str, Counter[str]] = {}
    for family, table in tables().items():
        for one in exhausted(table, SIZES):
            if family == "demo":  # the other space is too small for so few evaluations
                within &= one.ratio >= WITHIN and one.share <= SHARE
            lines.append(
                f"{family}, {one.max_bytes / 2**20:.2f} MiB: found {one.ratio:.4f} of the best of "
                f"{len(table.place)} mixes; {one.held_out:.4f} on prompts unseen of the one that "
                f"replaying all on the others finds; {one.share:.1%} of the evaluations"
            )
        for name, counts in duels(table, SIZES).items():
            duelled.setdefault(name, Counter()).update(counts)
        outside = seeded(table, range(SEEDS))
        worse = sum(one.worse for one in outside)
        within &= worse == 0
        ratios = np.array([one.ratio for one in outside])
        lines.append(
            f"{family}, {SEEDS} seeded searches, on prompts that neither search nor verdict had: "
            f"{worse} worse than the recipe given beyond the margin; ratios from "
            f"{ratios.min():.3f}, median {np.median(ratios):.3f}, "
            f"{int((ratios < 1 - MARGIN).sum())} below {1 - MARGIN}"
        )
    lines += [
        f"found against {name}, {SIZES} sizes x {len(FAMILIES)} families: "
        + ", ".join(f"{counts[word]} {word}" for word in ("better", "tie", "worse"))
        for name, counts in duelled.items()
    ]
    return Study(tuple(lines), within)
