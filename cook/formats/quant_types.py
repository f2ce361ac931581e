"""Quant types by name and id, and what an engine would really write for a tensor.

Both engines replace a wanted type silently when a row does not divide into its blocks
(mainline ``tensor_type_fallback`` in ``src/llama-quant.cpp``, ik ``change_type_if_necessary``
in ``src/llama-quantize.cpp``); :func:`stored_type` says what comes out, or why nothing does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from cook.errors import InputError
from cook.formats.ftypes import FTYPES, Ftype
from cook.formats.type_table import IK_LLAMA_CPP, LLAMA_CPP, ROWS, QuantType

__all__ = [
    "FTYPES",
    "IK_LLAMA_CPP",
    "LLAMA_CPP",
    "TYPES",
    "Ftype",
    "QuantType",
    "by_id",
    "by_name",
    "fallback",
    "ftype_by_name",
    "needs_imatrix",
    "stored_type",
]

TYPES: Mapping[str, QuantType] = MappingProxyType({t.name: t for t in ROWS})

_BY_LOWER = {t.name.lower(): t for t in ROWS}
_FTYPE_BY_UPPER = {f.name.upper(): f for f in FTYPES.values()}

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


def by_id(id: int, flavour: str | None = None) -> QuantType | None:
    """The type with this ggml id, or None; ``flavour`` chooses the spelling of id 41."""
    return _BY_ID.get((flavour, id)) or _BY_ID.get((None, id))


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


def _index() -> Mapping[tuple[str | None, int], QuantType]:
    index: dict[tuple[str | None, int], QuantType] = {}
    for row in ROWS:
        index.setdefault((None, row.id), row)
        for engine in row.engines:
            index[engine, row.id] = row
    return index


def _nearest(name: str, known: Mapping[str, object]) -> str | None:
    near = difflib.get_close_matches(name[:60], list(known), n=3)
    return f"did you mean {', '.join(near)}?" if near else None


_BY_ID = _index()
