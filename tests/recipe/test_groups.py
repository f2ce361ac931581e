"""Groups on the real tensor names of each architecture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from cook.formats.gguf import read_tensor_list
from cook.recipe.groups import MEANING, MTP_PARTS, Group, group_of, mtp_layers_of, mtp_part_of

DATA = Path(__file__).parents[1] / "data"

ROOT = {"token_embd": "embeddings", "output": "output", "output_norm": "other"}
QKV = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), "attention")
FUSED = dict.fromkeys(("attn_qkv", "attn_output"), "attention")
MLA = dict.fromkeys(
    ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b", "attn_output"),
    "attention",
)
DENSE = dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), "dense_ffn")
SHARED = dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"), "shared_experts")
ROUTED = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), "routed_experts")
ROUTER = {"ffn_gate_inp": "router"}
NORMS = dict.fromkeys(("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"), "other")
INDEXER = dict.fromkeys(("indexer.attn_q_b", "indexer.attn_k", "indexer.proj"), "attention")
LINEAR = dict.fromkeys(("ssm_in", "ssm_ba", "ssm_out"), "attention")

ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "llama": {**QKV, **DENSE, **NORMS},
    "qwen2moe": {**QKV, **ROUTED, **SHARED, **ROUTER, "ffn_gate_inp_shexp": "router"},
    "qwen3moe": {**QKV, **ROUTED, **ROUTER, **NORMS},
    "deepseek2": {**MLA, **DENSE, **ROUTED, **SHARED, **ROUTER, "attn_kv_a_norm": "other"},
    "deepseek32": {**MLA, **ROUTED, **SHARED, **INDEXER, "indexer.k_norm": "other"},
    "bailingmoe2": {**FUSED, **DENSE, **ROUTED, **SHARED, **ROUTER, "layer_output_norm": "other"},
    "glm4moe": {**QKV, **DENSE, **ROUTED, **SHARED, **ROUTER, "post_attention_norm": "other"},
    "qwen3next": {**FUSED, **LINEAR, **ROUTED, **SHARED, "attn_gate": "attention"},
    "mamba": {"ssm_in": "other", "ssm_out": "other", "ssm_x": "other"},
    "gpt-oss": {**QKV, **ROUTED, "attn_sinks": "other"},
    "llama4": {**QKV, **ROUTED, **SHARED, "ffn_gate_up_exps": "routed_experts"},
    "mixtral-old": {"ffn_gate.0": "routed_experts", "ffn_down.7": "routed_experts"},
    "smallthinker": {"ffn_gate_chexps": "routed_experts", "ffn_up_gate": "dense_ffn"},
    "grok": {"attn_output_norm": "other", "ffn_post_norm": "other", "ffn_norm_exps": "other"},
}


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_names_of(architecture: str) -> None:
    for stem, group in {**ROOT, **ARCHITECTURES[architecture]}.items():
        prefix = "" if stem in ROOT else "blk.17."
        assert group_of(f"{prefix}{stem}.weight", architecture) == group, stem


def test_biases_and_other_tensors() -> None:
    for part in ("bias", "scale"):
        assert group_of(f"blk.0.attn_q.{part}", "qwen2") == Group.ATTENTION
    assert group_of("blk.3.exp_probs_b.bias", "bailingmoe2") == Group.ROUTER
    assert group_of("per_layer_token_embd.weight", "gemma3n") == Group.EMBEDDINGS


def test_prediction_layers_are_one_group_and_its_parts() -> None:
    found = {
        "blk.45.attn_q.weight": "mtp.attention",
        "blk.46.attn_q.weight": "mtp.attention",
        "blk.46.ffn_down.weight": "mtp.dense_ffn",
        "blk.46.ffn_up_shexp.weight": "mtp.shared_experts",
        "blk.46.ffn_down_exps.weight": "mtp.routed_experts",
        "blk.46.nextn.eh_proj.weight": "mtp.eh_proj",
        "blk.46.nextn.embed_tokens.weight": "mtp.embed_tokens",
        "blk.46.nextn.shared_head_head.weight": "mtp.shared_head_head",
        "blk.46.nextn.enorm.weight": None,
        "blk.46.ffn_gate_inp.weight": None,
    }
    layers = mtp_layers_of(found)
    assert layers == {46}
    assert [group_of(n, "glm4moe", layers) for n in found] == [Group.ATTENTION, *[Group.MTP] * 9]
    assert {name: mtp_part_of(name) for name in found} == found
    assert set(found.values()) - {None} == set(MTP_PARTS)


def test_prediction_layers_by_metadata() -> None:
    assert mtp_layers_of([], block_count=47, predict_layers=1) == {46}
    assert mtp_layers_of([], block_count=47, predict_layers=0) == frozenset()
    assert mtp_layers_of([], block_count=1, predict_layers=1) == frozenset()


def test_ling_flash_and_thireus_names_are_all_grouped() -> None:
    """Real lists: nothing quantizable of them may fall into `other`."""
    listed = read_tensor_list(DATA / "ling-flash-2.0.tensors.tsv")
    assert Counter(group_of(t.name, "bailingmoe2") for t in listed if len(t.shape) > 1) == {
        Group.EMBEDDINGS: 1,
        Group.OUTPUT: 1,
        Group.ATTENTION: 64,
        Group.DENSE_FFN: 3,
        Group.ROUTED_EXPERTS: 93,
        Group.SHARED_EXPERTS: 93,
        Group.ROUTER: 31,
    }


def test_every_group_is_explained() -> None:
    assert set(MEANING) == set(Group)
    assert all(re.fullmatch(r"[a-z_]+", group) for group in Group)
