"""Settings that an engine accepts and then ignores, replaces, or runs slower, without a word.

Each trap is reported at its place in the recipe, with the mend, before anything runs: by ``cook
plan``, ``cook build`` and ``cook recipes check``. None is an error, but for a file that is no draft
at all: the engines run all of it, and figures come out. What the engines do there, and where it was
read or seen, is in docs/internals/engines.md#traps-of-drafting.

Headers are given by their place in the recipe, as far as they are at hand; what needs one that is
not is not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cook.documents.tree import Keys, Locations
from cook.engines.base import cache_halves
from cook.errors import InputError, Problem
from cook.formats.heads import head_alone, head_is_absent, head_of, misfit, no_model, only_inside
from cook.formats.kv_cache import cache_size
from cook.formats.quant_types import Flavour
from cook.recipe.sources import OWN_HEAD
from cook.units import size

if TYPE_CHECKING:
    from pathlib import Path

    from cook.formats.gguf import GgufFile
    from cook.recipe.rules import Quant
    from cook.recipe.schema import Recipe, ScoreSpec
    from cook.recipe.sources import HubRef

TARGET: Keys = ("score", "target", "source")
MODEL: Keys = ("model", "source")

_WITH_STATE = frozenset(
    (
        *("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
        *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe"),
        *("nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp"),
        *("kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next", "deepseek4", "minimax-01"),
    )
)
"""llm_arch_is_recurrent and llm_arch_is_hybrid of mainline's src/llama-arch.cpp at 0c1e570."""
_STATE_TENSORS = (".ssm_", ".time_mix_", ".shortconv.")
_MUCH_CACHE = 0.5
_LEAST_CACHE_BYTES = 1 << 30
"""A draft's KV cache of this size, and of this part of its weights, is worth a word."""
_WORDS_OF_EXPERTS = ("-ser", "--smart-expert-reduction")
_WORDS_OF_SPLIT = ("-sm", "--split-mode")
_EXTRAS = (("score", "target"), ("score", "baseline"), ("score", "draft"))


def trap_problems(
    recipe: Recipe,
    locations: Locations,
    flavour: str,
    headers: Mapping[Keys, GgufFile],
    quants: Sequence[Quant] = (),
) -> Iterator[Problem]:
    """Every trap of ``recipe``, whose ``quants`` these are, on ``flavour``, each with its place and
    its mend."""
    heads = _heads(recipe, headers, quants)
    models = [key for key in headers if key not in heads]
    if (head := head_of(headers[MODEL]) if MODEL in heads else None) is not None and (
        any(quant.part is None for quant in quants) or (recipe.include_source and not head.alone)
    ):
        models.append(MODEL)
    yield from _files(locations, {key: headers[key] for key in models}, flavour)
    yield from _of_heads(recipe, locations, headers.get(TARGET), heads, flavour)
    if recipe.score is None:
        return
    if flavour == Flavour.IK_LLAMA_CPP:
        yield from _inert(recipe, recipe.score, locations, heads)
    yield from _of_state(recipe.score, locations, headers, flavour)
    if flavour == Flavour.LLAMA_CPP:
        yield from _pinned(recipe.score, locations)
        yield from _contexts(recipe.score, locations, headers, models)


def models_at(recipe: Recipe) -> Mapping[Keys, Path | HubRef]:
    """Every model that ``recipe`` names, by its place."""
    found: dict[Keys, Path | HubRef] = {}
    if recipe.score is not None:
        found[TARGET] = recipe.score.target.source
    if recipe.model is not None:
        found[MODEL] = recipe.model.source
    named = ((("drafts", i, "source"), d.source) for i, d in enumerate(recipe.drafts))
    return found | {place: source for place, source in named if source != OWN_HEAD}


def has_state(file: GgufFile) -> bool:
    """Whether a model has layers whose state cannot be cut back by single tokens."""
    return file.architecture in _WITH_STATE or any(
        part in tensor.name for tensor in file.tensors for part in _STATE_TENSORS
    )


def head_tensor(file: GgufFile) -> str | None:
    """The tensor by which mainline takes a whole model for a multi-token-prediction head."""
    try:
        layers = file.number("block_count")
    except InputError:
        layers = None  # a list, one a layer
    name = f"blk.{layers - 1}.nextn.eh_proj.weight" if layers else ""
    return name if name and file.find(name) is not None else None


