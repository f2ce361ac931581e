"""Searches of an exhausted space: what they miss, what they beat, how often they are worse.

Every mix of the space was replayed once (:mod:`tools.mix_table`), so a search is given the table in
the place of replays, and the best mix of every size is known. The sizes go evenly from the smallest
mix to the largest. At each there are two searches, one on either half of the prompts, and what they
end with is held against its rivals on the half that they did not see: on every prompt once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from bench.study import Study
from cook.record.record import Interval
from cook.record.search_record import SearchVerdict
from cook.search.evaluate import Budget, Ledger, Replies
from cook.search.findings import Explored
from cook.search.judge import CONFIDENCE, MARGIN, Contender, Judged, effect, judge
from cook.search.search import explored
from cook.search.sensitivity import Sensitivity, nll
from cook.search.space import Mix
from tools.mix_table import FAMILIES, MixTable, table_of

SHARE = 0.05
"""Of the mixes of the space, the evaluations that a search may take."""
WITHIN = 0.98
"""Of the best there is: the mix of truly least KLD has 0.984 of it at the worst size."""
SIZES = 24
SEEDS = 100
PARTS = (0.4, 0.25, 0.35)
"""Of the prompts in a seeded search: seen, judged on, and seen by neither."""
SMALL, MIDDLE, LARGE = 0, 1, 2
HAND = {
    "small": (SMALL, {}),
    "middle": (MIDDLE, {}),
    "puffed": (LARGE, {"experts": SMALL}),
    "puffed-4": (LARGE, {"experts": MIDDLE}),
    "layered": (MIDDLE, {"experts": SMALL}),
    "output": (SMALL, {"output": LARGE}),
    "output-4": (SMALL, {"output": MIDDLE, "embeddings": MIDDLE}),
}
"""Types as people write them: one for all; the experts small and what every token uses larger; the
output spared. ``experts`` is the dense network of a model that has none."""


@dataclass(frozen=True, eq=False)
class Played:
    """One search of the table on the prompts ``search``: what it ended with, and the verdict.
    ``entered``: the finalists by name."""

    search: tuple[str, ...]
    found: Explored
    judged: Judged
    entered: dict[str, Contender]


@dataclass(frozen=True, eq=False)
class Contest:
    """The searches of one size, each on prompts that are judged on in the other."""

    max_bytes: int
    searches: tuple[Played, ...]

    def held_out(self, name: str | None) -> Replies:
        """Of that finalist of each search, None for the best by hand, on prompts that this search
        did not see."""
        replies = [one.entered[name or str(one.judged.given)].replies for one in self.searches]
        ids, categories, *columns = (
            np.concatenate([getattr(one, column.name) for one in replies])
            for column in fields(Replies)
        )
        return Replies(tuple(ids), tuple(categories), *columns)


def tables() -> dict[str, MixTable]:
    """By family: the demo's mixture of experts, and the dense pair of ``tools/demo/dense.py``."""
    return {name: MixTable.read(table_of(name)) for name in FAMILIES}


def by_hand(table: MixTable, max_bytes: int) -> dict[str, Mix]:
    """The hand-made mixes that fit, by name."""
    groups = [tie.group for tie in table.space.ties]
    large = "routed_experts" if "routed_experts" in groups else "dense_ffn"
    found = {}
    for name, (usual, others) in HAND.items():
        own = {large if g == "experts" else g: level for g, level in others.items()}
        levels = [own.get(group, usual) for group in groups]
        mix = tuple(types[n] for types, n in zip(table.space.types, levels, strict=True))
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
) -> Played:
    """Search the table as `cook search` does, and judge."""
    ledger = Ledger(table, tuple(search), Budget(evaluations=int(SHARE * len(table.place))))
    found = explored(Sensitivity.of(table.space, ledger), max_bytes, 8)
    entered = {name: ("given", mix) for name, mix in by_hand(table, max_bytes).items()}
    entered["perplexity"] = "perplexity", found.sensitivity.allocated(max_bytes, nll)[0]
    entered["found"] = "found", found.best
    contenders = {
        name: Contender(
            name,
            family,  # type: ignore[arg-type]
            table.space.tensor_types(mix),
            table.space.bytes_of(mix),
            table.replies(mix).on(verdict),
        )
        for name, (family, mix) in entered.items()
    }
    judged = judge(tuple(contenders.values()), CONFIDENCE)
    return Played(tuple(search), found, judged, contenders)


def contests(table: MixTable, count: int) -> list[Contest]:
    """At ``count`` sizes, on each half of the prompts."""
    one, other = deal(table.ids, (0.5, 0.5), 0)
    return [
        Contest(size, tuple(play(table, size, *halves) for halves in ((one, other), (other, one))))
        for size in sizes(table, count)
    ]


def best_of(table: MixTable, max_bytes: int, prompts: Sequence[str]) -> Mix:
    """Of all mixes that fit, the one of the greatest acceptance length on ``prompts``."""
    fitting = (m for m in table.place if table.space.bytes_of(m) <= max_bytes)
    return max(fitting, key=lambda m: table.replies(m).on(prompts).acceptance_length)


def _ratio(table: MixTable, one: Mix, other: Mix, prompts: Sequence[str]) -> float:
    lengths = [table.replies(m).on(prompts).acceptance_length for m in (one, other)]
    return lengths[0] / lengths[1]


@dataclass(frozen=True)
class Exhausted:
    """A search beside all mixes of its size. ``ratio``: what it found over the best of them, both
    by their acceptance length on every prompt of the table: what is missed is the search's fault,
    not that of prompts unseen."""

    max_bytes: int
    ratio: float
    share: float
    """Evaluations over the mixes that there are."""
    halves: tuple[float, ...]
    """The same ratio of searches that saw a half of the prompts."""
    held_out: tuple[float, ...]
    """On the other half: what these found over the mix that is the best of all on theirs."""


