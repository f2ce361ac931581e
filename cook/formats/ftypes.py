"""Base types (``ftype``) that ``llama-quantize`` of each engine accepts.

Generated from ``QUANT_OPTIONS`` (mainline ``tools/quantize/quantize.cpp``, ik
``examples/quantize/quantize.cpp``), ``llama.h``, and the default type that each selects
(mainline ``llama_ftype_get_default_type``, ik ``llama_model_quantize_internal``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cook.formats.type_table import _BOTH, _IK, _ML, _NONE


@dataclass(frozen=True)
class Ftype:
    """A base type: ``default`` is the tensor type that no rule and no mixture changes.

    On the engines in ``imatrix`` the base type itself demands importance data: ik refuses before
    reading a tensor, and both refuse any q2_K tensor of a Q2_K_S file. ``file_type`` is what the
    engine stores as ``general.file_type``.
    """

    name: str
    file_type: int
    default: str
    engines: frozenset[str]
    imatrix: frozenset[str] = _NONE


# fmt: off
_FTYPES: tuple[Ftype, ...] = (
    Ftype("Q1_0", 40, "q1_0", _ML),
    Ftype("Q2_0", 41, "q2_0", _ML),
    Ftype("Q4_0", 2, "q4_0", _BOTH),
    Ftype("Q4_1", 3, "q4_1", _BOTH),
    Ftype("MXFP4_MOE", 38, "mxfp4", _ML),
    Ftype("Q5_0", 8, "q5_0", _BOTH),
    Ftype("Q5_1", 9, "q5_1", _BOTH),
    Ftype("IQ2_XXS", 19, "iq2_xxs", _BOTH, _IK),
    Ftype("IQ2_XS", 20, "iq2_xs", _BOTH, _IK),
    Ftype("IQ2_S", 28, "iq2_xs", _BOTH, _IK),
    Ftype("IQ2_M", 29, "iq2_s", _BOTH),
    Ftype("IQ1_S", 24, "iq1_s", _BOTH, _IK),
    Ftype("IQ1_M", 31, "iq1_m", _BOTH, _IK),
    Ftype("TQ1_0", 36, "tq1_0", _ML),
    Ftype("TQ2_0", 37, "tq2_0", _ML),
    Ftype("Q2_K", 10, "q2_K", _BOTH),
    Ftype("Q2_K_S", 21, "q2_K", _BOTH, _BOTH),
    Ftype("IQ3_XXS", 23, "iq3_xxs", _BOTH),
    Ftype("IQ3_S", 26, "iq3_s", _BOTH),
    Ftype("IQ3_M", 27, "iq3_s", _BOTH),
    Ftype("Q3_K", 12, "q3_K", _BOTH),
    Ftype("IQ3_XS", 22, "iq3_s", _BOTH),
    Ftype("Q3_K_S", 11, "q3_K", _BOTH),
    Ftype("Q3_K_M", 12, "q3_K", _BOTH),
    Ftype("Q3_K_L", 13, "q3_K", _BOTH),
    Ftype("IQ4_NL", 25, "iq4_nl", _BOTH),
    Ftype("IQ4_XS", 30, "iq4_xs", _BOTH),
    Ftype("Q4_K", 15, "q4_K", _BOTH),
    Ftype("Q4_K_S", 14, "q4_K", _BOTH),
    Ftype("Q4_K_M", 15, "q4_K", _BOTH),
    Ftype("Q5_K", 17, "q5_K", _BOTH),
    Ftype("Q5_K_S", 16, "q5_K", _BOTH),
    Ftype("Q5_K_M", 17, "q5_K", _BOTH),
    Ftype("Q6_K", 18, "q6_K", _BOTH),
    Ftype("Q8_0", 7, "q8_0", _BOTH),
    Ftype("F16", 1, "f16", _BOTH),
    Ftype("BF16", 32, "bf16", _BOTH),
    Ftype("F32", 0, "f32", _BOTH),
    Ftype("COPY", 0, "f32", _BOTH),
    Ftype("Q6_0", 135, "q6_0", _IK),
    Ftype("MXFP4", 38, "mxfp4", _IK),
    Ftype("MXFP4_R8", 351, "mxfp4_r8", _IK),
    Ftype("IQ2_XXS_R4", 219, "iq2_xxs_r4", _IK, _IK),
    Ftype("IQ2_XS_R4", 220, "iq2_xs_r4", _IK, _IK),
    Ftype("IQ2_M_R4", 229, "iq2_s_r4", _IK),
    Ftype("IQ1_S_R4", 224, "iq1_s_r4", _IK, _IK),
    Ftype("IQ1_M_R4", 231, "iq1_m_r4", _IK, _IK),
    Ftype("IQ1_BN", 136, "iq1_bn", _IK),
    Ftype("IQ2_BN", 137, "iq2_bn", _IK),
    Ftype("IQ2_BN_R4", 337, "iq2_bn_r4", _IK),
    Ftype("Q2_K_R4", 210, "q2_k_r4", _IK),
    Ftype("IQ3_KT", 152, "iq3_kt", _IK),
    Ftype("IQ4_KT", 153, "iq4_kt", _IK),
    Ftype("IQ3_XXS_R4", 223, "iq3_xxs_r4", _IK),
    Ftype("IQ3_S_R4", 226, "iq3_s_r4", _IK),
    Ftype("Q3_K_R4", 211, "q3_k_r4", _IK),
    Ftype("IQ4_NL_R4", 225, "iq4_nl_r4", _IK),
    Ftype("IQ4_XS_R8", 230, "iq4_xs_r8", _IK),
    Ftype("Q4_0_R8", 202, "q4_0_r8", _IK),
    Ftype("Q5_0_R4", 208, "q5_0_r4", _IK),
    Ftype("Q6_0_R4", 335, "q6_0_r4", _IK),
    Ftype("Q8_0_R8", 207, "q8_0_r8", _IK),
    Ftype("Q8_KV", 149, "q8_KV", _IK),
    Ftype("IQ4_KS", 145, "iq4_ks", _IK),
    Ftype("IQ4_KS_R4", 345, "iq4_ks_r4", _IK),
    Ftype("IQ5_KS_R4", 350, "iq5_ks_r4", _IK),
    Ftype("IQ4_KSS", 148, "iq4_kss", _IK),
    Ftype("IQ5_KS", 150, "iq5_ks", _IK),
    Ftype("IQ2_K", 138, "iq2_k", _IK),
    Ftype("IQ2_K_R4", 338, "iq2_k_r4", _IK),
    Ftype("IQ2_KS", 147, "iq2_ks", _IK),
    Ftype("IQ1_KT", 156, "iq1_kt", _IK),
    Ftype("IQ2_KT", 151, "iq2_kt", _IK),
    Ftype("IQ2_KL", 155, "iq2_kl", _IK),
    Ftype("IQ3_KS", 154, "iq3_ks", _IK),
    Ftype("IQ3_K", 139, "iq3_k", _IK),
    Ftype("IQ3_K_R4", 339, "iq3_k_r4", _IK),
    Ftype("IQ3_KL", 146, "iq3_k", _IK),
    Ftype("IQ4_K", 140, "iq4_k", _IK),
    Ftype("IQ4_K_R4", 340, "iq4_k_r4", _IK),
    Ftype("IQ5_K", 141, "iq5_k", _IK),
    Ftype("IQ5_K_R4", 341, "iq5_k_r4", _IK),
    Ftype("IQ6_K", 142, "iq6_k", _IK),
    Ftype("Q4_K_R4", 214, "q4_k_r4", _IK),
    Ftype("Q5_K_R4", 216, "q5_k_r4", _IK),
    Ftype("Q6_K_R4", 218, "q6_k_r4", _IK),
    Ftype("Q8_K_R8", 399, "q8_k_r8", _IK),
    Ftype("Q8_KV_R8", 398, "q8_KV_r8", _IK),
    Ftype("Q4_0_4_4", 33, "q4_0_4x4", _IK),
    Ftype("Q4_0_4_8", 34, "q4_0_4x8", _IK),
    Ftype("Q4_0_8_8", 35, "q4_0_8x8", _IK),
    Ftype("BF16_R16", 232, "bf16_r16", _IK),
)
# fmt: on

FTYPES: Mapping[str, Ftype] = MappingProxyType({f.name: f for f in _FTYPES})
