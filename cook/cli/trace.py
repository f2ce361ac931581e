"""``cook trace``."""

from __future__ import annotations

from pathlib import Path

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    target: str = opt.option(
        "--target", "GGUF (shard 1 if split), or http://HOST:PORT.", metavar="TARGET", default=...
    ),
    file: Path = opt.option(
        "--output", "The trace to write or go on with.", "-o", metavar="FILE", default=...
    ),
    model: str | None = opt.MODEL,
    prompts: str = opt.option(
        "--prompts",
        "default, long, demo, or a .jsonl or .json file.",
        metavar="SET",
        default="default",
    ),
    limit: int | None = opt.LIMIT,
    max_tokens: int = opt.option(
        "--max-tokens", "Tokens of each reply.", min=1, max=131_072, default=128
    ),
    context: int = opt.option(
        "--context", "Context, in tokens.", min=128, max=4_194_304, default=8192
    ),
    batch_width: int = opt.option(
        "--batch-width",
        "Tokens of the batch that computes each token; 2 as servers with a draft do.",
        min=1,
        max=64,
        default=1,
    ),
    temperature: float = opt.option(
        "--temperature", "Of the sampler; 0 is greedy.", min=0.0, max=10.0, default=0.0
    ),
    top_k: int | None = opt.option("--top-k", "Top-k of the sampler; absent: the server's.", min=0),
    top_p: float | None = opt.option("--top-p", "Top-p of the sampler.", min=1e-6, max=1.0),
    min_p: float | None = opt.option("--min-p", "Min-p of the sampler.", min=0.0, max=1.0),
    seed: int = opt.option("--seed", "Seed of the sampler.", min=0, default=1),
    tokenizer: Path | None = opt.option(
        "--tokenizer", "GGUF with an address's tokenizer.", metavar="GGUF"
    ),
    key_file: Path | None = opt.option(
        "--api-key-file", "Key of an address; else $COOK_API_KEY.", metavar="FILE"
    ),
    raw: bool = opt.flag("--raw", "Send prompts without a chat template."),
    gpu_layers: int | None = opt.option("--gpu-layers", "Layers of a file on the GPU.", min=0),
    override_tensor: list[str] | None = opt.option(
        "--override-tensor", "Placement of tensors; repeatable.", metavar="PATTERN=CPU"
    ),
    cache_type: str | None = opt.option(
        "--cache-type", "Type of a file's KV cache.", metavar="TYPE"
    ),
    engine: str | None = opt.ENGINE,
    threads: int | None = opt.THREADS,
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
      cook trace --target http://127.0.0.1:8080 --model qwen3-32b -o qwen.trace
      cook trace --target https://host --tokenizer Ling-flash-Q8_0.gguf -o ling.trace
    """
    from cook.engines.base import ModelArgs
    from cook.trace.request import TraceRequest, record_trace, show_recording

    asked = TraceRequest(
        target=target,
        output=file,
        model=model,
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
        args=ModelArgs(
            n_gpu_layers=gpu_layers,
            override_tensor=tuple(override_tensor or ()),
            cache_type_k=cache_type,
            cache_type_v=cache_type,
            threads=threads,
        ),
        tokenizer=tokenizer,
        key_file=key_file,
        raw=raw,
        engine=engine,
    )
    show_recording(record_trace(asked, out), out)
