"""What a cycle of a mix takes, where speed is sought.

A draft's decode is not read off its bytes: types differ in what a byte takes, and a router reads a
part of them. So a few mixes are timed here, a law of bytes by type is fitted to them
(:mod:`cook.scoring.fits`) and judged by others; the search allocates by it. Who is returned
is not decided by a law: finalists are timed themselves. All that is timed is timed alone, in turn,
in several passes, of which medians are taken; what passes differ by is noise
(:mod:`cook.scoring.fits`).

A cycle is the draft's single decodes, where the engine re-evaluates the verify batch with the draft
one batch of these tokens, and the target's verification of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.formats.quant_types import bytes_as
from cook.graph.step import Step
from cook.recipe.active import TokenReads
from cook.record.search_record import DecodeLaw
from cook.scoring.fits import TimedMix, decode_s, fit_decode, reading
from cook.scoring.iid import alpha_of, tokens_per_cycle
from cook.search.evaluate import Replays, Replies
from cook.search.space import Mix, Space, Span
from cook.steps.curve import CurveOutcome, CurveStep, widths_for
from cook.steps.quantize import QuantizeStep
from cook.steps.variant import VariantCurveStep

TIMED = 10
"""Mixes that the law is fitted to at most, next to the largest and the smallest."""
AHEAD = 0.3
"""Share of the types by which one group is ahead of the one before, at least."""
JUDGING = 3
"""Mixes drawn by lot that judge the law."""
PASSES = 3
"""Times that everything is timed, in turn."""
SEED = 0
"""Of the mixes that are drawn."""


@dataclass(frozen=True, eq=False)
class CycleTimes:
    """What mixes take, by the law of decode times.

    ``verify_s``: the target's verification, and ``relative`` a draft's batch in single decodes
    (mixes hardly differ in it; 0 where the engine's loop has none), by draft length. ``n_max``: the
    draft length that is searched for.
    """

    space: Space
    reads: TokenReads
    law: DecodeLaw
    verify_s: Mapping[int, float]
    relative: Mapping[int, float]
    n_max: int

    def decode_s(self, types: Mapping[str, str]) -> float:
        """Of one decode of a draft with these types of tensors."""
        return decode_s(self.law, read_bytes(self.space, self.reads, types))

    def span_s(self, span: Span, type_name: str) -> float:
        """What a decode takes for the tensors of ``span``."""
        names = {t.name: type_name for i in span.ties for t in self.space.ties[i].tensors}
        return self.decode_s(names) - self.law.fixed_s

    def cycle_s(self, spans_s: float) -> float:
        """A cycle of a mix whose spans take so long in all."""
        decodes = self.n_max + self.relative[self.n_max]
        return self.verify_s[self.n_max] + decodes * (self.law.fixed_s + spans_s)


def read_bytes(space: Space, reads: TokenReads, types: Mapping[str, str]) -> dict[str, float]:
    """Bytes that a token reads of tensors in ``types``, by how they are read."""
    found: dict[str, float] = {}
    for tie in space.ties:
        for tensor in tie.tensors:
            if (type_name := types.get(tensor.name)) is not None:
                kind = reading(type_name, routed=tie.routed)
                size = bytes_as(type_name, tensor.shape)
                found[kind] = found.get(kind, 0.0) + reads.of({tensor.name: size}).read_bytes
    return found


@dataclass(frozen=True, eq=False)
class Clock:
    """Times on this machine, at the depth where replies are half written, for drafts of all lengths
    that the recipe tries. ``verify``: the target's curve, one a pass."""

    replays: Replays
    verify: tuple[CurveStep, ...]

    @classmethod
    def of(cls, replays: Replays) -> Clock:
        widths, once = widths_for(replays.deployed.lengths), replays.deployed.verify
        assert once is not None, "the target of a score is timed"
        rows = tuple(r for r in once.rows if r <= max(widths))
        turns = range(PASSES)
        return cls(
            replays, tuple(replace(once, widths=widths, rows=rows, turn=turn) for turn in turns)
        )

    def timed(self, files: Sequence[QuantizeStep]) -> TimedDrafts:
        """Each of ``files`` as a draft, next to the target; what a timing fails with is raised."""
        deployed, replay = self.replays.deployed, self.replays.deployed.replay
        passes: list[list[tuple[Floats, float]]] = []
        target_s: list[Floats] = []
        for turn, verify in enumerate(self.verify):
            batches_s, sample_s = self._measured(verify)
            target_s.append(batches_s + sample_s)
            curves = [
                CurveStep(
                    *(replay.engine, f"mix {place}", one, replay.trace, replay.args),
                    verifies=False,
                    widths=verify.widths,
                    turn=turn,
                )
                for place, one in enumerate(files, 1)
            ]
            passes.append([self._measured(VariantCurveStep(curve)) for curve in curves])
        return TimedDrafts(
            widths=self.verify[0].widths,
            single_s=np.array([[b[0] + s for b, s in turn] for turn in passes]).T,
            batch_s=np.array([[b for b, _ in turn] for turn in passes]).swapaxes(0, 1),
            verify_s=np.median(target_s, axis=0),
            mirrors=deployed.mirrors,
        )

    def _measured(self, step: Step[CurveOutcome]) -> tuple[Floats, float]:
        """Seconds of a decode of each width, and of sampling a token.

        One step a call: an executor may run those of one call in any order.
        """
        executor, heads = self.replays.executor, self.replays.trace.heads
        executor.run([step])
        if (outcome := executor.outcomes.result(step)) is None:
            raise executor.outcomes.failures[step.key].error
        depth = round(sum(h.prompt_tokens + h.emitted / 2 for h in heads) / len(heads))
        return outcome.batches.at(outcome.widths, depth), outcome.sample_s


@dataclass(frozen=True, eq=False)
class TimedDrafts:
    """Seconds by pass: of a single decode with its sampling [files, passes], of a batch
    [files, passes, widths], and of the target's verification [widths], the median. ``mirrors``:
    whether the engine's loop has that batch."""

    widths: tuple[int, ...]
    single_s: Floats
    batch_s: Floats
    verify_s: Floats
    mirrors: bool

    def cycles(self, n_max: int) -> Floats:
        """Seconds of a cycle in drafts of ``n_max`` tokens [files, passes]."""
        at = self.widths.index(n_max + 1)
        seconds = n_max * self.single_s + self.verify_s[at]
        return np.asarray(seconds + self.batch_s[:, :, at] if self.mirrors else seconds)


def measured_pace(clock: Clock, prompts: tuple[str, ...]) -> CycleTimes:
    """The law of decode times on this machine, and the draft length that is fastest for the largest
    mix, by what that does on ``prompts``.

    InputError where the header does not say how many experts a token uses.
    """
    replays, space = clock.replays, clock.replays.space
    reads = TokenReads(replays.deployed.file)
    if not reads.known:
        raise InputError(
            f"{replays.deployed.file.path}: does not say how many experts a token uses",
            hint="--acceptance, which needs no times",
        )
    mixes = [space.tensor_types(mix) for mix in mixes_to_time(space)]
    timed = clock.timed([replays.file_of(types) for types in mixes])
    measured = [
        TimedMix(read_bytes(space, reads, types), seconds)
        for types, seconds in zip(mixes, np.median(timed.single_s, axis=1).tolist(), strict=True)
    ]
    lengths = replays.deployed.lengths
    at = {length: timed.widths.index(length + 1) for length in lengths}
    relative = np.median(timed.batch_s / timed.single_s[:, :, None], axis=(0, 1))
    pace = CycleTimes(
        space=space,
        reads=reads,
        law=fit_decode(measured[:-JUDGING], measured[-JUDGING:]),
        verify_s={length: float(timed.verify_s[i]) for length, i in at.items()},
        relative={n: float(relative[i]) if timed.mirrors else 0.0 for n, i in at.items()},
        n_max=lengths[0],
    )
    reference = replays(space.largest, prompts)
    return replace(pace, n_max=fastest_length(pace, reference, replays.deployed.settings.n_max))


def fastest_length(pace: CycleTimes, reference: Replies, n_max: int) -> int:
    """The length of drafts that is fastest for the largest mix, by what it did (``reference``) in
    drafts of ``n_max``."""
    alpha = alpha_of((reference.acceptance_length - 1) / n_max, n_max)
    spans_s = pace.decode_s(pace.space.tensor_types(pace.space.largest)) - pace.law.fixed_s

    def speed(length: int) -> float:
        return tokens_per_cycle(alpha, length) / replace(pace, n_max=length).cycle_s(spans_s)

    return max(pace.verify_s, key=speed)


def mixes_to_time(space: Space) -> list[Mix]:
    """Those that the law is fitted to, and last :data:`JUDGING` drawn by lot, which judge it.

    Of the former each has other types in its groups: from one to the next every group goes on
    among its types, and each group begins elsewhere, so that in few mixes every group has had all
    of them or many, and neighbours differ.
    """
    spans = space.spans()
    most = max(len(span.types) for span in spans)
    turns = min(most, TIMED)
    ahead = next(s for s in itertools.count(max(1, int(AHEAD * most))) if math.gcd(s, most) == 1)
    turned = []
    for turn in range(turns):
        mix = space.largest
        for place, span in enumerate(spans):
            at = (turn * most // turns + ahead * place) % most
            mix = space.changed(mix, span, span.types[at * len(span.types) // most])
        turned.append(mix)
    fitted = dict.fromkeys([space.largest, space.smallest, *turned])
    rng = np.random.default_rng(SEED)
    drawn: list[Mix] = []
    for _ in range(JUDGING):
        mix = space.largest
        for span in spans:
            mix = space.changed(mix, span, str(rng.choice(span.types)))
        drawn.append(mix)
    return [*fitted, *drawn]
