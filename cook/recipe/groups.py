"""Tensor groups: what a tensor is for, by its name.

Names are GGUF's own (``gguf-py/gguf/constants.py`` of llama.cpp): the words in them mean the
same in every architecture, so one table serves all, and an architecture only adds what its
words mean differently. Every quantizable tensor is in exactly one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum


class Group(StrEnum):
    """The nine groups a rule may name."""

    ATTENTION = "attention"
    DENSE_FFN = "dense_ffn"
    SHARED_EXPERTS = "shared_experts"
    ROUTED_EXPERTS = "routed_experts"
    ROUTER = "router"
    EMBEDDINGS = "embeddings"
    OUTPUT = "output"
    MTP = "mtp"
    OTHER = "other"


MEANING: Mapping[Group, str] = {
    Group.ATTENTION: "projections of attention: attn_q, attn_k, attn_v, attn_qkv, attn_output, "
    "the MLA factors (attn_q_a, attn_kv_b, attn_k_b ...) and the sparse-attention indexer",
    Group.DENSE_FFN: "feed-forward of layers without experts: ffn_gate, ffn_up, ffn_down",
    Group.SHARED_EXPERTS: "experts that every token uses: ffn_*_shexp",
    Group.ROUTED_EXPERTS: "experts that the router chooses: ffn_*_exps (and ffn_*_chexps)",
    Group.ROUTER: "what chooses experts: ffn_gate_inp (the engines keep it unquantized)",
    Group.EMBEDDINGS: "token_embd and per-layer token embeddings",
    Group.OUTPUT: "output (the language-model head)",
    Group.MTP: "every tensor of the multi-token-prediction layers (nextn)",
    Group.OTHER: "everything else: norms, state-space parts, biases ...",
}

MTP_PARTS: Mapping[str, str] = {
    "mtp.attention": "of these layers: attention",
    "mtp.dense_ffn": "of these layers: feed-forward without experts",
    "mtp.shared_experts": "of these layers: experts that every token uses",
    "mtp.routed_experts": "of these layers: experts that the router chooses",
    "mtp.eh_proj": "what joins a token's embedding and the target's hidden state (nextn.eh_proj)",
    "mtp.embed_tokens": "embeddings of a head's own (nextn.embed_tokens)",
    "mtp.shared_head_head": "an output of a head's own (nextn.shared_head_head)",
}
"""Finer names inside of ``mtp``."""
SELECTORS = frozenset((*Group, *MTP_PARTS))
"""What a rule may name in place of a pattern."""

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,6})\.(.+)")
_EMBEDDINGS = {"token_embd", "per_layer_token_embd", "position_embd", "token_types"}
_OUTPUT = {"output", "output_extra", "cls", "cls.output", "dense_2_out", "dense_3_out"}
_MTP_ROOT = ("nextn.", "mtp.", "nextn_", "mtp_")

# First hit wins; matched against the name without `blk.N.` and `.weight`.
_IN_BLOCK: tuple[tuple[re.Pattern[str], Group], ...] = tuple(
    (re.compile(pattern), group)
    for pattern, group in (
        (r"(?:^|_)norm(?:_\d)?$|norm_|_norm", Group.OTHER),
        (r"^ffn_gate_inp|^ffn_gate_tid2eid|^exp_probs_b", Group.ROUTER),
        (r"^ffn_\w+_(?:shexp|shexps)(?:$|\.)", Group.SHARED_EXPERTS),
        (r"^ffn_\w+_(?:exps|chexps|exp)(?:$|\.)|^ffn_(?:gate|up|down)\.\d+$", Group.ROUTED_EXPERTS),
        (r"^ffn_(?:gate|up|down|up_gate|gate_up)(?:$|\.)|^ffn_(?:latent|routed)_", Group.DENSE_FFN),
        (r"^(?:cross_)?attn_(?:rel_b|sinks)", Group.OTHER),
        (r"^(?:cross_)?attn_|^indexer[._]", Group.ATTENTION),
    )
)
# Where state-space parts are the layer's attention (gated delta nets), they are grouped so.
_LINEAR_ATTENTION = {"bailingmoe3", "kimi-linear", "qwen35", "qwen35moe", "qwen3next"}


def group_of(
    tensor_name: str, architecture: str = "", mtp_layers: frozenset[int] = frozenset()
) -> Group:
    """The one group of a tensor; ``mtp_layers`` are the layers used only to predict ahead."""
    stem = re.sub(r"\.(?:weight|bias)$", "", tensor_name)
    if stem in _EMBEDDINGS:
        return Group.EMBEDDINGS
    if stem in _OUTPUT:
        return Group.OUTPUT
    if stem.startswith(_MTP_ROOT):
        return Group.MTP
    if not (match := _BLOCK.fullmatch(stem)):
        return Group.OTHER
    layer, inside = int(match[1]), match[2]
    if layer in mtp_layers or inside.startswith(_MTP_ROOT):
        return Group.MTP
    if inside.startswith("ssm_") and architecture in _LINEAR_ATTENTION:
        return Group.OTHER if "norm" in inside else Group.ATTENTION
    for pattern, group in _IN_BLOCK:
        if pattern.search(inside):
            return group
    return Group.OTHER


def mtp_part_of(tensor_name: str) -> str | None:
    """The one of :data:`MTP_PARTS` that a tensor of a multi-token-prediction layer is in."""
    found = re.search(r"\bnextn\.(\w+)\.weight$", tensor_name)
    part = f"mtp.{found[1] if found else group_of(tensor_name)}"
    return part if part in MTP_PARTS else None


def mtp_layers_of(
    names: Iterable[str], block_count: int | None = None, predict_layers: int | None = None
) -> frozenset[int]:
    """The layers that exist only for multi-token prediction.

    They are the last ``<arch>.nextn_predict_layers`` of ``<arch>.block_count`` where the file
    says so; otherwise those that hold a ``nextn`` tensor.
    """
    found = {
        int(match[1])
        for name in names
        if (match := _BLOCK.fullmatch(name)) and match[2].startswith(_MTP_ROOT)
    }
    if block_count and predict_layers and 0 < predict_layers < block_count:
        found.update(range(block_count - predict_layers, block_count))
    return frozenset(found)
