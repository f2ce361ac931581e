"""The tensor types of both engines, row by row.

Generated from, and tested against, ``type_traits`` in each engine's ``ggml/src/ggml.c`` and the
blocks of ``ggml/src/ggml-common.h``: name, id, elements and bytes of a block, and what follows.
``base`` and ``interleave`` are ``interleaved_properties`` of ik's ``src/llama-quantize.cpp``;
``imatrix`` is ``tensor_requires_imatrix`` of mainline's ``src/llama-quant.cpp`` and
``is_very_low_bpw_quant`` of ik's. A type is quantizable when ``ggml_quantize_chunk`` has a case
for it; the others are accepted by name on the command line and then abort the tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cook.errors import InputError

LLAMA_CPP = "llama.cpp"
IK_LLAMA_CPP = "ik_llama.cpp"

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


def _type(
    name: str,
    id: int,
    block: int,
    block_bytes: int,
    engines: frozenset[str],
    *,
    meta: int = 0,
    tensor_meta: int = 0,
    imatrix: frozenset[str] = _NONE,
    interleave: int = 1,
    base: str | None = None,
    quantizable: bool = True,
) -> QuantType:
    return QuantType(
        name,
        id,
        block,
        block_bytes,
        engines,
        meta,
        tensor_meta,
        imatrix,
        interleave,
        base,
        quantizable,
    )


# q8_K has 292 bytes a block in mainline and 296 in ik; it is an activation type, never in files.
# i2_s (BitNet) says block 1 in ik's traits, and ggml_nbytes then gives elements / 4 + 32.
# q4_0_4x4 and its kin abort llama-quantize as soon as a tensor has importance data, and no other
# engine reads them any more; q4_0_r8 is what replaced them.
# q8_k_r16 is absent from interleaved_properties, so nothing replaces it where it does not fit.
# fmt: off
ROWS: tuple[QuantType, ...] = (
    _type("f32", 0, 1, 4, _BOTH),
    _type("f16", 1, 1, 2, _BOTH),
    _type("q4_0", 2, 32, 18, _BOTH),
    _type("q4_1", 3, 32, 20, _BOTH),
    _type("q5_0", 6, 32, 22, _BOTH),
    _type("q5_1", 7, 32, 24, _BOTH),
    _type("q8_0", 8, 32, 34, _BOTH),
    _type("q8_1", 9, 32, 36, _BOTH, quantizable=False),
    _type("q2_K", 10, 256, 84, _BOTH),
    _type("q3_K", 11, 256, 110, _BOTH),
    _type("q4_K", 12, 256, 144, _BOTH),
    _type("q5_K", 13, 256, 176, _BOTH),
    _type("q6_K", 14, 256, 210, _BOTH),
    _type("q8_K", 15, 256, 292, _BOTH, quantizable=False),
    _type("iq2_xxs", 16, 256, 66, _BOTH, imatrix=_BOTH),
    _type("iq2_xs", 17, 256, 74, _BOTH, imatrix=_BOTH),
    _type("iq3_xxs", 18, 256, 98, _BOTH, imatrix=_ML),
    _type("iq1_s", 19, 256, 50, _BOTH, imatrix=_BOTH),
    _type("iq4_nl", 20, 32, 18, _BOTH),
    _type("iq3_s", 21, 256, 110, _BOTH),
    _type("iq2_s", 22, 256, 82, _BOTH, imatrix=_BOTH),
    _type("iq4_xs", 23, 256, 136, _BOTH),
    _type("i8", 24, 1, 1, _BOTH, quantizable=False),
    _type("i16", 25, 1, 2, _BOTH, quantizable=False),
    _type("i32", 26, 1, 4, _BOTH, quantizable=False),
    _type("i64", 27, 1, 8, _BOTH, quantizable=False),
    _type("f64", 28, 1, 8, _BOTH, quantizable=False),
    _type("iq1_m", 29, 256, 56, _BOTH, imatrix=_BOTH),
    _type("bf16", 30, 1, 2, _BOTH),
    _type("q4_0_4x4", 31, 32, 18, _IK, base="q4_0", interleave=4, quantizable=False),
    _type("q4_0_4x8", 32, 32, 18, _IK, base="q4_0", interleave=4, quantizable=False),
    _type("q4_0_8x8", 33, 32, 18, _IK, base="q4_0", interleave=8, quantizable=False),
    _type("tq1_0", 34, 256, 54, _ML),
    _type("tq2_0", 35, 256, 66, _ML),
    _type("i2_s", 36, 4, 1, _IK, tensor_meta=32, quantizable=False),
    _type("mxfp4", 39, 32, 17, _BOTH),
    _type("nvfp4", 40, 64, 36, _ML),
    _type("q1_0", 41, 128, 18, _ML),
    _type("q1_0_g128", 41, 128, 18, _IK),
    _type("q2_0", 42, 64, 18, _ML),
    _type("q8_0_x4", 97, 32, 34, _IK, quantizable=False),
    _type("q8_1_x4", 98, 32, 36, _IK, quantizable=False),
    _type("q8_2_x4", 99, 32, 36, _IK, quantizable=False),
    _type("q6_0", 133, 32, 26, _IK),
    _type("iq1_bn", 134, 64, 13, _IK, meta=2),
    _type("iq2_bn", 135, 64, 16, _IK, meta=4),
    _type("q8_K64", 136, 64, 68, _IK, quantizable=False),
    _type("iq2_k", 137, 256, 76, _IK),
    _type("iq3_k", 138, 256, 110, _IK),
    _type("iq4_k", 139, 256, 144, _IK),
    _type("iq5_k", 140, 256, 176, _IK),
    _type("iq6_k", 141, 256, 212, _IK),
    _type("iq4_ks", 144, 256, 136, _IK, meta=4),
    _type("iq2_ks", 145, 256, 70, _IK, meta=2),
    _type("iq4_kss", 146, 256, 128, _IK, meta=4),
    _type("q8_K16", 147, 64, 64, _IK, meta=20, quantizable=False),
    _type("q8_K32", 148, 256, 296, _IK, quantizable=False),
    _type("q8_KR8", 149, 256, 296, _IK, quantizable=False),
    _type("q8_K128", 150, 128, 140, _IK, quantizable=False),
    _type("q8_KV", 151, 32, 32, _IK, meta=8),
    _type("iq5_ks", 152, 256, 168, _IK, meta=4),
    _type("iq2_kt", 153, 256, 68, _IK, meta=4, imatrix=_IK),
    _type("iq3_kt", 154, 256, 100, _IK, meta=4),
    _type("iq4_kt", 155, 256, 128, _IK, meta=4),
    _type("iq3_ks", 156, 256, 102, _IK, meta=2),
    _type("iq2_kl", 157, 256, 86, _IK, meta=2),
    _type("iq1_kt", 158, 256, 56, _IK, meta=4, imatrix=_IK),
    _type("q4_0_r8", 202, 32, 18, _IK, base="q4_0", interleave=8),
    _type("q5_0_r4", 206, 32, 22, _IK, base="q5_0", interleave=4),
    _type("q8_0_r8", 208, 32, 34, _IK, base="q8_0", interleave=8),
    _type("q2_k_r4", 210, 256, 84, _IK, base="q2_K", interleave=4),
    _type("q3_k_r4", 211, 256, 110, _IK, base="q3_K", interleave=4),
    _type("q4_k_r4", 212, 256, 144, _IK, base="q4_K", interleave=4),
    _type("q5_k_r4", 213, 256, 176, _IK, base="q5_K", interleave=4),
    _type("q6_k_r4", 214, 256, 210, _IK, base="q6_K", interleave=4),
    _type("iq2_xxs_r4", 216, 256, 66, _IK, base="iq2_xxs", interleave=4, imatrix=_IK),
    _type("iq2_xs_r4", 217, 256, 74, _IK, base="iq2_xs", interleave=4, imatrix=_IK),
    _type("iq3_xxs_r4", 218, 256, 98, _IK, base="iq3_xxs", interleave=4),
    _type("iq1_s_r4", 219, 32, 6, _IK, meta=2, base="iq1_s", interleave=4, imatrix=_IK),
    _type("iq4_nl_r4", 220, 32, 18, _IK, base="iq4_nl", interleave=4),
    _type("iq3_s_r4", 221, 256, 110, _IK, base="iq3_s", interleave=4),
    _type("iq2_s_r4", 222, 256, 82, _IK, base="iq2_s", interleave=4, imatrix=_IK),
    _type("iq4_xs_r8", 223, 256, 136, _IK, base="iq4_xs", interleave=8),
    _type("iq1_m_r4", 229, 32, 7, _IK, meta=2, base="iq1_m", interleave=4, imatrix=_IK),
    _type("bf16_r16", 230, 1, 2, _IK, base="bf16", interleave=16),
    _type("q6_0_r4", 233, 32, 26, _IK, base="q6_0", interleave=4),
    _type("iq2_bn_r4", 335, 64, 16, _IK, meta=4, base="iq2_bn", interleave=4),
    _type("iq2_k_r4", 337, 256, 76, _IK, base="iq2_k", interleave=4),
    _type("iq3_k_r4", 338, 256, 110, _IK, base="iq3_k", interleave=4),
    _type("iq4_k_r4", 339, 256, 144, _IK, base="iq4_k", interleave=4),
    _type("iq5_k_r4", 340, 256, 176, _IK, base="iq5_k", interleave=4),
    _type("iq4_ks_r4", 344, 256, 136, _IK, meta=4, base="iq4_ks", interleave=4),
    _type("iq5_ks_r4", 352, 256, 168, _IK, meta=4, base="iq5_ks", interleave=4),
    _type("mxfp4_r8", 353, 32, 17, _IK, base="mxfp4", interleave=8),
    _type("q8_k_r16", 397, 256, 258, _IK, interleave=16),
    _type("q8_KV_r8", 398, 32, 32, _IK, meta=4, base="q8_KV", interleave=8),
    _type("q8_k_r8", 399, 256, 258, _IK, base="q8_0", interleave=8),
)
# fmt: on