def _of_state(
    score: ScoreSpec, locations: Locations, headers: Mapping[Keys, GgufFile], flavour: str
) -> Iterator[Problem]:
    """What a target costs, and cannot have recorded, whose state is not cut back by tokens."""
    target = headers.get(TARGET)
    if target is None or not has_state(target):
        return
    if flavour == Flavour.LLAMA_CPP:
        yield locations.at(*TARGET).problem(
            f"{target.architecture} has recurrent layers: with a plain draft mainline saves and "
            "restores the target's whole state every round, which was seen to take three quarters "
            "of it",
            hint="expect a loss that replay does not predict and trust live runs only "
            "(`score.method: live`); ik_llama.cpp has --spec-ckpt-mode per-step for it",
            severity="warning",
        )
    if score.batch_width > 1:
        yield locations.at("score", "batch_width").problem(
            f"{target.architecture} has recurrent layers: what their state took in of a batch "
            "cannot be taken out again, so its text is recorded a token at a time",
            hint="leave `batch_width` out",
        )


def _heads(
    recipe: Recipe, headers: Mapping[Keys, GgufFile], quants: Sequence[Quant]
) -> Mapping[Keys, GgufFile]:
    """The files that are named as drafts for the head in them, by place; the source where heads
    are made of it, as far as it is one."""
    found: dict[Keys, GgufFile] = {}
    for index, draft in enumerate(recipe.drafts):
        place: Keys = ("drafts", index, "source")
        own = draft.source == OWN_HEAD
        file = headers.get(TARGET if own else place)
        if file is not None and (own or ((head := head_of(file)) is not None and head.alone)):
            found[place] = file
    source = headers.get(MODEL)
    if source is not None and any(q.part for q in quants) and head_of(source) is not None:
        found[MODEL] = head_alone(source)
    return found


def _of_heads(
    recipe: Recipe,
    locations: Locations,
    target: GgufFile | None,
    heads: Mapping[Keys, GgufFile],
    flavour: str,
) -> Iterator[Problem]:
    """Heads that a recipe would have in other shapes: they are taken as they are; and those that
    cannot draft for ``target``: the engines abort, or crash."""
    for index, draft in enumerate(recipe.drafts):
        for key in ("experts", "prune_layers", "output"):
            if ("drafts", index, "source") in heads and getattr(draft, key):
                yield locations.at("drafts", index, key).problem(
                    f"{draft.name} is a head, which is taken as it is: `{key}` is of models",
                    hint=f"leave `{key}` out, and name a file of each quant of the head",
                )
    if target is None:
        return
    for place, file in heads.items():
        inside = only_inside(file, flavour) if place == MODEL else None
        if (reason := misfit(file, target, flavour, inside=inside)) is None:
            continue
        if (head := head_of(file)) is None:
            message = f"{target.path.name} holds no head: {reason}"
        else:
            what = f"{head.what} of {file.path.name}"
            message = f"{what} cannot draft for {target.path.name}: {reason}"
        yield locations.at(*place).problem(
            message,
            hint="a head drafts for the model that it was trained with: name the target that it "
            "belongs to, or leave it out",
        )


def _files(
    locations: Locations, headers: Mapping[Keys, GgufFile], flavour: str
) -> Iterator[Problem]:
    """Files that are no model, and models that are taken for another kind of file."""
    for place, file in headers.items():
        at = locations.at(*place)
        if (found := no_model(file)) is not None:
            head = place == MODEL and head_of(file) is not None
            mend = "write `part: head` in every quant of it" if head else found.mend
            yield at.problem(f"this is {found.what}, no model", hint=mend)
        elif (count := head_is_absent(file)) is not None:
            yield at.problem(
                f"the header counts {count} multi-token-prediction layers of which the file has "
                "no tensor: this is a trunk without its head, which engines may refuse to load",
                hint="name the file that has them, or convert again with `convert_hf_to_gguf.py "
                "--no-mtp`",
                severity="warning",
            )
        elif (
            place != TARGET
            and flavour == Flavour.LLAMA_CPP
            and (tensor := head_tensor(file)) is not None
        ):
            yield at.problem(
                f"the file holds {tensor}: `-md` alone takes the whole model for a "
                "multi-token-prediction head",
                hint="keep `--spec-type draft-simple` wherever you serve it; cook says it",
                severity="warning",
            )


