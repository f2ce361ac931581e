"""``cook predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    trace: Path | None = opt.argument("[TRACE]", "A trace of the target.", default=None),
    drafts: list[Path] | None = opt.argument("[DRAFT]...", "Draft GGUFs.", default=None),
    rival: list[str] | None = opt.RIVALS,
    n_max: list[int] | None = opt.option("--n-max", "Draft length; repeatable.", min=1, max=32),
    p_min: list[float] | None = opt.option(
        "--p-min", "Least probability to draft; repeatable.", min=0.0, max=1.0
    ),
    profile: str | None = opt.option(
        "--profile", "Whose loop: mainline, mainline-2025 or ik.", metavar="ENGINE"
    ),
    target: Path | None = opt.option(
        "--target", "Time this target here, on real text.", metavar="GGUF"
    ),
    target_ms: float | None = opt.option(
        "--target-ms", "One token of the target, in ms.", min=1e-6
    ),
    target_speed: float | None = opt.option(
        "--target-speed", "Instead of --target-ms.", metavar="T/S", min=1e-6
    ),
    verify: str | None = opt.option(
        "--verify", "Batches of N tokens of the target, in ms.", metavar="N:MS,..."
    ),
    draft_ms: float | None = opt.option("--draft-ms", "One token of the draft, in ms.", min=1e-6),
    draft_speed: float | None = opt.option(
        "--draft-speed", "Instead of --draft-ms.", metavar="T/S", min=1e-6
    ),
    overhead_ms: float = opt.option(
        "--overhead-ms", "Overhead of each cycle, with --acceptance.", min=0.0, default=0.0
    ),
    acceptance: float | None = opt.option(
        "--acceptance",
        "Predict from accepted / drafted, as logs print it, without a trace.",
        min=0.0,
        max=1.0,
    ),
    acceptance_at: int | None = opt.option(
        "--acceptance-at",
        "n_max at which --acceptance was measured; absent: that of --n-max.",
        min=1,
        max=256,
    ),
    token_acceptance: float | None = opt.option(
        "--token-acceptance",
        "Instead of --acceptance: the probability of one drafted token.",
        min=0.0,
        max=1.0,
    ),
    temperature: list[float] | None = opt.option(
        "--temperature", "Forecast at it as well; repeatable, as the next three.", min=0.0, max=10.0
    ),
    top_k: list[int] | None = opt.option("--top-k", "With --temperature.", min=0),
    top_p: list[float] | None = opt.option("--top-p", "With --temperature.", min=0.0, max=1.0),
    min_p: list[float] | None = opt.option("--min-p", "With --temperature.", min=0.0, max=1.0),
    flash_attention: bool | None = opt.option(
        "--flash-attention/--no-flash-attention", "Flash attention of both models."
    ),
    gpu_layers: int | None = opt.option("--gpu-layers", "Layers of the draft on the GPU.", min=0),
    cache_type: str | None = opt.option("--cache-type", "The draft's KV cache.", metavar="TYPE"),
    slots: list[int] | None = opt.option(
        "--slots",
        "Predict requests in parallel on as many slots, too; repeatable.",
        min=1,
        max=32,
    ),
    link_ms: float | None = opt.option(
        "--link-ms", "The draft on another machine: a round trip to it, in ms.", min=0.0
    ),
    link_mbit: float | None = opt.option(
        "--link-mbit", "The speed of that link, in Mbit/s.", min=1e-3
    ),
    engine: str | None = opt.ENGINE,
    threads: int | None = opt.THREADS,
) -> None:
    """Predict the speed of drafts from a trace, or from numbers.

    With a trace every draft is replayed: acceptance comes from the target's own text, without the
    target. Speeds need its times: measured (--target) or typed (--verify). Without a trace
    everything is typed, and tokens count as accepted independently of each other; one line says
    whether it is worth it.

    Below the table, a line each: other sampling chains (--temperature, --top-p ...), drafting
    during verification.

    Examples:

      cook predict ling.trace Ling-flash-IQ1_KT.gguf Ling-flash-IQ2_KL.gguf --target Ling-1T.gguf
      cook predict ling.trace draft.gguf --verify 1:146,2:170,5:220 --p-min 0 --p-min 0.5
      cook predict ling.trace draft.gguf --target Ling-1T.gguf --slots 1 --slots 2 --slots 4
      cook predict ling.trace draft.gguf --target Ling-1T.gguf --link-ms 0.2 --link-mbit 10000
      cook predict ling.trace --rival all --rival ngram-map-k:size_n=8,size_m=16
      cook predict ling.trace draft.gguf --verify 1:146,2:170,5:220 --temperature 0.6 --top-p 0.8
      cook predict --acceptance 0.62 --acceptance-at 4 --target-ms 146 --draft-ms 12
      cook predict --acceptance 0.62 --target-speed 6.27 --draft-speed 100 --n-max 4
    """
    # The request's fields are the options above, by their names.
    options: dict[str, Any] = {k: v for k, v in locals().items() if v is not None and k != "out"}
    from cook.errors import InputError
    from cook.job.predict import PredictRequest
    from cook.job.predict_show import print_prediction

    for model in ("target", "draft"):
        speed = options.pop(f"{model}_speed", None)
        if speed is not None and f"{model}_ms" in options:
            raise InputError(f"--{model}-speed and --{model}-ms say the same: give one of them")
        if speed is not None:
            options[f"{model}_ms"] = 1000 / speed
    typed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    print_prediction(PredictRequest(**typed), out)
