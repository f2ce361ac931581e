"""How a deployed model is loaded into the worker: as its server does, in the library's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.engines.base import BATCH, UBATCH, Engine, ModelArgs
from cook.engines.worker.flags import follow
from cook.engines.worker.messages import LibraryParameter, ModelLoad
from cook.errors import PrerequisiteError
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
) -> ModelLoad:
    """``path`` as the server of ``args`` runs it, for
    :meth:`cook.engines.worker.worker.Worker.load`.

    ``beyond``: room behind the server's ``context``. ``outputs``: the most rows of logits that one
    batch asks for of one sequence, which sizes the buffers as the server's are; None where a whole
    batch does. ``slots``: sequences, each with a KV cache of its own (mainline).
    PrerequisiteError for arguments that the worker can't follow; live scoring can.
    """
    if args.rpc:
        raise PrerequisiteError(
            f"{path.name}: replay and timing cannot use RPC servers yet",
            hint="score it live: `score: {method: live}`; or leave `rpc` out, and `cook predict "
            "--link-ms MS --link-mbit MBIT` predicts what a draft on another machine gives",
        )
    flavour, numbers = Flavour(engine.flavour), args.filled()
    load = ModelLoad(
        path=path,
        context=(context + beyond) * slots,
        batch=numbers.batch or BATCH,
        ubatch=numbers.ubatch or UBATCH,
        threads=numbers.threads or 1,
        threads_batch=numbers.threads_batch,
        overrides=_overrides(flavour, args),
        devices=args.devices,
    )
    parameters = _parameters(engine, args, load, context, outputs, slots)
    return follow(flavour, args.extra, replace(load, parameters=parameters), path.name)


def _overrides(flavour: Flavour, args: ModelArgs) -> tuple[str, ...]:
    """Each ``REGEX=BUFFER`` alone; ik says experts by their number of layers."""
    found = [one for word in args.override_tensor for one in word.split(",")]
    if flavour is Flavour.LLAMA_CPP:
        if args.cpu_moe:
            found.append(_EXPERTS)
        if args.n_cpu_moe:
            layers = "|".join(str(i) for i in range(args.n_cpu_moe))
            found.append(rf"blk\.({layers}){_EXPERTS}")
    return tuple(found)


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
