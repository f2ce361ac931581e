"""Quant types by name and id, and what an engine would really write for a tensor.

Both engines replace a wanted type silently when a row does not divide into its blocks
(mainline ``tensor_type_fallback`` in ``src/llama-quant.cpp``, ik ``change_type_if_necessary``
in ``src/llama-quantize.cpp``); :func:`stored_type` says what comes out, or why nothing does.

Both tables are generated from the engines' sources and tested against them:

- Tensor types, row by row, from ``type_traits`` in ``ggml/src/ggml.c`` and the blocks of
  ``ggml/src/ggml-common.h``: name, id, elements and bytes of a block, and what follows. ``base``
  and ``interleave`` are ``interleaved_properties`` of ik's ``src/llama-quantize.cpp``; ``imatrix``
  is ``tensor_requires_imatrix`` of mainline's ``src/llama-quant.cpp`` and
  ``is_very_low_bpw_quant`` of ik's. A type is quantizable when ``ggml_quantize_chunk`` has a case
  for it; the others are accepted by name on the command line and then abort the tool.
- Base types (``ftype``) that ``llama-quantize`` accepts, from ``QUANT_OPTIONS`` (mainline
  ``tools/quantize/quantize.cpp``, ik ``examples/quantize/quantize.cpp``) and ``llama.h``, each with
  the tensor type that it selects (mainline ``llama_ftype_get_default_type``, ik
  ``llama_model_quantize_internal``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import prod
from types import MappingProxyType

from cook.errors import InputError


class Flavour(StrEnum):
    """The two families of tools; they rename flags, file formats and types."""

    LLAMA_CPP = "llama.cpp"
    IK_LLAMA_CPP = "ik_llama.cpp"


LLAMA_CPP, IK_LLAMA_CPP = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP

_ML = frozenset({LLAMA_CPP})
_IK = frozenset({IK_LLAMA_CPP})
_BOTH = _ML | _IK
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class QuantType:
    """One ggml type: ``block`` elements in ``block_bytes``, after ``row_meta_bytes`` a row.

    ``engines`` know the type; on those in ``imatrix`` a tensor needs importance data (token
    embeddings and output are exempt). ``interleave`` rows are stored together, and where the
    rows do not divide, or for token embeddings, ik silently writes ``base`` instead.
    """

    name: str
    id: int
    block: int
    block_bytes: int
    engines: frozenset[str]
    row_meta_bytes: int = 0
    tensor_meta_bytes: int = 0
    imatrix: frozenset[str] = _NONE
    interleave: int = 1
    base: str | None = None
    quantizable: bool = True

    @property
    def bpw(self) -> float:
        """Bits per weight, without the bytes that come once a row."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, ne0: int) -> int:
        """Bytes of one row of ``ne0`` elements; InputError if blocks do not divide it."""
        if ne0 % self.block:
            raise InputError(
                f"a row of {ne0} elements does not divide into {self.name} blocks of {self.block}"
            )
        return self.row_meta_bytes + ne0 // self.block * self.block_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of ``shape`` (ne0 first), exact, without alignment padding."""
        if not shape:
            return self.tensor_bytes((1,))
        return self.tensor_meta_bytes + self.row_bytes(shape[0]) * prod(shape[1:])


