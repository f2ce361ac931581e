"""How a deployed model is loaded into the worker: as its server does, in the library's words.

Of raw flags the column ``replay`` of ``options.tsv`` says for every harmless option: ``server`` (it
concerns the server alone: it changes no token and no decode of the library), ``no: WHY`` (the
worker cannot follow it), or parameters of the library with blanks between them:

- ``NAME`` gets the flag's value, ``NAME,NAME`` each its part of a value with commas;
- ``NAME=1`` gets that number or type, ``NAME=on`` 1, or 0 from a negated spelling (``--no-...``),
  ``NAME=off`` the opposite;
- ``NAME=word:1,other:2`` gets the number that stands for the value;
- ``@rule`` is one of :func:`_by_rule`.

Read from ``common_model_params_to_llama`` and ``common_context_params_to_llama`` and the parsers of
both engines, at the versions that :mod:`cook.engines.options` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cook.engines.base import BATCH, UBATCH, Engine, ModelArgs
from cook.engines.options import OPTIONS, Option, ParsedFlag, read_flags
from cook.engines.worker.messages import LibraryParameter, ModelLoad
from cook.errors import InputError, InternalError, PrerequisiteError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import Flavour

# What the servers set although the library's own default is another: common_params against
# llama_*_default_params, in both engines' sources.
_SERVERS: dict[Flavour, dict[str, float]] = {
    Flavour.LLAMA_CPP: {"context.swa_full": 0, "context.no_perf": 0},
    Flavour.IK_LLAMA_CPP: {"context.only_active_experts": 1, "model.mla": 3},
}
# LLM_FFN_EXPS_REGEX of mainline's common.h, for a layer and for all.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
_ALL_LAYERS = 999
"""What ik's parser makes of ``--cpu-moe``."""


def model_load(
    engine: Engine,
    path: Path,
    args: ModelArgs,
    context: int,
    *,
    beyond: int = 0,
    outputs: int | None = None,
    slots: int = 1,
    gives_rows: bool = False,
) -> ModelLoad:
    """``path`` as the server of ``args`` runs it, for
    :meth:`cook.engines.worker.worker.Worker.load`.

    ``beyond``: room behind the server's ``context``. ``outputs``: the most rows of logits that one
    batch asks for of one sequence, which sizes the buffers as the server's are; None where a whole
    batch does. ``slots``: sequences, each with a KV cache of its own (mainline). ``gives_rows``: a
    head drafts with it.
    PrerequisiteError for arguments that the worker can't follow; live scoring can.
    """
    if args.rpc:
        raise PrerequisiteError(
            f"{path.name}: replay and timing cannot use RPC servers yet",
            hint="score it live: `score: {method: live}`; or leave `rpc` out, and `cook predict "
            "--link-ms MS --link-mbit MBIT` predicts what a draft on another machine gives",
        )
    flavour, numbers = Flavour(engine.flavour), args.filled()
    overrides = [one for word in args.override_tensor for one in word.split(",")]
    if flavour is Flavour.LLAMA_CPP:  # ik says experts by their number of layers
        if args.cpu_moe:
            overrides.append(_EXPERTS)
        if args.n_cpu_moe:
            layers = "|".join(str(i) for i in range(args.n_cpu_moe))
            overrides.append(rf"blk\.({layers}){_EXPERTS}")
    load = ModelLoad(
        path=path,
        context=(context + beyond) * slots,
        batch=numbers.batch or BATCH,
        ubatch=numbers.ubatch or UBATCH,
        threads=numbers.threads or 1,
        threads_batch=numbers.threads_batch,
        overrides=tuple(overrides),
        devices=args.devices,
        gives_rows=gives_rows,
    )
    parameters = _parameters(engine, args, load, context, outputs, slots)
    if gives_rows and flavour is Flavour.IK_LLAMA_CPP:
        parameters += _of_heads({"model.mtp": 1, "context.mtp": 1})
    return follow(flavour, args.extra, replace(load, parameters=parameters), path.name)


