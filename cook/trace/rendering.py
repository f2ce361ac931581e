"""Prompts by a model's own chat template, as its engine's server renders it, weights left alone.

Only the server renders templates as the server does, and it wants a model. So it is given a
stand-in: all that the model's file says of its tokenizer and template, and next to no weights. To
render the prompts of a target of hundreds of gigabytes takes a second then.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.options import FlagEffect, read_flags
from cook.engines.process.supervisor import Supervisor
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import Flavour, by_name
from cook.formats.vocabulary import read_vocabulary
from cook.prompts.prompt_set import Prompt

WIDTH = 32
CONTEXT = 256


def render_prompts(
    engine: Engine,
    model: Path,
    extra: Sequence[str],
    prompts: Sequence[Prompt],
    supervisor: Supervisor,
) -> list[str]:
    """``prompts``, each as the messages of one request to the server of ``model``.

    ``extra``: raw flags of that server; those that have to do with prompts hold here, too.
    """
    from cook.engines.server import Server

    with tempfile.TemporaryDirectory(prefix="cook-template-") as folder:
        stand_in = write_stand_in(Path(folder, "template.gguf"), read_gguf(model))
        words: list[str] = []
        for found in read_flags(extra, [Flavour(engine.flavour)]).flags:
            if found.option.effect is FlagEffect.PROMPT:
                words += [found.flag] if found.value is None else [found.flag, found.value]
        args = ModelArgs(batch=CONTEXT, ubatch=CONTEXT, threads=1, extra=tuple(words))
        job = ServerJob(target=stand_in, target_args=args, context=CONTEXT)
        with Server(engine, job, supervisor) as server:
            return [server.apply_template(prompt.messages) for prompt in prompts]


def write_stand_in(path: Path, model: GgufFile) -> Path:
    """A model of one layer, some 20 MB, with the tokenizer and the template of ``model``."""
    tokens = read_vocabulary(model).size
    sizes = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": WIDTH,
        "attention.head_count": 1,
        "rope.dimension_count": WIDTH,
        "vocab_size": tokens,
    }
    metadata = {
        "general.architecture": encode("llama"),
        "llama.attention.layer_norm_rms_epsilon": encode(1e-5),
        **{f"llama.{name}": encode(size) for name, size in sizes.items()},
        **{key: model.raw_value(key) for key in model.metadata if key.startswith("tokenizer.")},
    }
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {
        "token_embd": (WIDTH, tokens),
        **dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (WIDTH,)),
        **{f"blk.0.{name}": (WIDTH, WIDTH) for name in square},
    }
    tensors = []
    for name, shape in shapes.items():
        # Ones. Norms are f32 in every engine, matrices may be f16.
        kind, one = ("f32", b"\0\0\x80\x3f") if len(shape) == 1 else ("f16", b"\0\x3c")
        ones = one * math.prod(shape)
        tensors.append(tensor_of(f"{name}.weight", shape, by_name(kind).id, ones))
    write_gguf_file(path, metadata, tensors)
    return path
