"""How a step's model is loaded into the worker: the recipe's arguments in the worker's words."""

from __future__ import annotations

from pathlib import Path

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.messages import ModelLoad
from cook.errors import PrerequisiteError

CPU_SUFFIX = "=CPU"


def model_load(
    engine: Engine, path: Path, args: ModelArgs, context: int, threads: int
) -> ModelLoad:
    """``path`` placed as ``args`` says, for :meth:`cook.engines.worker.worker.Worker.load`.

    ``threads`` is used where ``args`` names none. PrerequisiteError for a placement that the
    worker can't make (other devices, RPC); live scoring can.
    """
    if args.devices or args.rpc:
        raise PrerequisiteError(
            f"{path.name}: replay cannot place a model on named devices or RPC servers yet",
            hint="score it live: `score: {method: live}`",
        )
    overrides = list(args.override_tensor)
    if args.cpu_moe:
        overrides.append("exps" + CPU_SUFFIX)
    if args.n_cpu_moe:
        layers = "|".join(str(i) for i in range(args.n_cpu_moe))
        overrides.append(rf"blk\.({layers})\.ffn_(up|down|gate|gate_up)_exps{CPU_SUFFIX}")
    other = [o for o in overrides if not o.endswith(CPU_SUFFIX)]
    if other:
        raise PrerequisiteError(
            f"{path.name}: replay can override tensors to CPU only, not {other[0]!r}",
            hint="score it live: `score: {method: live}`",
        )
    return ModelLoad(
        path=path,
        context=context,
        batch=args.batch or 2048,
        ubatch=args.ubatch or 512,
        threads=args.threads or threads,
        threads_batch=args.threads_batch,
        n_gpu_layers=args.n_gpu_layers,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        flash_attention=args.flash_attention,
        repack=engine.environment().get("LLAMA_ARG_REPACK") != "0",
        cpu_tensors=tuple(o.removesuffix(CPU_SUFFIX) for o in overrides),
    )