# q8_K has 292 bytes a block in mainline and 296 in ik; it is an activation type, never in files.
# i2_s (BitNet) says block 1 in ik's traits, and ggml_nbytes then gives elements / 4 + 32.
# q4_0_4x4 and its kin abort llama-quantize as soon as a tensor has importance data, and no other
# engine reads them any more; q4_0_r8 is what replaced them.
# q8_k_r16 is absent from interleaved_properties, so nothing replaces it where it does not fit.
# fmt: off
ROWS: tuple[QuantType, ...] = (
    QuantType("f32", 0, 1, 4, _BOTH),
    QuantType("f16", 1, 1, 2, _BOTH),
    QuantType("q4_0", 2, 32, 18, _BOTH),
    QuantType("q4_1", 3, 32, 20, _BOTH),
    QuantType("q5_0", 6, 32, 22, _BOTH),
    QuantType("q5_1", 7, 32, 24, _BOTH),
    QuantType("q8_0", 8, 32, 34, _BOTH),
    QuantType("q8_1", 9, 32, 36, _BOTH, quantizable=False),
    QuantType("q2_K", 10, 256, 84, _BOTH),
    QuantType("q3_K", 11, 256, 110, _BOTH),
    QuantType("q4_K", 12, 256, 144, _BOTH),
    QuantType("q5_K", 13, 256, 176, _BOTH),
    QuantType("q6_K", 14, 256, 210, _BOTH),
    QuantType("q8_K", 15, 256, 292, _BOTH, quantizable=False),
    QuantType("iq2_xxs", 16, 256, 66, _BOTH, imatrix=_BOTH),
    QuantType("iq2_xs", 17, 256, 74, _BOTH, imatrix=_BOTH),
    QuantType("iq3_xxs", 18, 256, 98, _BOTH, imatrix=_ML),
    QuantType("iq1_s", 19, 256, 50, _BOTH, imatrix=_BOTH),
    QuantType("iq4_nl", 20, 32, 18, _BOTH),
    QuantType("iq3_s", 21, 256, 110, _BOTH),
    QuantType("iq2_s", 22, 256, 82, _BOTH, imatrix=_BOTH),
    QuantType("iq4_xs", 23, 256, 136, _BOTH),
    QuantType("i8", 24, 1, 1, _BOTH, quantizable=False),
    QuantType("i16", 25, 1, 2, _BOTH, quantizable=False),
    QuantType("i32", 26, 1, 4, _BOTH, quantizable=False),
    QuantType("i64", 27, 1, 8, _BOTH, quantizable=False),
    QuantType("f64", 28, 1, 8, _BOTH, quantizable=False),
    QuantType("iq1_m", 29, 256, 56, _BOTH, imatrix=_BOTH),
    QuantType("bf16", 30, 1, 2, _BOTH),
    QuantType("q4_0_4x4", 31, 32, 18, _IK, base="q4_0", interleave=4, quantizable=False),
    QuantType("q4_0_4x8", 32, 32, 18, _IK, base="q4_0", interleave=4, quantizable=False),
    QuantType("q4_0_8x8", 33, 32, 18, _IK, base="q4_0", interleave=8, quantizable=False),
    QuantType("tq1_0", 34, 256, 54, _ML),
    QuantType("tq2_0", 35, 256, 66, _ML),
    QuantType("i2_s", 36, 4, 1, _IK, tensor_meta_bytes=32, quantizable=False),
    QuantType("mxfp4", 39, 32, 17, _BOTH),
    QuantType("nvfp4", 40, 64, 36, _ML),
    QuantType("q1_0", 41, 128, 18, _ML),
    QuantType("q1_0_g128", 41, 128, 18, _IK),
    QuantType("q2_0", 42, 64, 18, _ML),
    QuantType("q8_0_x4", 97, 32, 34, _IK, quantizable=False),
    QuantType("q8_1_x4", 98, 32, 36, _IK, quantizable=False),
    QuantType("q8_2_x4", 99, 32, 36, _IK, quantizable=False),
    QuantType("q6_0", 133, 32, 26, _IK),
    QuantType("iq1_bn", 134, 64, 13, _IK, 2),
    QuantType("iq2_bn", 135, 64, 16, _IK, 4),
    QuantType("q8_K64", 136, 64, 68, _IK, quantizable=False),
    QuantType("iq2_k", 137, 256, 76, _IK),
    QuantType("iq3_k", 138, 256, 110, _IK),
    QuantType("iq4_k", 139, 256, 144, _IK),
    QuantType("iq5_k", 140, 256, 176, _IK),
    QuantType("iq6_k", 141, 256, 212, _IK),
    QuantType("iq4_ks", 144, 256, 136, _IK, 4),
    QuantType("iq2_ks", 145, 256, 70, _IK, 2),
    QuantType("iq4_kss", 146, 256, 128, _IK, 4),
    QuantType("q8_K16", 147, 64, 64, _IK, 20, quantizable=False),
    QuantType("q8_K32", 148, 256, 296, _IK, quantizable=False),
    QuantType("q8_KR8", 149, 256, 296, _IK, quantizable=False),
    QuantType("q8_K128", 150, 128, 140, _IK, quantizable=False),
    QuantType("q8_KV", 151, 32, 32, _IK, 8),
    QuantType("iq5_ks", 152, 256, 168, _IK, 4),
    QuantType("iq2_kt", 153, 256, 68, _IK, 4, imatrix=_IK),
    QuantType("iq3_kt", 154, 256, 100, _IK, 4),
    QuantType("iq4_kt", 155, 256, 128, _IK, 4),
    QuantType("iq3_ks", 156, 256, 102, _IK, 2),
    QuantType("iq2_kl", 157, 256, 86, _IK, 2),
    QuantType("iq1_kt", 158, 256, 56, _IK, 4, imatrix=_IK),
    QuantType("q4_0_r8", 202, 32, 18, _IK, base="q4_0", interleave=8),
    QuantType("q5_0_r4", 206, 32, 22, _IK, base="q5_0", interleave=4),
    QuantType("q8_0_r8", 208, 32, 34, _IK, base="q8_0", interleave=8),
    QuantType("q2_k_r4", 210, 256, 84, _IK, base="q2_K", interleave=4),
    QuantType("q3_k_r4", 211, 256, 110, _IK, base="q3_K", interleave=4),
    QuantType("q4_k_r4", 212, 256, 144, _IK, base="q4_K", interleave=4),
    QuantType("q5_k_r4", 213, 256, 176, _IK, base="q5_K", interleave=4),
    QuantType("q6_k_r4", 214, 256, 210, _IK, base="q6_K", interleave=4),
    QuantType("iq2_xxs_r4", 216, 256, 66, _IK, base="iq2_xxs", interleave=4, imatrix=_IK),
    QuantType("iq2_xs_r4", 217, 256, 74, _IK, base="iq2_xs", interleave=4, imatrix=_IK),
    QuantType("iq3_xxs_r4", 218, 256, 98, _IK, base="iq3_xxs", interleave=4),
    QuantType("iq1_s_r4", 219, 32, 6, _IK, 2, base="iq1_s", interleave=4, imatrix=_IK),
    QuantType("iq4_nl_r4", 220, 32, 18, _IK, base="iq4_nl", interleave=4),
    QuantType("iq3_s_r4", 221, 256, 110, _IK, base="iq3_s", interleave=4),
    QuantType("iq2_s_r4", 222, 256, 82, _IK, base="iq2_s", interleave=4, imatrix=_IK),
    QuantType("iq4_xs_r8", 223, 256, 136, _IK, base="iq4_xs", interleave=8),
    QuantType("iq1_m_r4", 229, 32, 7, _IK, 2, base="iq1_m", interleave=4, imatrix=_IK),
    QuantType("bf16_r16", 230, 1, 2, _IK, base="bf16", interleave=16),
    QuantType("q6_0_r4", 233, 32, 26, _IK, base="q6_0", interleave=4),
    QuantType("iq2_bn_r4", 335, 64, 16, _IK, 4, base="iq2_bn", interleave=4),
    QuantType("iq2_k_r4", 337, 256, 76, _IK, base="iq2_k", interleave=4),
    QuantType("iq3_k_r4", 338, 256, 110, _IK, base="iq3_k", interleave=4),
    QuantType("iq4_k_r4", 339, 256, 144, _IK, base="iq4_k", interleave=4),
    QuantType("iq5_k_r4", 340, 256, 176, _IK, base="iq5_k", interleave=4),
    QuantType("iq4_ks_r4", 344, 256, 136, _IK, 4, base="iq4_ks", interleave=4),
    QuantType("iq5_ks_r4", 352, 256, 168, _IK, 4, base="iq5_ks", interleave=4),
    QuantType("mxfp4_r8", 353, 32, 17, _IK, base="mxfp4", interleave=8),
    QuantType("q8_k_r16", 397, 256, 258, _IK, interleave=16),
    QuantType("q8_KV_r8", 398, 32, 32, _IK, 4, base="q8_KV", interleave=8),
    QuantType("q8_k_r8", 399, 256, 258, _IK, base="q8_0", interleave=8),
)
# fmt: on


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