_REQUANTIZED_FROM = dict.fromkeys(("iq1_kt", "iq2_kt", "iq3_kt", "iq2_s"), 16) | {"iq4_kt": 24}
_ANY_REQUANTIZED_FROM = 32
"""Tokens of a batch from which ik's kernels quantize a type's weights again, and round otherwise:
`is_dequant_better` of ggml/src/iqk/iqk_mul_mat.cpp (8337e4cd), the least of all processors."""


def few_rows(path: Path, flavour: str) -> int | None:
    """The most tokens of ``path`` that a processor computes in one batch as it does a server's few;
    None: as many as the worker knows of the engine."""
    if flavour != Flavour.IK_LLAMA_CPP:
        return None
    try:
        types = {tensor.type_name for tensor in read_gguf(path).tensors}
    except InputError:
        return None  # the engine says what is wrong with it
    starts = (_REQUANTIZED_FROM.get(name, _ANY_REQUANTIZED_FROM) for name in types)
    return min(starts, default=_ANY_REQUANTIZED_FROM) - 1


_MTP = 1
"""LLAMA_CONTEXT_TYPE_MTP of mainline's llama.h, MTP_OP_WARMUP of ik's."""


def head_load(
    engine: Engine,
    path: Path,
    args: ModelArgs,
    context: int,
    branches: int = 0,
    depth: int = 1,
    slots: int = 1,
) -> ModelLoad:
    """The head in ``path`` as its server of so many ``slots`` runs it, with room for so many
    ``branches`` of ``depth`` tokens. PrerequisiteError, as by :func:`model_load`, and where the
    engine's library runs none.
    """
    is_ik = engine.flavour == Flavour.IK_LLAMA_CPP  # whose weights are the target's, head and all
    beyond = max(branches * depth, depth)
    load = model_load(engine, path, args, context, beyond=beyond, slots=slots, gives_rows=is_ik)
    given = {"context.n_seq_max": branches + slots}
    if is_ik:
        given |= {"context.mtp_op_type": _MTP}
    else:
        given |= {"model.load_mtp": 1, "context.ctx_type": _MTP}
        given |= {"context.kv_unified": int(branches > 0)}
    more = (*load.parameters, *_of_heads(given))
    return replace(load, parameters=more, gives_rows=False)


def without_rows(load: ModelLoad) -> ModelLoad:
    """The weights of ``load``, as they lie in memory, in a context of a server without a head."""
    parameters = (replace(p, value=0) if p.name == "context.mtp" else p for p in load.parameters)
    return replace(load, gives_rows=False, parameters=tuple(parameters))


def _of_heads(given: Mapping[str, int]) -> tuple[LibraryParameter, ...]:
    return tuple(LibraryParameter(name, value, "--spec-type") for name, value in given.items())


def _parameters(
    engine: Engine, args: ModelArgs, load: ModelLoad, context: int, outputs: int | None, slots: int
) -> tuple[LibraryParameter, ...]:
    found: list[LibraryParameter] = []

    def add(name: str, value: float | str | None, flag: str | None = None) -> None:
        if value is not None:
            found.append(LibraryParameter(name, value, flag))

    is_ik = engine.flavour == Flavour.IK_LLAMA_CPP
    flash = None if args.flash_attention is None else int(args.flash_attention)
    for name, value in _SERVERS[engine.flavour].items():
        add(name, value)
    if engine.environment().get("LLAMA_ARG_REPACK") == "0":
        add("model.use_extra_bufts", 0)
    add("model.n_gpu_layers", args.n_gpu_layers, "--n-gpu-layers")
    add("context.type_k", args.cache_type_k, "--cache-type-k")
    add("context.type_v", args.cache_type_v, "--cache-type-v")
    add("context.flash_attn" if is_ik else "context.flash_attn_type", flash, "--flash-attn")
    if is_ik:  # what it wants to know of the context when it loads the weights
        layers = _ALL_LAYERS if args.cpu_moe else None
        add("model.max_ctx_size", context)
        add("model.n_ubatch", min(load.ubatch, load.batch, context))
        add(
            "model.ncmoe", layers if args.n_cpu_moe is None else args.n_cpu_moe or None, "--cpu-moe"
        )
        add("model.flash_attn", flash)
        add("model.type_k", args.cache_type_k)
        add("model.type_v", args.cache_type_v)
    elif outputs is not None:
        add("context.n_outputs_max", min(outputs * slots, load.batch))
        add("context.n_outputs_max_per_seq", outputs)
    if slots > 1:
        add("context.n_seq_max", slots)
        add("context.kv_unified", 0)
    return tuple(found)