def _inert(
    recipe: Recipe,
    score: ScoreSpec,
    locations: Locations,
    heads: Collection[Keys],
) -> Iterator[Problem]:
    """Settings that ik_llama.cpp takes and does nothing with."""
    models = not heads or recipe.quants or len(recipe.drafts) > len(heads)
    if any(score.draft.p_min) and models:
        chances = ", ".join(f"{p:g}" for p in dict.fromkeys(score.draft.p_min))
        alike = f"{chances} are one setting" if len(score.draft.p_min) > 1 else "it changes nothing"
        yield locations.at("score", "draft", "p_min").problem(
            f"on ik_llama.cpp p_min never ends a draft of a model (its first choice always has "
            f"probability 1 there): {alike}",
            hint="leave p_min out on this engine, and try shorter n_max",
            severity="warning",
        )
    if max(score.slots) > 1 and heads:
        yield locations.at("score", "slots").problem(
            "ik_llama.cpp runs a head with one slot only: with more it takes the head out of its "
            "chain, warns in its log, and serves on without (common_speculative_prepare_startup)",
            hint="leave `slots` out, or score the head on a build of llama.cpp",
        )
    elif max(score.slots) > 1:
        yield locations.at("score", "slots").problem(
            "ik_llama.cpp drafts with one slot only: nothing is forecast of more slots on it",
            hint="leave `slots` out, or score on a build of llama.cpp too",
            severity="warning",
        )
    for place in _EXTRAS:
        part = getattr(score, place[1])
        words = part.args.extra if part is not None else ()
        for word in _WORDS_OF_EXPERTS:
            if word in words:
                yield locations.at(*place, "args", "extra", words.index(word)).problem(
                    f"ik_llama.cpp reads {word} and does nothing with it (since #840)",
                    hint="leave it out; fewer experts have to be written into the file",
                    severity="warning",
                )


def _pinned(score: ScoreSpec, locations: Locations) -> Iterator[Problem]:
    """A draft on one device leaves the target's split by tensors."""
    words = score.target.args.extra
    split = next((words.index(w) for w in _WORDS_OF_SPLIT if w in words), None)
    tensors = split is not None and words[split + 1 : split + 2] == ("tensor",)
    devices = score.draft.args.devices
    if tensors and len(devices) == 1:
        yield locations.at("score", "draft", "args", "devices").problem(
            f"the target is split by tensors, and a draft pinned to {devices[0]} is not: mainline "
            "gives it `-sm layer`",
            hint="leave `devices` out to split the draft as well, and compare with the baseline at "
            "its best split (`score.baseline.args.extra`)",
            severity="warning",
        )


def _contexts(
    score: ScoreSpec,
    locations: Locations,
    headers: Mapping[Keys, GgufFile],
    models: Collection[Keys],
) -> Iterator[Problem]:
    """A KV cache of each draft for as many tokens as the target has; a context of the draft's own,
    which is ik's; and more than mainline's server gives (tools/server, "the slot context exceeds
    ...")."""
    own = score.draft.args.cache_type_k or score.draft.args.cache_type_v
    halves = {kind: cache_halves(kind) for kind in ((own,) if own else score.draft.cache_types)}
    for place in models:
        file, weights = headers[place], headers[place].tensor_bytes
        if place == TARGET or weights is None or no_model(file) is not None:
            continue
        found = ((cache_size(file, score.context, pair), kind) for kind, pair in halves.items())
        known = [(one.total, kind) for one, kind in found if one is not None]
        cache, largest = max(known, default=(0, ""))
        if cache < max(_LEAST_CACHE_BYTES, _MUCH_CACHE * weights):
            continue
        yield locations.at("score", "context").problem(
            f"mainline gives a draft the target's context of {score.context} tokens: a KV cache of "
            f"{size(cache)} in {largest} next to the {size(weights)} of {file.path.name}",
            hint="a smaller `score.context`, or `score.draft.cache_types: [q8_0]`; only "
            "ik_llama.cpp has a context of the draft's own (`score.draft.context`)",
            severity="warning",
        )
    if score.draft.context:
        yield locations.at("score", "draft", "context").problem(
            "llama.cpp gives a draft the target's context whatever is said: `context` is of "
            "ik_llama.cpp and changes nothing here",
            hint="leave it out, or score on a build of ik_llama.cpp too",
            severity="warning",
        )
    trained = headers[TARGET].number("context_length") if TARGET in headers else None
    if trained is not None and score.context > trained:
        yield locations.at("score", "context").problem(
            f"a context of {score.context} tokens is beyond what the target was trained on, "
            f"{trained}: llama-server gives no more, and live runs would stop at their start",
            hint=f"a `score.context` of at most {trained}",
            severity="warning",
        )
