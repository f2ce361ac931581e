"""Raw flags in the library's own words: what the servers do with each, done by the worker.

Every harmless option of :mod:`cook.engines.options` stands here once a flavour: as numbers of the
library's parameters, as one that concerns the server alone, or as one that the worker has no way
to follow. What is none of these is refused as the last are, so an option that is new is never
dropped. Read from ``common_model_params_to_llama`` and ``common_context_params_to_llama`` and the
parsers of both engines, at the versions that :mod:`cook.engines.options` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cook.engines.options import OPTIONS, Option, Said, read_flags
from cook.engines.worker.messages import LibraryParameter, ModelLoad
from cook.errors import PrerequisiteError
from cook.formats.quant_types import Flavour

Follow = Callable[[ModelLoad, Said], ModelLoad]
"""What a flag makes of a load."""


@dataclass(frozen=True)
class ServerOnly:
    """A flag that changes no token and no decode of the library: replay and timing go without."""


@dataclass(frozen=True)
class Unable:
    """A flag that the worker cannot follow, and ``why``."""

    why: str


Handling = Follow | ServerOnly | Unable
SERVER_ONLY = ServerOnly()
_PINNED = Unable("it places the server's own threads")
_ALONE = "it can be scored live only: `score: {method: live}`"


def follow(flavour: Flavour, words: Sequence[str], load: ModelLoad, model: str) -> ModelLoad:
    """``load`` as raw flags change it; those of the server alone change nothing.

    PrerequisiteError, naming the flag, for one that replay and timing of ``model`` cannot follow.
    """
    for said in _read(flavour, words, model):
        rule = _rule(flavour, said)
        if isinstance(rule, Unable):
            raise PrerequisiteError(
                f"{model}: replay and timing cannot follow `{said.flag}`: {rule.why}", hint=_ALONE
            )
        if not isinstance(rule, ServerOnly):
            load = rule(load, said)
    return load


def in_replay(flavour: Flavour, option: Option) -> str:
    """For people: what replay and timings do about a harmless ``option``."""
    rule = RULES[flavour][option.name]
    if isinstance(rule, Unable):
        return f"no: {rule.why}"
    return "without it" if isinstance(rule, ServerOnly) else "yes"


def of_the_server(flavour: Flavour, words: Sequence[str]) -> tuple[str, ...]:
    """The raw flags among ``words`` that replay and timing go without."""
    said = read_flags(words, [flavour]).said
    return tuple(s.flag for s in said if isinstance(_rule(flavour, s), ServerOnly))


def _read(flavour: Flavour, words: Sequence[str], model: str) -> Sequence[Said]:
    found = read_flags(words, [flavour])
    if found.refusals:
        word = words[found.refusals[0].index]
        why = "cook knows no parameter of the library for it"
        raise PrerequisiteError(
            f"{model}: replay and timing cannot follow `{word}`: {why}", hint=_ALONE
        )
    return found.said


def _rule(flavour: Flavour, said: Said) -> Handling:
    option = OPTIONS[flavour][said.flag]
    return RULES[flavour].get(option.name, Unable("cook knows no parameter of the library for it"))


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _with(load: ModelLoad, said: Said, values: Mapping[str, float | str]) -> ModelLoad:
    more = tuple(LibraryParameter(name, value, said.flag) for name, value in values.items())
    return replace(load, parameters=(*load.parameters, *more))


def _is(value: float | str, *names: str) -> Follow:
    """A switch that sets ``names`` to ``value``."""
    return lambda load, said: _with(load, said, dict.fromkeys(names, value))


def _value(*names: str, of: Callable[[str], float | str] = _number) -> Follow:
    """A flag whose value ``names`` get."""
    return lambda load, said: _with(load, said, dict.fromkeys(names, of(said.value or "")))


def _switch(name: str, *off: str, on: int = 1) -> Follow:
    """A pair of switches: ``name`` gets 1 - ``on`` from those in ``off``, else ``on``."""
    return lambda load, said: _with(load, said, {name: 1 - on if said.flag in off else on})


def _word(name: str, *words: str, first: int = 0) -> Follow:
    """A flag whose value is one of ``words``, numbered from ``first``."""
    return _value(name, of=lambda text: words.index(text) + first)


def _first_or_last(which: str) -> Follow:
    """``TYPE,LAYERS`` for the first or the last layers' keys or values."""

    def follow_it(load: ModelLoad, said: Said) -> ModelLoad:
        kind, _, layers = (said.value or "").partition(",")
        values: dict[str, float | str] = {}
        for of in ("model", "context"):
            values |= {f"{of}.type_{which}": kind, f"{of}.n_{which}": int(layers)}
        return _with(load, said, values)

    return follow_it


