"""``cook predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cook.cli.options import (
    EngineOption,
    JsonOption,
    QuietOption,
    RivalOption,
    ThreadsOption,
    open_output,
)


def command(
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="A trace of the target.")
    ] = None,
    drafts: Annotated[
        list[Path] | None, typer.Argument(metavar="[DRAFT]...", help="Draft GGUFs.")
    ] = None,
    rival: RivalOption = None,
    n_max: Annotated[
        list[int] | None, typer.Option("--n-max", min=1, max=32, help="Draft length; repeatable.")
    ] = None,
    p_min: Annotated[
        list[float] | None,
        typer.Option("--p-min", min=0.0, max=1.0, help="Least confidence; repeatable."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="ENGINE", help="Who counts: mainline, mainline-2025 or ik."
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="GGUF", help="Time this target here, on real text."),
    ] = None,
    target_ms: Annotated[
        float | None, typer.Option("--target-ms", min=1e-6, help="One token of the target, in ms.")
    ] = None,
    target_speed: Annotated[
        float | None,
        typer.Option(
            "--target-speed", metavar="T/S", min=1e-6, help="The same as tokens per second."
        ),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="N:MS,...", help="Batches of the target, in ms."),
    ] = None,
    draft_ms: Annotated[
        float | None, typer.Option("--draft-ms", min=1e-6, help="One token of the draft, in ms.")
    ] = None,
    draft_speed: Annotated[
        float | None,
        typer.Option(
            "--draft-speed", metavar="T/S", min=1e-6, help="The same as tokens per second."
        ),
    ] = None,
    overhead_ms: Annotated[
        float, typer.Option("--overhead-ms", min=0.0, help="Of each cycle, with typed numbers.")
    ] = 0.0,
    acceptance: Annotated[
        float | None,
        typer.Option(
            "--acceptance",
            min=0.0,
            max=1.0,
            help="Predict from accepted / drafted, as logs print it, without a trace.",
        ),
    ] = None,
    acceptance_at: Annotated[
        int | None,
        typer.Option(
            "--acceptance-at",
            min=1,
            max=256,
            help="n_max at which --acceptance was measured; absent: that of --n-max.",
        ),
    ] = None,
    token_acceptance: Annotated[
        float | None,
        typer.Option(
            "--token-acceptance",
            min=0.0,
            max=1.0,
            help="Instead of --acceptance: the chance of one drafted token.",
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            min=0.0,
            max=10.0,
            help="Forecast acceptance at it, by both rules; repeatable.",
        ),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option("--top-k", min=0, help="With it; repeatable.")
    ] = None,
    top_p: Annotated[
        list[float] | None,
        typer.Option("--top-p", min=0.0, max=1.0, help="With it; repeatable."),
    ] = None,
    min_p: Annotated[
        list[float] | None,
        typer.Option("--min-p", min=0.0, max=1.0, help="With it; repeatable."),
    ] = None,
    flash_attention: Annotated[
        bool | None, typer.Option("--flash-attention/--no-flash-attention", help="Of both models.")
    ] = None,
    gpu_layers: Annotated[
        int | None, typer.Option("--gpu-layers", min=0, help="Layers of the draft on the GPU.")
    ] = None,
    cache_type: Annotated[
        str | None, typer.Option("--cache-type", metavar="TYPE", help="The draft's KV cache.")
    ] = None,
    slots: Annotated[
        list[int] | None,
        typer.Option(
            "--slots",
            min=1,
            max=32,
            help="Also all requests in parallel on a server of so many slots; repeatable.",
        ),
    ] = None,
    link_ms: Annotated[
        float | None,
        typer.Option(
            "--link-ms", min=0.0, help="The draft on another machine: a round trip to it, in ms."
        ),
    ] = None,
    link_mbit: Annotated[
        float | None,
        typer.Option("--link-mbit", min=1e-3, help="The speed of that link, in Mbit/s."),
    ] = None,
    engine: EngineOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict the speed of drafts from a trace, or from numbers.

    With a trace every draft is replayed: acceptance comes from the target's own text, without the
    target. Speeds need its times: measured (--target) or typed (--verify). Without a trace
    everything is typed, and tokens count as accepted independently of each other; one line says
    whether it is worth it.

    Below the table, a line each: other sampling chains (--temperature, --top-p ...), drafting
    beside verification.

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
    options = dict(locals())
    for model in ("target", "draft"):
        _as_ms(options, model)
    output = open_output(options.pop("json"), options.pop("quiet"))
    from cook.build.predict import PredictRequest
    from cook.build.predict_show import answer

    # The request's fields are the options above, by their names.
    typed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None
    }
    answer(PredictRequest(**typed), output)


def _as_ms(options: dict[str, Any], model: str) -> None:
    """The time of one token of ``model``, which may be typed as a speed."""
    from cook.errors import InputError

    speed = options.pop(f"{model}_speed")
    if speed is not None and options[f"{model}_ms"] is not None:
        raise InputError(f"--{model}-speed and --{model}-ms say the same: give one of them")
    if speed is not None:
        options[f"{model}_ms"] = 1000 / speed