TYPES: Mapping[str, QuantType] = MappingProxyType({t.name: t for t in ROWS})

_BY_LOWER = {t.name.lower(): t for t in ROWS}
_FTYPE_BY_UPPER = {f.name.upper(): f for f in FTYPES.values()}
# Where engines spell an id in two ways, mainline's is the first.
_BY_ID: dict[tuple[str | None, int], QuantType] = {
    **{(None, t.id): t for t in reversed(ROWS)},
    **{(engine, t.id): t for t in ROWS for engine in t.engines},
}

# ggml_quantize_requires_imatrix asserts on these in both engines, whatever the tensor.
_ABORT_WITHOUT_IMATRIX = frozenset({"iq1_s", "iq2_xxs", "iq2_xs"})

_FALLBACK_LLAMA_CPP = {
    **dict.fromkeys(
        ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"
    ),
    **dict.fromkeys(("q2_0", "q2_K", "q3_K", "tq1_0", "tq2_0"), "q4_0"),
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
}

# ik checks rows of 256 for these (with their interleaved forms); everything else is unchecked.
_FALLBACK_IK = {
    **dict.fromkeys(
        (
            *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xxs_r4", "iq2_xs", "iq2_xs_r4", "iq2_s"),
            *("iq2_s_r4", "iq3_xxs", "iq3_xxs_r4", "iq3_s", "iq3_s_r4", "iq4_xs", "iq4_xs_r8"),
            *("q2_K", "q2_k_r4", "q3_K", "q3_k_r4", "iq2_k", "iq2_k_r4", "iq2_ks", "iq2_kl"),
            *("iq3_k", "iq3_k_r4", "iq3_ks", "iq4_ks", "iq4_ks_r4", "iq4_kss"),
            *("iq1_kt", "iq2_kt", "iq3_kt", "iq4_kt"),
        ),
        "iq4_nl",
    ),
    **dict.fromkeys(("q4_K", "q4_k_r4", "iq4_k", "iq4_k_r4", "iq5_ks", "iq5_ks_r4"), "q5_0"),
    **dict.fromkeys(("q5_K", "q5_k_r4", "iq5_k", "iq5_k_r4"), "q6_0"),
    **dict.fromkeys(("q6_K", "q6_k_r4", "iq6_k", "q8_k_r8"), "q8_0"),
}


