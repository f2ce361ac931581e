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
            "--link-ms MS --link-mbit MBIT` tells what a draft on another machine gives",
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
    load = replace(
        load, parameters=_parameters(engine, flavour, args, load, context, outputs, slots)
    )
    return follow(flavour, args.extra, load, path.name)


def _overrides(flavour: Flavour, args: ModelArgs) -> tuple[str, ...]:
    """Each ``REGEX=BUFFER`` by itself; ik says experts by their number of layers."""
    found = [one for word in args.override_tensor for one in word.split(",")]
    if flavour is Flavour.LLAMA_CPP:
        if args.cpu_moe:
            found.append(_EXPERTS)
        if args.n_cpu_moe:
            layers = "|".join(str(i) for i in range(args.n_cpu_moe))
            found.append(rf"blk\.({layers}){_EXPERTS}")
    return tuple(found)


def _parameters(
    engine: Engine,
    flavour: Flavour,
    args: ModelArgs,
    load: ModelLoad,
    context: int,
    outputs: int | None,
    slots: int,
) -> tuple[LibraryParameter, ...]:
    found = [LibraryParameter(name, value) for name, value in _SERVERS[flavour].items()]
    if engine.environment().get("LLAMA_ARG_REPACK") == "0":
        found.append(LibraryParameter("model.use_extra_bufts", 0))
    if args.n_gpu_layers is not None:
        found.append(LibraryParameter("model.n_gpu_layers", args.n_gpu_layers, "--n-gpu-layers"))
    for half, kind in (("k", args.cache_type_k), ("v", args.cache_type_v)):
        if kind is not None:
            flag = f"--cache-type-{half}"
            found.append(LibraryParameter(f"context.type_{half}", kind, flag))
    if args.flash_attention is not None:
        name = "flash_attn_type" if flavour is Flavour.LLAMA_CPP else "flash_attn"
        on = int(args.flash_attention)
        found.append(LibraryParameter(f"context.{name}", on, "--flash-attn"))
    if flavour is Flavour.IK_LLAMA_CPP:
        found += _of_ik(args, load, context)
    elif outputs is not None:
        found.append(LibraryParameter("context.n_outputs_max", min(outputs * slots, load.batch)))
        found.append(LibraryParameter("context.n_outputs_max_per_seq", outputs))
    if slots > 1:
        found.append(LibraryParameter("context.n_seq_max", slots))
        found.append(LibraryParameter("context.kv_unified", 0))
    return tuple(found)


def _of_ik(args: ModelArgs, load: ModelLoad, context: int) -> list[LibraryParameter]:
    """What ik wants to know of the context when it loads the weights."""
    layers = args.n_cpu_moe if args.n_cpu_moe is not None else _ALL_LAYERS if args.cpu_moe else 0
    ubatch = min(load.ubatch, load.batch, context)
    found = [
        LibraryParameter("model.max_ctx_size", context),
        LibraryParameter("model.n_ubatch", ubatch),
    ]
    if layers:
        found.append(LibraryParameter("model.ncmoe", layers, "--cpu-moe"))
    if args.flash_attention is not None:
        found.append(LibraryParameter("model.flash_attn", int(args.flash_attention)))
    for half, kind in (("k", args.cache_type_k), ("v", args.cache_type_v)):
        if kind is not None:
            found.append(LibraryParameter(f"model.type_{half}", kind))
    return found
