"""Memory that a server's context takes for a model, by its header: keys, values, recurrent state.

As mainline lays it out (src/llama-hparams.cpp, create_memory of src/llama-model.cpp,
src/llama-kv-cache*.cpp and src/models/*.cpp at 0c1e570). An architecture or a shape that is not
known here has no size, and whoever prints one says so: a number from half a header is wrong by a
factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cook.errors import InputError
from cook.formats.gguf import GgufFile
from cook.formats.quant_types import by_name

PAD = 256
"""Cells of a cache are a multiple of this."""
MOST_LAYERS = 1024
STATE_BYTES = 4
"""Recurrent state is always in F32."""
_PLAIN = frozenset(
    (
        *("llama", "deci", "baichuan", "falcon", "grok", "gpt2", "gptneox", "mpt", "starcoder"),
        *("refact", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3"),
        *("qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2", "phi3", "phimoe", "plamo", "codeshell"),
        *("orion", "internlm2", "minicpm", "gemma", "starcoder2", "xverse", "command-r", "dbrx"),
        *("olmo", "olmoe", "openelm", "arctic", "deepseek", "deepseek2", "chatglm", "glm4"),
        *("glm4moe", "bitnet", "jais", "nemotron", "exaone", "granite", "granitemoe", "arcee"),
        *("ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "smollm3", "bailingmoe"),
        *("bailingmoe2", "dots1", "minimax-m2", "seed_oss", "grovemoe", "apertus", "mistral3"),
    )
)
"""Every layer of the trunk attends to the whole context."""


class _Windows(NamedTuple):
    """Layers with a sliding window, where the header lists none: all but every ``period``-th, or
    with ``first`` those but the first of each. ``tokens``: the window that the engine takes where
    the header names none (with ``fixed`` whatever it names); None: no layer has one then."""

    period: int | None
    tokens: int | None = None
    first: bool = False
    fixed: bool = False


_WINDOWS = {
    "afmoe": _Windows(4),
    "cohere2": _Windows(4),
    "cohere2moe": _Windows(4, first=True),
    "exaone-moe": _Windows(4, 128),
    "exaone4": _Windows(4, 4096),
    "gemma2": _Windows(2, 4096),
    "gemma3": _Windows(6),
    "gemma3n": _Windows(5),
    "gemma4": _Windows(None),
    "gpt-oss": _Windows(2),
    "granite_swa": _Windows(None),
    "llama4": _Windows(4, 8192, fixed=True),
    "maple": _Windows(None),
    "mellum": _Windows(4),
    "mimo2": _Windows(None),
    "muse-glimmer": _Windows(4),
    "olmo2": _Windows(4),
    "plamo3": _Windows(8),
    "smallthinker": _Windows(4, first=True),
    "step35": _Windows(None),
}
_RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
_WITHOUT_HEADS = frozenset(("jamba", "granitehybrid", "plamo2", "lfm2", "lfm2moe"))
"""Layers without key-value heads are recurrent."""
_INTERVALS = frozenset(("qwen3next", "qwen35", "qwen35moe"))
"""Every fourth layer attends, or as the header says."""
_NEMOTRON = frozenset(("nemotron_h", "nemotron_h_moe"))
_KEPT_LAYERS = {"gemma3n": 20}
"""Layers that have a cache of their own; those after them read it."""


@dataclass(frozen=True)
class CacheSize:
    """Bytes of a context: ``attention`` for keys and values, ``state`` of recurrent layers, None
    where the header does not say."""

    attention: int
    state: int | None

    @property
    def total(self) -> int:
        """The sum of the known parts."""
        return self.attention + (self.state or 0)


def cache_size(
    file: GgufFile,
    context: int,
    cache_type: tuple[str, str] = ("f16", "f16"),
    *,
    slots: int = 1,
    ubatch: int = 512,
    flash_attention: bool = True,
) -> CacheSize | None:
    """The cache of a server with ``slots`` slots of ``context`` tokens each; ``cache_type`` of
    keys and of values. None where the header does not say.

    Layers of a multi-token-prediction head are left out: a context of the trunk has none.
    """
    keys, values = (by_name(half) for half in cache_type)
    try:
        header = _Header(file)
        attending, recurrent = header.layers_by_kind()
        window, windowed = header.windows(attending)
        widths = [header.widths(layer, layer in windowed) for layer in range(header.every)]
        kept, each_state = header.kept(), header.state() if recurrent else 0
    except (InputError, _UnknownShape):
        return None
    if each_state is None and not attending:
        return None
    cells = _padded(context)
    cells_in_window = _padded(min(cells, window + ubatch))
    attention = 0.0
    for layer in (n for n in attending if n < kept):
        key, value = widths[layer]
        if not flash_attention:  # values lie transposed, all layers as wide
            value = max(value for _, value in widths)
        each = key * keys.bpw + (0 if header.compressed else value * values.bpw)
        attention += each / 8 * (cells_in_window if layer in windowed else cells) * slots
    state = None if each_state is None else len(recurrent) * each_state * STATE_BYTES * slots
    return CacheSize(round(attention), state)


class _UnknownShape(Exception):
    """The header does not say."""


class _Header:
    """The figures of a model's header that decide on its cache."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.name = file, file.architecture
        self.every = self._one("block_count", 0)
        self.layers = self.every - self._one("nextn_predict_layers", 0)
        if not 1 <= self.layers <= self.every <= MOST_LAYERS:
            raise _UnknownShape
        width = self._one("embedding_length", 0)
        heads = self._each("attention.head_count")
        self.heads = self._each("attention.head_count_kv", heads)
        usual = width // heads[0] if heads[0] else 0
        self.key = self._one("attention.key_length", usual)
        self.value = self._one("attention.value_length", usual)
        self.compressed = bool(
            self._one("attention.key_length_mla", 0) and self._one("attention.value_length_mla", 0)
        )
        if self._one("attention.indexer.head_count", 0):
            raise _UnknownShape

    def layers_by_kind(self) -> tuple[Sequence[int], Sequence[int]]:
        """Layers that attend, and layers with recurrent state."""
        every = range(self.layers)
        if self.name in _PLAIN or self.name in _WINDOWS:
            return every, ()
        if self.name in _RECURRENT:
            return (), every
        if self.name == "falcon-h1":
            return every, every
        if self.name in _WITHOUT_HEADS:
            apart = [not self.heads[n] for n in every]
        elif self.name in _INTERVALS:
            listed = self._list("attention.recurrent_layers")
            period = self._one("full_attention_interval", 4)
            apart = [bool(listed[n]) if listed else (n + 1) % period != 0 for n in every]
        elif self.name in _NEMOTRON:
            wide = self._each("feed_forward_length")
            attending = [n for n in every if self.heads[n] and not wide[n]]
            return attending, [n for n in every if not self.heads[n] and not wide[n]]
        else:
            raise _UnknownShape
        return [n for n in every if not apart[n]], [n for n in every if apart[n]]

    def windows(self, attending: Sequence[int]) -> tuple[int, frozenset[int]]:
        """Tokens of the sliding window, and the layers that have it."""
        tokens = self._one("attention.sliding_window", 0)
        if self.name == "lfm2" and tokens:
            return tokens, frozenset(attending)
        rule = _WINDOWS.get(self.name)
        if rule is None or (self.name == "exaone4" and self.layers != 64):
            return 0, frozenset()
        if self.name == "llama4" and self._has("attention.sliding_window") and not tokens:
            return 0, frozenset()
        if self.name == "smallthinker" and tokens:
            tokens = 4096
        if rule.tokens is not None and (rule.fixed or not tokens):
            tokens = rule.tokens
        if not tokens:
            return 0, frozenset()
        listed = self._list("attention.sliding_window_pattern")
        if listed:
            return tokens, frozenset(n for n in range(self.layers) if listed[n])
        if rule.period is None:
            raise _UnknownShape
        period = self._one("attention.sliding_window_pattern", rule.period)
        return tokens, frozenset(
            n
            for n in range(self.layers)
            if not period or (n % period != 0 if rule.first else n % period < period - 1)
        )

    def kept(self) -> int:
        """Layers with a cache of their own, from the first on."""
        shared = self._one("attention.shared_kv_layers", 0)
        return min(_KEPT_LAYERS.get(self.name, self.layers), self.every - shared)

    def widths(self, layer: int, windowed: bool) -> tuple[int, int]:
        """Numbers in a token's keys and values in ``layer``."""
        key, value = self.key, self.value
        if windowed:
            key = self._one("attention.key_length_swa", key)
            value = self._one("attention.value_length_swa", value)
        return self.heads[layer] * key, self.heads[layer] * value

    def state(self) -> int | None:
        """Numbers of one recurrent layer's state, that of its convolution included."""
        width = self._one("embedding_length", 0)
        if head := self._one("wkv.head_size", 0):
            return (self._one("token_shift_count", 2) + head) * width
        if taps := self._one("shortconv.l_cache", 0):
            return width * (taps - 1)
        inner, kept = self._one("ssm.inner_size", 0), self._one("ssm.state_size", 0)
        if not inner:
            return None
        taps = self._one("ssm.conv_kernel", 0)
        groups = 0 if self.name in ("mamba", "jamba") else self._one("ssm.group_count", 0)
        return max(taps - 1, 0) * (inner + 2 * groups * kept) + kept * inner

    def _has(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.file.metadata

    def _one(self, key: str, default: int) -> int:
        """A number; ``default`` where the header has none, or a list, one a layer."""
        if self._list(key):
            return default
        found = self.file.integer(f"{self.name}.{key}")
        return default if found is None else found

    def _each(self, key: str, default: Sequence[int] | None = None) -> Sequence[int]:
        """A number for each layer, written once or as a list."""
        found = self._list(key)
        if not found and not self._has(key):
            return default if default is not None else [0] * self.every
        found = found or [self._one(key, 0)] * self.every
        if len(found) < self.every:
            raise _UnknownShape
        return found

    def _list(self, key: str) -> Sequence[int]:
        name = f"{self.name}.{key}"
        try:
            found = self.file.array(name)
        except InputError:  # one number for all
            return ()
        values = () if found is None else found.values()
        if any(not isinstance(one, int) for one in values):
            raise _UnknownShape
        return [int(one) for one in values]


def _padded(cells: int) -> int:
    return -(-cells // PAD) * PAD