def _reduced_experts(load: ModelLoad, said: Said) -> ModelLoad:
    count, _, threshold = (said.value or "").partition(",")
    values = {"context.min_experts": int(count), "context.thresh_experts": float(threshold)}
    return _with(load, said, values)


def _at_least_128(text: str) -> int:
    """ik raises smaller buffers of attention."""
    return int(text) if int(text) == 0 else max(int(text), 128)


def _shares(load: ModelLoad, said: Said) -> ModelLoad:
    return replace(load, tensor_split=(said.value or "").replace("/", ","))


def _numa(load: ModelLoad, said: Said) -> ModelLoad:
    return replace(load, numa=("distribute", "isolate", "numactl").index(said.value or "") + 1)


def _dense_on_cpu(load: ModelLoad, said: Said) -> ModelLoad:
    """LLM_FFN_DENSE_REGEX of mainline's common.h."""
    layers = "|".join(str(i) for i in range(int(said.value or 0)))
    return replace(load, overrides=(*load.overrides, rf"blk\.({layers})\.ffn_(up|down|gate)\.=CPU"))


_BOTH: Mapping[str, Handling] = {
    "--tensor-split": _shares,
    "--main-gpu": _value("model.main_gpu"),
    "--numa": _numa,
    "--threads-http": SERVER_ONLY,
    "--check-tensors": SERVER_ONLY,
    "--rope-scaling": _word("context.rope_scaling_type", "none", "linear", "yarn"),
    "--rope-scale": _value("context.rope_freq_scale", of=lambda text: 1.0 / float(text)),
    "--rope-freq-base": _value("context.rope_freq_base"),
    "--rope-freq-scale": _value("context.rope_freq_scale"),
    "--yarn-orig-ctx": _value("context.yarn_orig_ctx"),
    "--yarn-ext-factor": _value("context.yarn_ext_factor"),
    "--yarn-attn-factor": _value("context.yarn_attn_factor"),
    "--yarn-beta-slow": _value("context.yarn_beta_slow"),
    "--yarn-beta-fast": _value("context.yarn_beta_fast"),
}
_LLAMA: Mapping[str, Handling] = {
    **_BOTH,
    "--split-mode": _word("model.split_mode", "none", "layer", "row", "tensor"),
    "--n-cpu-ffn": _dense_on_cpu,
    "--no-kv-offload": _switch("context.offload_kqv", "-nkvo", "--no-kv-offload"),
    "--no-op-offload": _switch("context.op_offload", "--no-op-offload"),
    "--no-host": _is(1, "model.no_host"),
    "--cpu-mask": _PINNED,
    "--cpu-range": _PINNED,
    "--cpu-strict": _PINNED,
    "--prio": _PINNED,
    "--poll": _PINNED,
    "--cpu-mask-batch": _PINNED,
    "--cpu-range-batch": _PINNED,
    "--cpu-strict-batch": _PINNED,
    "--prio-batch": _PINNED,
    "--poll-batch": _PINNED,
    "--spec-draft-cpu-mask": _PINNED,
    "--spec-draft-cpu-range": _PINNED,
    "--spec-draft-cpu-strict": _PINNED,
    "--spec-draft-prio": _PINNED,
    "--spec-draft-poll": _PINNED,
    "--spec-draft-cpu-mask-batch": _PINNED,
    "--spec-draft-cpu-strict-batch": _PINNED,
    "--spec-draft-prio-batch": _PINNED,
    "--spec-draft-poll-batch": _PINNED,
    # The worker times the processor's sampler beside the decode, whichever the server has.
    "--no-spec-draft-backend-sampling": SERVER_ONLY,
    "--backend-sampling": Unable("it moves the server's sampling to the device"),
    "--no-repack": _switch("model.use_extra_bufts", "-nr", "--no-repack"),
    "--no-warmup": SERVER_ONLY,
    "--no-cont-batching": SERVER_ONLY,
    "--no-perf": _switch("context.no_perf", "--perf"),
    "--load-mode": _word(
        "model.load_mode", "auto", "none", "mmap", "mlock", "mmap+mlock", "dio", first=-1
    ),
    "--lazy-mode": _word("model.lazy_mode", "off", "auto", "on"),
    "--swa-full": _is(1, "context.swa_full"),
    "--no-kv-unified": _switch("context.kv_unified", "-no-kvu", "--no-kv-unified"),
    "--kv-unified-per-slot": Unable("it gives the server's slots another context"),
    "--ctx-checkpoints": SERVER_ONLY,
    "--checkpoint-min-step": SERVER_ONLY,
    "--no-cache-idle-slots": SERVER_ONLY,
    # The library no longer reads it.
    "--defrag-thold": SERVER_ONLY,
    "--no-jinja": SERVER_ONLY,
}
_IK: Mapping[str, Handling] = {
    **_BOTH,
    "--split-mode": _word("model.split_mode", "none", "layer", "attn", "graph"),
    "--max-gpu": _value("model.max_gpu"),
    "--no-kv-offload": _is(0, "context.offload_kqv"),
    "--offload-policy": Unable("the library takes it in a form of its own"),
    "--no-offload-only-active-experts": _is(0, "context.only_active_experts"),
    "--fit": _is(1, "model.fit"),
    "--fit-margin": _value("model.fit_margin"),
    "--gpu-fit-margin": Unable("the library takes it in a form of its own"),
    "--run-time-repack": lambda load, said: _with(
        load, said, {"model.repack_tensors": 1, "model.use_mmap": 0}
    ),
    "--no-warmup": SERVER_ONLY,
    "--warmup-batch": SERVER_ONLY,
    "--cont-batching": SERVER_ONLY,
    "--no-cont-batching": SERVER_ONLY,
    "--validate-quants": SERVER_ONLY,
    "--no-fused-moe": _is(0, "context.fused_moe_up_gate"),
    "--no-fused-up-gate": _is(0, "context.fused_up_gate"),
    "--no-fused-mul-multiadd": _is(0, "context.fused_mmad"),
    "--graph-reuse": _is(1, "context.graph_reuse"),
    "--no-graph-reuse": _is(0, "context.graph_reuse"),
    "--merge-qkv": _is(1, "model.merge_qkv"),
    "--merge-up-gate-experts": _is(1, "model.merge_up_gate_exps"),
    "--split-mode-graph-scheduling": _is(1, "context.split_mode_graph_scheduling"),
    "--scheduler-async": _is(1, "context.scheduler_async"),
    "--cuda-params": Unable("the library takes it in a form of its own"),
    "--prefetch-experts": _is(1, "context.prefetch_experts"),
    "--prefetch-experts-threads": _value("context.prefetch_experts_threads"),
    "--mlock": _is(1, "model.use_mlock"),
    "--no-mmap": _is(0, "model.use_mmap"),
    "--transparent-huge-pages": _is(1, "model.use_thp"),
    "--defer-experts": _is(1, "model.defer_experts"),
    "--swa-compress": _is(1, "model.swa_compress", "context.swa_compress"),
    "--ctx-checkpoints": SERVER_ONLY,
    "--ctx-checkpoints-interval": SERVER_ONLY,
    "--ctx-checkpoints-tolerance": SERVER_ONLY,
    "--ctx-checkpoints-eviction": SERVER_ONLY,
    "--attention-max-batch": _value("model.amb", "context.attn_max_batch", of=_at_least_128),
    "--worst-graph-tokens": _value("model.worst_graph_tokens", "context.worst_case_tokens"),
    "--max-extra-alloc": _value("context.max_extra_alloc"),
    "--defrag-thold": _value("context.defrag_thold"),
    "--mla-use": _value("model.mla", "context.mla_attn"),
    "--dsa": _is(1, "context.dsa"),
    "--fused-indexer-topk": _is(1, "context.fused_idx_topk"),
    "--dsa-top-k": _value("context.dsa_top_k"),
    "--grouped-expert-routing": _is(1, "context.grouped_expert_routing"),
    "--smart-expert-reduction": _reduced_experts,
    "--k-cache-hadamard": _is(1, "context.k_cache_hadamard"),
    "--v-cache-hadamard": _is(1, "context.v_cache_hadamard"),
    "--split-mode-f16": _is("f16", "context.type_reduce"),
    "--split-mode-f32": _is("f32", "context.type_reduce"),
    "--graph-reduce-type": _value("context.type_reduce", of=str),
    "--graph-attn-precision": _value("context.type_graph_attn", of=str),
    "--indexer-cache-type-k": _value("model.idx_type_k", "context.idx_type_k", of=str),
    "--cache-type-k-first": _first_or_last("k_first"),
    "--cache-type-k-last": _first_or_last("k_last"),
    "--cache-type-v-first": _first_or_last("v_first"),
    "--cache-type-v-last": _first_or_last("v_last"),
    "--jinja": SERVER_ONLY,
}
RULES: Mapping[Flavour, Mapping[str, Handling]] = {
    Flavour.LLAMA_CPP: _LLAMA,
    Flavour.IK_LLAMA_CPP: _IK,
}
"""Flavour -> an option's name -> what the worker does about it."""
