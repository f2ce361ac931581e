"""Prompts by a model's own chat template, as its engine's server renders it, weights left alone.

Only the server renders templates as the server does, and it wants a model. So it is given a
stand-in: all that the model's file says of its tokenizer and template, and next to no weights. To
render the prompts of a target of hundreds of gigabytes takes a second then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.options import Sets, read_flags
from cook.engines.process.supervisor import Supervisor
from cook.formats.gguf import GgufFile, MetadataArray, ValueType, read_gguf
from cook.formats.quant_types import Flavour
from cook.formats.vocabulary import read_vocabulary

WIDTH = 32
CONTEXT = 256
_TOKENIZER = "tokenizer."


def rendered(
    engine: Engine,
    model: Path,
    extra: Sequence[str],
    texts: Sequence[str],
    supervisor: Supervisor,
) -> list[str]:
    """``texts``, each as the only message to the server of ``model``.

    ``extra``: raw flags of that server; those that have to do with prompts hold here, too.
    """
    from cook.engines.server import Server

    with tempfile.TemporaryDirectory(prefix="cook-template-") as folder:
        stand_in = write_stand_in(Path(folder, "template.gguf"), read_gguf(model))
        args = ModelArgs(batch=CONTEXT, ubatch=CONTEXT, threads=1, extra=_of_prompts(engine, extra))
        job = ServerJob(target=stand_in, target_args=args, context=CONTEXT)
        with Server(engine, job, supervisor) as server:
            return [server.apply_template(text) for text in texts]


def write_stand_in(path: Path, model: GgufFile) -> Path:
    """A model of one layer, some 20 MB, with the tokenizer and the template of ``model``."""
    import gguf
    import numpy as np

    tokens = read_vocabulary(model).size
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(tokens)
    for key, value in model.metadata.items():
        if not key.startswith(_TOKENIZER):
            continue
        kind = gguf.GGUFValueType(model.raw_value(key)[0])
        if isinstance(value, MetadataArray):
            items = value.strings() if value.element is ValueType.STRING else value.values()
            element = gguf.GGUFValueType(value.element)
            writer.add_key_value(key, list(items), kind, sub_type=element)
        else:
            writer.add_key_value(key, value, kind)
    writer.add_tensor("token_embd.weight", np.full((tokens, WIDTH), 0.01, np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in names:
        writer.add_tensor(f"blk.0.{name}.weight", np.full((WIDTH, WIDTH), 0.01, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_prompts(engine: Engine, extra: Sequence[str]) -> tuple[str, ...]:
    """The flags among ``extra`` that change how a prompt is rendered."""
    words: list[str] = []
    for said in read_flags(extra, [Flavour(engine.flavour)]).said:
        if said.option.sets is Sets.PROMPT:
            words += [said.flag] if said.value is None else [said.flag, said.value]
    return tuple(words)
