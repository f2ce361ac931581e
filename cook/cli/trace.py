"""``cook trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cook.cli.options import EngineOption, JsonOption, QuietOption, ThreadsOption, open_output


def command(
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="TARGET", help="GGUF (shard 1 if split), or http://HOST:PORT."
        ),
    ],
    file: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The trace to write or go on with."),
    ],
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="SET", help="default, long, demo, or a .jsonl file.")
    ] = "default",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many prompts.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=131_072, help="Tokens of each reply.")
    ] = 128,
    context: Annotated[
        int, typer.Option("--context", min=128, max=4_194_304, help="Context, in tokens.")
    ] = 8192,
    batch_width: Annotated[
        int,
        typer.Option(
            "--batch-width",
            min=1,
            max=64,
            help="Tokens of the batch that computes each token; 2: as servers with a draft write.",
        ),
    ] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, max=10.0, help="0 is greedy.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=0, help="Of the sampler; absent: the server's.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help="Of the sampler.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", min=0.0, max=1.0, help="Of the sampler.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sampler.")] = 1,
    top: Annotated[
        int, typer.Option("--top", min=0, max=1024, help="Candidates stored for each token.")
    ] = 64,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="GGUF", help="GGUF with an address's tokenizer."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", metavar="FILE", help="Key of an address; else $COOK_API_KEY."
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Send prompts without a chat template.", show_default=False),
    ] = False,
    flash_attention: Annotated[
        bool | None,
        typer.Option("--flash-attention/--no-flash-attention", help="Of a file's target."),
    ] = None,
    gpu_layers: Annotated[
        int | None, typer.Option("--gpu-layers", min=0, help="Layers of a file on the GPU.")
    ] = None,
    override_tensor: Annotated[
        list[str] | None,
        typer.Option("--override-tensor", metavar="PATTERN=CPU", help="Placement; repeatable."),
    ] = None,
    cache_type: Annotated[
        str | None, typer.Option("--cache-type", metavar="TYPE", help="Type of a file's KV cache.")
    ] = None,
    engine: EngineOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Record what a target says, token by token, to score any draft on it later.

    A file runs in cook's own worker. A running llama-server (of llama.cpp or ik_llama.cpp) is
    asked by token ids, and must not draft meanwhile. Every reply is on the disk before the next is
    asked: the same command goes on where it was stopped. After prompts of thousands of tokens
    servers with a draft may write another text than without: --batch-width 2 records theirs, of a
    file.

    Examples:

      cook trace --target Ling-1T-smol-IQ4_KSS.gguf -o ling.trace
      cook trace --target http://127.0.0.1:8080 --prompts default --limit 40 -o ling.trace
      cook trace --target https://host --tokenizer Ling-flash-Q8_0.gguf -o ling.trace
    """
    output = open_output(json, quiet)
    from cook.engines.base import ModelArgs
    from cook.trace.request import Recording, show, trace

    args = ModelArgs(
        n_gpu_layers=gpu_layers,
        override_tensor=tuple(override_tensor or ()),
        cache_type_k=cache_type,
        cache_type_v=cache_type,
        flash_attention=flash_attention,
        threads=threads,
    )
    asked = Recording(
        target=target,
        output=file,
        prompts=prompts,
        limit=limit,
        max_tokens=max_tokens,
        context=context,
        batch_width=batch_width,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        top=top,
        args=args,
        tokenizer=tokenizer,
        key_file=key_file,
        raw=raw,
        engine=engine,
    )
    show(trace(asked, output), output)
