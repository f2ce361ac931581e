"""Writes a demo model as GGUF: bailingmoe2, with the tensor names of Ling."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

END_OF_TEXT = "<|endoftext|>"
_NORMAL, _CONTROL = 1, 3
_FILE_TYPE = {"f16": 1, "q8_0": 7}


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary: tokens by id, and its merges in order."""

    tokens: list[str]
    merges: list[str]

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Reads a `tokenizer.json` of the `tokenizers` library."""
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        return cls(by_id, merges)


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the engines would quantize it: a matrix, neither norm nor router."""
    return len(shape) > 1 and not name.endswith(("_norm.weight", "ffn_gate_inp.weight"))


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Weights,
    vocabulary: Vocabulary,
    kind: str,
    plain: Collection[str] = (),
) -> None:
    """Writes `path` whole or not at all; `kind` is "f16" or "q8_0".

    Matrices whose name contains one of `plain` stay F16 whatever the kind.
    """
    import gguf

    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "bailingmoe2")
    _write_header(writer, config, vocabulary, kind)
    f16, q8_0 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0
    for name, shape in config.tensor_shapes().items():
        data = weights[name]
        if tuple(data.shape) != shape:
            raise ValueError(f"{name}: shape {tuple(data.shape)}, expected {shape}")
        if is_quantizable(name, shape):
            keep = kind == "f16" or any(part in name for part in plain)
            quantized = f16 if keep else q8_0
            writer.add_tensor(name, gguf.quants.quantize(data, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, data.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def _write_header(writer: Any, config: ModelConfig, vocabulary: Vocabulary, kind: str) -> None:
    import gguf

    writer.add_name(config.name)
    writer.add_description("Demo model of cook, for showing and testing; trained by cook/demo")
    writer.add_license("see NOTICE beside this file")
    writer.add_file_type(_FILE_TYPE[kind])
    writer.add_quantization_version(2)
    writer.add_vocab_size(config.n_vocab)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer + config.n_nextn)
    if config.n_nextn:
        writer.add_nextn_predict_layers(config.n_nextn)
    writer.add_leading_dense_block_count(config.n_dense)
    writer.add_feed_forward_length(config.n_ff_dense)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.rope_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_expert_count(config.n_expert)
    writer.add_expert_used_count(config.n_expert_used)
    # ik_llama.cpp requires the group keys; one group of all experts is no grouping.
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(config.n_ff_expert)
    writer.add_expert_shared_feed_forward_length(config.n_ff_shared)
    writer.add_expert_weights_scale(config.weights_scale)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    end = vocabulary.tokens.index(END_OF_TEXT)
    types = [_CONTROL if token == END_OF_TEXT else _NORMAL for token in vocabulary.tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
