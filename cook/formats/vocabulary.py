"""Whether a draft and a target speak the same tokens, by the engines' own rule.

``common_speculative_are_compatible`` in ``common/speculative.cpp`` of both engines: same kind of
tokenizer, same begin and end tokens, sizes within 128, equal texts from token 5 on. On a mismatch
mainline serves without speculation and ik translates token by token, slowly: neither fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from cook.errors import InputError
from cook.formats.cursor import shown
from cook.formats.gguf import GgufFile, ValueType
from cook.formats.quant_types import LLAMA_CPP

MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED_TOKEN = 5
TOKENS_SHOWN = 5
LONGEST_TOKEN = 32
"""Characters of a token that are looked for in a text whose tokens are only estimated."""

# llama_vocab::impl::load: tokenizer.ggml.model -> (kind, bos, eos, add_bos, add_eos).
_KINDS: dict[str, tuple[str, int | None, int | None, bool, bool]] = {
    "llama": ("SPM", 1, 2, True, False),
    "bert": ("WPM", 101, None, True, False),
    "gpt2": ("BPE", 11, 11, False, False),
    "hybriddna": ("BPE", 11, 11, False, False),
    "whitespace": ("BPE", 11, 11, False, False),
    "gemma4": ("BPE", None, None, True, False),
    "t5": ("UGM", None, 1, False, True),
    "rwkv": ("RWKV", None, None, False, False),
    "plamo2": ("PLAMO2", 1, 2, False, False),
    "test": ("TEST", None, None, False, False),
}
# Pre-tokenizers that begin with BOS unless the file says otherwise, and those without one.
_PRE_ADD_BOS = frozenset(
    (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano", "tekken", "chameleon"),
    )
)
_PRE_NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})


@dataclass(frozen=True)
class Vocabulary:
    """What decides compatibility; ``tokens`` are the texts as bytes, index = id."""

    kind: str
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    tokens: tuple[bytes, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over kind and token texts in order: equal tokenizers, equal digests."""
        import hashlib

        digest = hashlib.sha256(self.kind.encode())
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    @cached_property
    def texts(self) -> frozenset[str]:
        """The tokens as text; bytes that are no UTF-8 are ``\\ufffd``."""
        return frozenset(token.decode(errors="replace") for token in self.tokens)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


def read_vocabulary(gguf: GgufFile) -> Vocabulary:
    """The vocabulary in a model's metadata, with the engines' defaults; InputError if none."""
    model = gguf.string("tokenizer.ggml.model")
    tokens = gguf.array("tokenizer.ggml.tokens")
    if model is None or tokens is None or not tokens.count:
        raise InputError(f"{gguf.path}: has no vocabulary (tokenizer.ggml.tokens)")
    if tokens.element is not ValueType.STRING:
        raise InputError(f"{gguf.path}: tokenizer.ggml.tokens: is not an array of strings")
    if model not in _KINDS:
        raise InputError(f"{gguf.path}: tokenizer.ggml.model: {shown(model)} is unknown")
    kind, bos, eos, add_bos, add_eos = _KINDS[model]
    if kind == "BPE":
        pre = "gemma4" if model == "gemma4" else gguf.string("tokenizer.ggml.pre") or ""
        add_bos = add_bos or pre in _PRE_ADD_BOS
        bos = None if pre in _PRE_NO_BOS else bos
    stated_bos = gguf.boolean("tokenizer.ggml.add_bos_token")
    stated_eos = gguf.boolean("tokenizer.ggml.add_eos_token")
    add_bos = add_bos if stated_bos is None else stated_bos
    return Vocabulary(
        kind=kind,
        bos=_token(gguf, "tokenizer.ggml.bos_token_id", bos, tokens.count),
        eos=_token(gguf, "tokenizer.ggml.eos_token_id", eos, tokens.count),
        add_bos=add_bos or model == "gemma4",
        add_eos=add_eos if stated_eos is None else stated_eos,
        tokens=tokens.strings(),
    )


def tokens_about(vocabulary: Vocabulary, text: str) -> int | None:
    """About how many tokens ``text`` is, without an engine: the longest token that fits, from left
    to right, and every byte that none covers. None of kinds that write texts in another way.

    Engines merge pairs instead, within words; that is more tokens by a few per cent.
    """
    if vocabulary.kind == "SPM":
        written = text.replace(" ", "\u2581")
    elif vocabulary.kind == "BPE":
        letters = _byte_letters()
        written = "".join(letters[byte] for byte in text.encode())
    else:
        return None
    known = vocabulary.texts
    place = tokens = 0
    while place < len(written):
        for length in range(min(LONGEST_TOKEN, len(written) - place), 0, -1):
            if written[place : place + length] in known:
                tokens += 1
                break
        else:
            length = 1
            tokens += len(written[place].encode()) if vocabulary.kind == "SPM" else 1
        place += length
    return tokens


@cache
def _byte_letters() -> tuple[str, ...]:
    """The letter that stands for each byte in a BPE vocabulary: printable ones for themselves, the
    others from U+0100 on (``bytes_to_unicode`` of GPT-2, ``unicode_byte_to_utf8`` of llama.cpp)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return tuple(
        chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in range(0x100)
    )


def compare(target: Vocabulary, draft: Vocabulary, flavour: str | None = None) -> tuple[str, ...]:
    """Why ``flavour`` (or either engine) would refuse this pair; empty if it would not.

    At most :data:`TOKENS_SHOWN` differing tokens are listed, then how many more there are.
    """
    if target.kind != draft.kind:
        return (_difference("kind", target.kind, draft.kind),)
    found = []
    for field in ("bos", "eos"):
        adds = [bool(getattr(one, f"add_{field}")) for one in (target, draft)]
        ids = [getattr(one, field) for one in (target, draft)]
        if adds[0] != adds[1]:
            found.append(_difference(f"add_{field}", *adds))
        # Mainline compares an id only where it is added; ik always.
        if ids[0] != ids[1] and (all(adds) or flavour != LLAMA_CPP):
            found.append(_difference(field, *ids))
    if abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE:
        found.append(_difference("size", target.size, draft.size))
    if target.tokens == draft.tokens:
        return tuple(found)
    pairs = enumerate(zip(target.tokens, draft.tokens, strict=False))
    differing = [
        _difference(f"token {index}", _shown(one), _shown(other))
        for index, (one, other) in pairs
        if index >= FIRST_COMPARED_TOKEN and one != other and _c_text(one) != _c_text(other)
    ]
    found += differing[:TOKENS_SHOWN]
    if more := len(differing[TOKENS_SHOWN:]):
        compared = min(target.size, draft.size) - FIRST_COMPARED_TOKEN
        found.append(f"tokens: {more} more of {compared} differ")
    return tuple(found)


def _difference(what: str, target: object, draft: object) -> str:
    return f"{what}: target {target}, draft {draft}"


def _c_text(token: bytes) -> bytes:
    """What strcmp sees: the text up to its first NUL."""
    return token.split(b"\0", 1)[0]


def _shown(token: bytes) -> str:
    return shown(token.decode(errors="replace"))


def _token(gguf: GgufFile, key: str, default: int | None, size: int) -> int | None:
    """The id in the file if it is in the vocabulary, else the tokenizer's default, else None."""
    stated = gguf.integer(key)
    if stated is not None and 0 <= stated < size:
        return stated
    return default if default is not None and default < size else None
