"""A recorded trace in the place of one to be recorded: checked against what is to be scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.step import Source
from cook.prompts.prompt_set import PromptSet, subset
from cook.steps.trace import RecordedTraceStep, given_trace
from cook.trace.compatible import require_target
from cook.trace.session import prompts_digest, sha256


@dataclass(frozen=True)
class Adopted:
    """``step`` stands for a TraceStep. ``prompts`` are those that were recorded, in order."""

    step: RecordedTraceStep
    trace: TraceFile
    prompts: PromptSet


def adopt(
    path: Path, *, target: tuple[Path, Source] | None, prompts: PromptSet, sampler: Sampling
) -> Adopted:
    """The trace at ``path`` for scoring; InputError, with the reason, where it does not fit.

    ``target``: the file at hand and its source; None is no error, a trace needs no target.
    ``prompts``: the set to be scored on, of which the recorded ones are taken. ``sampler``: the
    chain to be scored under.
    """
    step, trace = given_trace(path), TraceFile(path)
    if target is not None:
        require_target(trace, *target)
    recorded = trace.header.sampler
    if _chain(sampler) != _chain(recorded):
        raise InputError(
            f"{path}: recorded under another sampling chain ({recorded}, not {sampler})",
            hint="score under the trace's chain, or record another: cook trace",
        )
    return Adopted(step, trace, _recorded(trace, prompts))


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


def _chain(sampler: Sampling) -> Sampling:
    """What must agree: greedy is greedy, and whose random numbers were drawn is no matter."""
    if not sampler.temperature:
        return Sampling(repeat_penalty=sampler.repeat_penalty)
    return replace(sampler, draws="worker")
