"""What a cycle of a mix costs: one where acceptance is sought, seconds where speed is.

A draft's decode is not read off its bytes: types differ in what a byte takes, and a router reads a
part of them. So a few mixes are timed here, a law of bytes by type is fitted to them
(:mod:`cook.scoring.decode_time`) and judged by others; the target's verification is timed as it
is. A cycle is then the draft's decodes and one verification (:func:`cook.scoring.iid.cycle_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from cook.errors import InputError
from cook.formats.quant_types import bytes_as
from cook.graph.execute import Executor
from cook.recipe.active import TokenReads
from cook.recipe.groups import Group
from cook.record.search_record import DecodeLaw
from cook.scoring.decode_time import TimedMix, decode_s, fit_decode, reading
from cook.scoring.iid import alpha_of, cycle_s, tokens_per_cycle
from cook.scoring.price import BatchCurve
from cook.scoring.simulate import RULES
from cook.search.evaluate import Replays
from cook.search.job import SearchJob
from cook.search.space import Mix, Space, Span
from cook.steps.curve import CurveStep, widths_for

TIMED = 5
"""Mixes drawn by lot that are timed, beside the largest and the smallest."""
JUDGING = 2
"""How many of those judge the law."""


class CycleCost(Protocol):
    """What is sought: tokens for what cycles cost."""

    @property
    def law(self) -> DecodeLaw | None:
        """None where a cycle is a cycle."""

    def cycle(self, mix: Mix) -> float:
        """Of a mix; 1 where acceptance is sought."""

    def cycle_of(self, types: Mapping[str, str]) -> float:
        """Of any types of tensors."""

    def seconds(self, span: Span, type_name: str) -> float:
        """What the span's share of a decode takes."""

    def of_seconds(self, seconds: float) -> float:
        """A cycle of a mix whose spans take so long in all."""


@dataclass(frozen=True)
class ByCycle:
    """Acceptance: every cycle counts alike."""

    law: DecodeLaw | None = None

    def cycle(self, mix: Mix) -> float:
        return 1.0

    def cycle_of(self, types: Mapping[str, str]) -> float:
        return 1.0

    def seconds(self, span: Span, type_name: str) -> float:
        return 0.0

    def of_seconds(self, seconds: float) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class BySecond:
    """Speed: cycles in drafts of ``n_max`` tokens, in seconds; ``mirrors`` as the engine's loop."""

    space: Space
    reads: TokenReads
    law: DecodeLaw
    verify: BatchCurve
    n_max: int
    mirrors: bool

    def cycle(self, mix: Mix) -> float:
        return self.cycle_of(self.space.tensor_types(mix))

    def cycle_of(self, types: Mapping[str, str]) -> float:
        return self._cycle(decode_s(self.law, read_bytes(self.space, self.reads, types)))

    def seconds(self, span: Span, type_name: str) -> float:
        """Without what every decode takes."""
        names = {t.name: type_name for i in span.ties for t in self.space.ties[i].tensors}
        return decode_s(self.law, read_bytes(self.space, self.reads, names)) - self.law.fixed_s

    def of_seconds(self, seconds: float) -> float:
        return self._cycle(self.law.fixed_s + seconds)

    def _cycle(self, draft_s: float) -> float:
        return cycle_s(self.n_max, self.verify, draft_s, 0.0, self.mirrors)


def read_bytes(space: Space, reads: TokenReads, types: Mapping[str, str]) -> dict[str, float]:
    """Bytes that a token reads of tensors in ``types``, by how they are read."""
    found: dict[str, float] = {}
    for tie in space.ties:
        routed = tie.group == Group.ROUTED_EXPERTS
        for tensor in tie.tensors:
            if (type_name := types.get(tensor.name)) is not None:
                kind = reading(type_name, routed=routed)
                size = bytes_as(type_name, tensor.shape)
                found[kind] = found.get(kind, 0.0) + reads.of({tensor.name: size}).read_bytes
    return found


def timed(job: SearchJob, executor: Executor, replays: Replays, seed: int) -> BySecond:
    """The law of decode times on this machine, and the target's verification.

    Times are at the depth where replies are half written. The length of drafts is the one that is
    fastest for the largest mix. What a timing fails with is raised; InputError where the header
    does not say how many experts a token uses.
    """
    space, deployed = job.space, job.deployed
    reads = TokenReads(deployed.file)
    if not reads.known:
        raise InputError(
            f"{deployed.file.path}: does not say how many experts a token uses",
            hint="--acceptance, which needs no times",
        )
    plan = job.layout.forecast
    assert plan is not None, "the recipe has a score"
    lengths = sorted({settings.n_max for settings in plan.settings})
    rng = np.random.default_rng(seed)
    mixes = [space.largest, tuple(types[0] for types in space.types)]
    mixes += [_by_lot(space, rng) for _ in range(TIMED)]
    curves = [
        CurveStep(
            *(deployed.engine, "mix", replays.quantized(mix), deployed.trace, deployed.args),
            verifies=False,
            widths=(1,),
        )
        for mix in mixes
    ]
    verify = replace(plan.verify[0], widths=widths_for(lengths))
    executor.run([*curves, verify])
    for failure in executor.outcomes.failures.values():
        raise failure.error
    heads = replays.trace.heads
    depth = round(sum(h.prompt_tokens + h.emitted / 2 for h in heads) / len(heads))
    measured = []
    for mix, curve in zip(mixes, curves, strict=True):
        outcome = executor.outcomes.result(curve)
        assert outcome is not None, "it did not fail"
        seconds = float(outcome.batches.at(1, depth)) + outcome.sample_s
        measured.append(TimedMix(read_bytes(space, reads, space.tensor_types(mix)), seconds))
    law = fit_decode(measured[:-JUDGING], measured[-JUDGING:])
    of_target = executor.outcomes.result(verify)
    assert of_target is not None, "it did not fail"
    widths = of_target.widths
    at_depth = tuple(float(of_target.batches.at(w, depth)) + of_target.sample_s for w in widths)
    verify_at = BatchCurve((0,), widths, (at_depth,), typed=True)
    mirrors = RULES[deployed.profile].mirrors
    pace = BySecond(space, reads, law, verify_at, lengths[0], mirrors)
    (reference,) = replays([space.largest], tuple(n for share in job.rounds for n in share))
    n_max = deployed.settings.n_max
    alpha = alpha_of((reference.acceptance_length - 1) / n_max, n_max)

    def speed(length: int) -> float:
        return tokens_per_cycle(alpha, length) / replace(pace, n_max=length).cycle(space.largest)

    return replace(pace, n_max=max(lengths, key=speed))


def _by_lot(space: Space, rng: np.random.Generator) -> Mix:
    """A type for every group, drawn by lot, so that no two groups always go together."""
    mix = space.largest
    for span in space.spans():
        mix = space.changed(mix, span, str(rng.choice(span.types)))
    return mix