def exhausted(table: MixTable, held: Sequence[Contest]) -> list[Exhausted]:
    """What is missed at the sizes of ``held``."""
    found, every = [], table.ids
    for contest in held:
        size = contest.max_bytes
        whole, best = play(table, size, every, every), best_of(table, size, every)
        halves, held_out = [], []
        for one in contest.searches:
            unseen = [name for name in every if name not in one.search]
            seen = best_of(table, size, one.search)
            halves.append(_ratio(table, one.found.best, best, every))
            held_out.append(_ratio(table, one.found.best, seen, unseen))
        made = [len(p.found.sensitivity.ledger.entries) for p in (whole, *contest.searches)]
        share = max(made) / len(table.place)
        ratio = _ratio(table, whole.found.best, best, every)
        found.append(Exhausted(size, ratio, share, tuple(halves), tuple(held_out)))
    return found


RIVALS = {"hand": None, "perplexity": "perplexity"}
"""The rivals of the found mix, which is that of least KLD, and their names among the finalists."""


def duels(held: Sequence[Contest]) -> dict[str, Counter[str]]:
    """How the found mixes stand against the best by hand, and those of least KLD and perplexity, on
    prompts unseen: better, worse (the interval of the difference excludes zero), or a tie."""
    counts = {rival: Counter[str]() for rival in RIVALS}
    for contest in held:
        for rival, name in RIVALS.items():
            gain = _gain(contest.held_out("found"), contest.held_out(name))
            result = "better" if gain.low > 0 else "worse" if gain.high < 0 else "tie"
            counts[rival][result] += 1
    return counts


def _gain(one: Replies, other: Replies) -> Interval:
    """Of the difference of acceptance lengths, paired by prompt."""
    found = effect(one, other, ("tokens", "cycles"), CONFIDENCE).interval
    assert found is not None, "there are prompts enough"
    return found


@dataclass(frozen=True)
class Outside:
    """One seeded search: what it returned beside the given, on prompts that neither search nor
    verdict had."""

    verdict: SearchVerdict
    stays: bool
    """Whether the recipe given was returned."""
    ratio: float
    worse: bool
    """By more than the margin, beyond chance: the whole interval."""
    overall: float
    """The ratio on every prompt of the table, of which chance has less to say."""


def seeded(table: MixTable, seeds: Sequence[int], count: int = SIZES) -> list[Outside]:
    """A search a seed, each at a size, with the prompts dealt in three again."""
    found, every = [], sizes(table, count)
    for seed in seeds:
        search, verdict, outside = deal(table.ids, PARTS, seed)
        played = play(table, every[seed % len(every)], search, verdict)
        judged = played.judged
        assert judged.given is not None, "the smallest by hand is the smallest of all"
        best, own = (_replies(table, played.entered[name]) for name in (judged.best, judged.given))
        best_out, own_out = best.on(outside), own.on(outside)
        length = own_out.acceptance_length
        found.append(
            Outside(
                judged.verdict,
                judged.best == judged.given,
                best_out.acceptance_length / length,
                _gain(best_out, own_out).high < -MARGIN * length,
                best.acceptance_length / own.acceptance_length,
            )
        )
    return found


def _replies(table: MixTable, contender: Contender) -> Replies:
    """Its replies on every prompt."""
    mix = table.space.mix_of(contender.types)
    assert mix is not None, "of the table"
    return table.replies(mix)


def search_contests() -> Study:
    """All three, on each family's table."""
    lines, within = [], True
    duelled: dict[str, Counter[str]] = {}
    for family, table in tables().items():
        held = contests(table, SIZES)
        for one in exhausted(table, held):
            within &= one.ratio >= WITHIN and one.share <= SHARE
            lines.append(
                f"{family}, {one.max_bytes / 2**20:.2f} MiB: found {one.ratio:.4f} of the best of "
                f"{len(table.place)} mixes in {one.share:.1%} of the evaluations; seeing half of "
                f"the prompts {' and '.join(f'{r:.4f}' for r in one.halves)}; on prompts unseen "
                f"{' and '.join(f'{r:.4f}' for r in one.held_out)} of what replaying all finds"
            )
        counted = duels(held)
        for name, counts in counted.items():
            duelled.setdefault(name, Counter()).update(counts)
            lines.append(_counts_text(f"{family}, found against {name}, {SIZES} sizes", counts))
        outside = seeded(table, range(SEEDS))
        worse = sum(one.worse for one in outside)
        within &= worse == 0
        ratios = np.array([one.ratio for one in outside])
        overall = np.array([one.overall for one in outside])
        verdicts = Counter(one.verdict for one in outside)
        lines.append(
            f"{family}, {SEEDS} seeded searches, on prompts that neither search nor verdict had: "
            f"{worse} worse than the recipe given beyond the margin; "
            f"{int((ratios < 1 - MARGIN).sum())} by count, ratios from {ratios.min():.4f}, median "
            f"{np.median(ratios):.4f}; on all prompts {int((overall < 1 - MARGIN).sum())}, from "
            f"{overall.min():.4f}, median {np.median(overall):.4f}; "
            + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
            + f"; the recipe given stays in {sum(one.stays for one in outside)}"
        )
    where = f"{SIZES} sizes x {len(FAMILIES)} families"
    lines += [
        _counts_text(f"found against {name}, {where}", counts) for name, counts in duelled.items()
    ]
    return Study(tuple(lines), within)


def _counts_text(what: str, counts: Counter[str]) -> str:
    return f"{what}: " + ", ".join(f"{counts[word]} {word}" for word in ("better", "tie", "worse"))