def by_name(name: str) -> QuantType:
    """The type of this name in any case; InputError with the nearest names otherwise."""
    if found := _BY_LOWER.get(name.lower()):
        return found
    raise InputError(f"unknown quant type {name[:60]!r}", hint=_nearest(name.lower(), _BY_LOWER))


@lru_cache(maxsize=512)
def by_id(id: int, flavour: str | None = None) -> QuantType | None:
    """The type with this ggml id, or None; ``flavour`` chooses the spelling of id 41."""
    return _BY_ID.get((flavour, id)) or _BY_ID.get((None, id))


@lru_cache(maxsize=1 << 12)
def bytes_as(type: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of ``shape`` as the type of this name, without alignment padding."""
    return by_name(type).tensor_bytes(shape)


def ftype_by_name(name: str) -> Ftype:
    """The base type of this name in any case; InputError with the nearest names otherwise."""
    if found := _FTYPE_BY_UPPER.get(name.upper()):
        return found
    raise InputError(
        f"unknown base type {name[:60]!r}", hint=_nearest(name.upper(), _FTYPE_BY_UPPER)
    )


def fallback(type: str | QuantType, ne0: int, flavour: str) -> str | None:
    """What ``flavour`` would silently write for rows of ``ne0``; None if ``type`` itself.

    InputError where the engine has no way out: it throws, asserts, or writes a corrupt file.
    """
    wanted = type if isinstance(type, QuantType) else by_name(type)
    if ne0 % wanted.block == 0:
        return None
    trouble = f"rows of {ne0} do not divide by {wanted.block}, which {wanted.name} requires"
    if flavour == LLAMA_CPP:
        name = _FALLBACK_LLAMA_CPP.get(wanted.name)
        if name is None and wanted.block > 32:
            raise InputError(f"{trouble}; llama.cpp has no fallback for it")
        return name if name and ne0 % TYPES[name].block == 0 else "f16"
    name = _FALLBACK_IK.get(wanted.name)
    if name is None:
        raise InputError(f"{trouble}; ik_llama.cpp would crash on it")
    if ne0 % TYPES[name].block:
        raise InputError(f"{trouble}; nor do they fit {name}, and ik_llama.cpp would crash")
    return name


@lru_cache(maxsize=1 << 14)  # hundreds of candidates ask the same of every tensor
def stored_type(tensor: str, shape: tuple[int, ...], type: str | QuantType, flavour: str) -> str:
    """The type that ``flavour`` writes when ``type`` is asked for this tensor; see fallback."""
    wanted = type if isinstance(type, QuantType) else by_name(type)
    name = fallback(wanted, shape[0], flavour) or wanted.name
    chosen = TYPES[name]
    if chosen.base is None:
        return name
    rows = shape[1] if len(shape) > 1 else 1
    embeddings = tensor in ("token_embd.weight", "per_layer_token_embd.weight")
    if not embeddings and rows % chosen.interleave == 0:
        return name
    if shape[0] % TYPES[chosen.base].block:
        raise InputError(
            f"{tensor}: ik_llama.cpp would replace {name} by {chosen.base}, whose blocks of "
            f"{TYPES[chosen.base].block} do not divide rows of {shape[0]}"
        )
    return chosen.base


@lru_cache(maxsize=1 << 14)
def needs_imatrix(tensor: str, type: str | QuantType, ftype: str, flavour: str) -> bool:
    """Whether quantizing ``tensor`` fails on ``flavour`` without importance data for it."""
    wanted = type if isinstance(type, QuantType) else by_name(type)
    if wanted.name in _ABORT_WITHOUT_IMATRIX:
        return True
    exempt = {"token_embd.weight", "output.weight"}
    if flavour == LLAMA_CPP:
        exempt.add("per_layer_token_embd.weight")
    if tensor in exempt:
        return False
    return flavour in wanted.imatrix or (wanted.name == "q2_K" and ftype.upper() == "Q2_K_S")


def _nearest(name: str, known: Mapping[str, object]) -> str | None:
    near = difflib.get_close_matches(name[:60], list(known), n=3)
    return f"did you mean {', '.join(near)}?" if near else None
