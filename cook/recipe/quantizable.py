"""Which tensors an engine quantizes at all; the others keep their source type whatever a rule says.

Sources: mainline ``tensor_allows_quantization`` (``src/llama-quant.cpp``), ik
``llama_model_quantize_internal`` (``src/llama-quantize.cpp``).
"""

from __future__ import annotations

from cook.formats.quant_types import LLAMA_CPP

_INTEGERS = {"i8", "i16", "i32", "i64"}
_BOTH = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "attn_rel_b.weight")
_POSITIONS = {"position_embd.weight", "token_types.weight"}
_IK = ("ssm_x.weight", "ssm_dt.weight")
_LLAMA_CPP = (
    *("ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2")),
    *(f"time_mix_{part}.weight" for part in ("a0", "a1", "a2", "g1", "g2")),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
_GLM5_NEXT = (
    *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
    *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight"),
    *("ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight"),
    "attn_v_b.weight",
)


def quantizable(
    name: str, shape: tuple[int, ...], type_name: str, flavour: str, architecture: str = ""
) -> bool:
    """Whether ``flavour`` quantizes this tensor; ``shape`` has ne0 first, trailing ones ignored."""
    if len(_trimmed(shape)) < 2 or not name.endswith("weight"):
        return False
    if type_name.lower() in _INTEGERS or name in _POSITIONS:
        return False
    kept: tuple[str, ...] = _BOTH
    if flavour == LLAMA_CPP:
        kept += _LLAMA_CPP
        if architecture in ("glm5-next", "glm5_next"):
            kept += _GLM5_NEXT
    else:
        kept += _IK
    return not any(part in name for part in kept)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return shape[:end]
