"""A recorded trace in the place of one to be recorded: checked against what is to be scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.step import Source
from cook.prompts.prompt_set import HALVES, Prompt, PromptSet, subset
from cook.steps.trace import RecordedTraceStep, given_trace
from cook.trace.compatible import require_target
from cook.trace.session import prompts_digest, sha256


@dataclass(frozen=True)
class Adopted:
    """``step`` stands for a TraceStep. ``prompts`` are those that were recorded, in order.

    ``max_tokens`` and ``context`` are the recording's: they bound the drafts that are simulated.
    Without a prompt set at hand the prompts have ids, categories and halves, but no texts, so
    nothing can run live on them.
    """

    step: RecordedTraceStep
    trace: TraceFile
    prompts: PromptSet
    max_tokens: int
    context: int


def adopt(
    path: Path,
    *,
    target: tuple[Path, Source] | None = None,
    prompts: PromptSet | None = None,
    sampler: Sampling | None = None,
) -> Adopted:
    """The trace at ``path`` for scoring; InputError, with the reason, where it does not fit.

    ``target``: the file at hand and its source; None is no error, a trace needs no target.
    ``prompts``: the set to be scored on, of which the recorded ones are taken. ``sampler``: the
    chain to be scored under.
    """
    step, trace = given_trace(path), TraceFile(path)
    header = trace.header
    if target is not None:
        require_target(trace, *target)
    if sampler is not None and _chain(sampler) != _chain(header.sampler):
        raise InputError(
            f"{path}: recorded under another sampling chain ({header.sampler}, not {sampler})",
            hint="score under the trace's chain, or record another: cook trace",
        )
    chosen = _bare(trace) if prompts is None else _recorded(trace, prompts)
    return Adopted(step, trace, chosen, header.n_predict, header.context)


def _recorded(trace: TraceFile, prompts: PromptSet) -> PromptSet:
    """The prompts of the set that the trace has, known to be the same texts."""
    known = set(trace.ids)
    chosen = tuple(p for p in prompts.prompts if p.id in known)
    if not chosen:
        raise InputError(
            f"{trace.path}: has none of the prompts of {prompts.name}",
            hint="name the prompt set that it was recorded over: --prompts SET",
        )
    if trace.header.prompts_sha256 not in (prompts_digest(chosen), prompts_digest(prompts.prompts)):
        heads = {head.id: head for head in trace.heads}
        for prompt in chosen:
            # only a prompt that no template rendered can be recognised alone
            if heads[prompt.id].rendered_sha256 != sha256(prompt.whole):
                raise InputError(
                    f"{trace.path}: prompt {prompt.id} of {prompts.name} may be another than the "
                    "recorded one of this id",
                    hint="use the prompt set and --limit that it was recorded with",
                )
    return subset(prompts, chosen)


def _bare(trace: TraceFile) -> PromptSet:
    """The recorded prompts without their texts; halves are dealt where they are not recorded."""
    found = [
        Prompt(head.id, head.category, "", head.half or HALVES[index % 2])
        for index, head in enumerate(trace.heads)
    ]
    return subset(PromptSet(trace.path.stem, (), ""), found)


def _chain(sampler: Sampling) -> Sampling:
    """What must agree: greedy is greedy, and whose random numbers were drawn is no matter."""
    if not sampler.temperature:
        return Sampling(repeat_penalty=sampler.repeat_penalty)
    return replace(sampler, draws="worker")
