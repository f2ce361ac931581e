"""Section: the drafts under the sampling chains other than the deployed one."""

from __future__ import annotations

from collections.abc import Iterator

from cook.record.record import ChainFigures, Record, SampledChain
from cook.report.document import Block, Cells, Items, Section, figures
from cook.report.speedups import acceptance_error, speed_interval, speedup_text
from cook.report.texts import counts, tokens_per_s, with_error
from cook.units import number

TITLE = "Other sampling chains"
LEAD = (
    "Forecast on text that the target wrote under each chain, every draft at the settings that are "
    "best there. The engine accepts a drafted token "
    "where it is the one that the target draws; rejection sampling would accept more of them."
)
COLUMNS = (
    *("candidate", "acceptance, %", "accepted/drafted", "by rejection sampling, %"),
    *("predicted decode t/s", "predicted t/s", "predicted speedup"),
)


def section(record: Record) -> Section:
    """A table a chain."""
    if not record.chains:
        return Section("sampling", TITLE, absent="the recipe names one sampling chain")
    blocks: list[Block] = []
    for chain in record.chains:
        name = _name(record, chain)
        if chain.reason is not None:
            blocks.append(Items((f"{name}: {chain.reason}",), marked=True))
            continue
        rows = [_row(one, chain, record.pick.confidence) for one in chain.candidates]
        blocks.append(figures(COLUMNS, rows, title=None, caption=name))
    return Section("sampling", TITLE, LEAD, tuple(blocks))


def chain_answers(record: Record) -> Iterator[str]:
    """What pays under each chain, a line each."""
    for chain in record.chains:
        one, at = best(chain), f"at {_name(record, chain)}"
        gain = speedup(one, chain) if one is not None else None
        if one is None or gain is None:
            yield f"{at}: not forecast: {chain.reason or 'no draft was replayed'}"
            continue
        rate, other = one.figures.acceptance_rate, one.rejection
        text = f"{at}: {'' if gain > 1 else 'not worth it: '}{one.name} {gain:.2f}x no draft end to"
        text += " end, predicted"
        text += f"; {rate:.1%} accepted" if rate is not None else ""
        text += f", {other.accepted / other.drafted:.1%} by rejection sampling" if other else ""
        yield text


def best(chain: SampledChain) -> ChainFigures | None:
    """The fastest draft under ``chain``, end to end; None without one."""
    drafting = [one for one in chain.candidates if one.key.draft is not None]
    return max(drafting, key=lambda one: one.figures.end_to_end_speed or 0.0, default=None)


def speedup(one: ChainFigures, chain: SampledChain) -> float | None:
    """Of the end-to-end speed, over no draft under the same chain."""
    bare = chain.candidates[0].figures.end_to_end_speed
    return one.figures.end_to_end_speed / bare if bare and one.figures.end_to_end_speed else None


def _name(record: Record, chain: SampledChain) -> str:
    several = len({one.engine for one in record.chains}) > 1
    return f"{chain.sampling.chain} on {chain.engine}" if several else chain.sampling.chain


def _row(one: ChainFigures, chain: SampledChain, confidence: float) -> Cells:
    found, error = one.figures, acceptance_error(one.prompts)
    rate, other = found.acceptance_rate, one.rejection
    interval = speed_interval(one.prompts, chain.candidates[0].prompts, confidence)
    return (
        one.name,
        with_error(100 * rate, 100 * error if error is not None else None, 1) if rate else None,
        counts(found),
        number(100 * other.accepted / other.drafted, ".1f") if other and other.drafted else None,
        tokens_per_s(found.decode_speed),
        tokens_per_s(found.end_to_end_speed),
        speedup_text(speedup(one, chain), interval) if one.key.draft is not None else None,
    )