_SERVER_ONLY = "server"
_UNABLE = "no: "


def follow(flavour: Flavour, words: Sequence[str], load: ModelLoad, model: str) -> ModelLoad:
    """``load`` as raw flags change it; those of the server alone change nothing.

    PrerequisiteError, naming the flag, for one that replay and timing of ``model`` cannot follow.
    """
    found = read_flags(words, [flavour])
    if found.refusals:
        why = "cook knows no parameter of the library for it"
        raise _cannot_follow(model, words[found.refusals[0].index], why)
    for parsed in found.flags:
        rule = OPTIONS[flavour][parsed.flag].replay
        if rule.startswith(_UNABLE):
            raise _cannot_follow(model, parsed.flag, rule.removeprefix(_UNABLE))
        if rule.startswith("@"):
            load = _by_rule(rule, load, parsed)
        elif rule != _SERVER_ONLY:
            values = (pair for part in rule.split() for pair in _values(part, parsed))
            load = _with_values(load, parsed, dict(values))
    return load


def in_replay(option: Option) -> str:
    """For people: what replay and timings do about a harmless ``option``."""
    if option.replay.startswith(_UNABLE):
        return option.replay
    return "without it" if option.replay == _SERVER_ONLY else "yes"


def of_the_server(flavour: Flavour, words: Sequence[str]) -> tuple[str, ...]:
    """The raw flags among ``words`` that replay and timing go without."""
    flags = read_flags(words, [flavour]).flags
    return tuple(f.flag for f in flags if f.option.replay == _SERVER_ONLY)


def _cannot_follow(model: str, flag: str, why: str) -> PrerequisiteError:
    return PrerequisiteError(
        f"{model}: replay and timing cannot follow `{flag}`: {why}",
        hint="it can be scored live only: `score: {method: live}`",
    )


def _values(part: str, parsed: ParsedFlag) -> Iterator[tuple[str, float | str]]:
    """The parameters that ``part`` of a rule sets, with their values."""
    names, is_set, to = part.partition("=")
    value = parsed.value or ""
    if ":" in to:
        yield names, int(dict(choice.split(":") for choice in to.split(","))[value])
    elif to in ("on", "off"):
        negated = parsed.flag.startswith(("-n", "--no-"))
        yield names, int((to == "on") != negated)
    else:
        parts = [to] if is_set else value.split(",") if "," in names else [value]
        for name, text in zip(names.split(","), parts, strict=True):
            number = 0.0 if "type" in name else float(text)  # a type stays a word
            yield name, text if "type" in name else int(number) if number.is_integer() else number


def _with_values(
    load: ModelLoad, parsed: ParsedFlag, values: Mapping[str, float | str]
) -> ModelLoad:
    more = tuple(LibraryParameter(name, value, parsed.flag) for name, value in values.items())
    return replace(load, parameters=(*load.parameters, *more))


def _by_rule(rule: str, load: ModelLoad, parsed: ParsedFlag) -> ModelLoad:
    """What a flag makes of a load where that is more than parameters."""
    value = parsed.value or ""
    match rule:
        case "@tensor_split":
            return replace(load, tensor_split=value.replace("/", ","))
        case "@numa":
            return replace(load, numa=("distribute", "isolate", "numactl").index(value) + 1)
        case "@dense_ffn_on_cpu":  # LLM_FFN_DENSE_REGEX of mainline's common.h
            layers = "|".join(str(i) for i in range(int(value or 0)))
            override = rf"blk\.({layers})\.ffn_(up|down|gate)\.=CPU"
            return replace(load, overrides=(*load.overrides, override))
        case "@rope_scale":
            return _with_values(load, parsed, {"context.rope_freq_scale": 1.0 / float(value or 0)})
        case "@attention_buffer":  # ik raises smaller ones
            mib = int(value or 0)
            names = ("model.amb", "context.attn_max_batch")
            return _with_values(load, parsed, dict.fromkeys(names, mib and max(mib, 128)))
    raise InternalError(f"options.tsv names a rule {rule}, which there is not")
