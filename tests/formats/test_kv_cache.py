"""The size of a cache from a header, next to what the engine itself lays out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, encode_header
from cook.formats.kv_cache import CacheSize, cache_size

ENGINE = Path(__file__).with_name("engine_cache.py")
GIB = 1 << 30

BASE: dict[str, Any] = {
    "vocab_size": 256,
    "context_length": 8192,
    "embedding_length": 256,
    "block_count": 8,
    "feed_forward_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 64,
}
MOE = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
WINDOW = {"attention.sliding_window": 3584}
SSM = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 512,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
}
LEADING = {"expert_shared_count": 1, "leading_dense_block_count": 1}
COMPRESSED = {"attention.q_lora_rank": 128, "attention.kv_lora_rank": 128, **MOE, **LEADING}
NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0}
SOME_HEADS = {"attention.head_count_kv": [0, 2, 0, 0, 1, 0, 0, 2]}
PATTERN = {**WINDOW, "attention.sliding_window_pattern": [True, False, True, True] * 2}


def widths(numbers: int, suffix: str = "") -> dict[str, int]:
    """Of a head's keys and values."""
    return {f"attention.{half}_length{suffix}": numbers for half in ("key", "value")}


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama/without heads of its own for keys": {"attention.head_count_kv": 4},
    "qwen2": {},
    "qwen3": {**widths(128), "rope.dimension_count": 128},
    "qwen3moe": MOE,
    "deci": {"attention.head_count_kv": [2, 0, 1, 4, 2, 2, 0, 2]},
    "openelm": {
        "attention.head_count": [4, 4, 6, 6, 8, 8, 8, 8],
        "attention.head_count_kv": [1, 1, 2, 2, 2, 2, 4, 4],
        **widths(64),
        "feed_forward_length": [256] * 8,
    },
    "phi3": WINDOW,
    "gemma2": {**WINDOW, **widths(64)},
    "gemma3": WINDOW,
    "gemma3/one number for the pattern": {**WINDOW, "attention.sliding_window_pattern": 2},
    "gemma3n": {**WINDOW, "block_count": 30, "embedding_length_per_layer_input": 64},
    "gemma4": {
        **WINDOW,
        "attention.sliding_window_pattern": [True, True, True, True, False, True, True, False],
        **widths(64),
        **widths(32, "_swa"),
        "attention.shared_kv_layers": 3,
        "embedding_length_per_layer_input": 64,
    },
    "gpt-oss": {**MOE, **WINDOW},
    "cohere2": {**WINDOW, "logit_scale": 1.0},
    "olmo2": WINDOW,
    "olmo2/without windows": {},
    "exaone4": {**WINDOW, "block_count": 64},
    "exaone4/small": WINDOW,
    "smallthinker": {**MOE, **WINDOW, "expert_gating_func": 2},
    "plamo3": {**WINDOW, **widths(64)},
    "mimo2": {**MOE, **PATTERN},
    "step35": {**MOE, **PATTERN},
    "llama4": {**MOE, "interleave_moe_layer_step": 1},
    "llama4/without windows": {
        **MOE,
        "interleave_moe_layer_step": 1,
        "attention.sliding_window": 0,
    },
    "deepseek2": {
        **COMPRESSED,
        "attention.head_count_kv": 1,
        "attention.key_length": 192,
        "attention.value_length": 128,
        "attention.key_length_mla": 96,
        "attention.value_length_mla": 64,
    },
    "deepseek2/decompressed": {
        **COMPRESSED,
        "attention.head_count_kv": 4,
        "attention.key_length": 96,
        "attention.value_length": 64,
    },
    "glm4moe": {**MOE, **LEADING},
    "mamba": {**SSM, **NO_HEADS},
    "mamba2": {**SSM, **NO_HEADS},
    "rwkv6": {
        **NO_HEADS,
        "wkv.head_size": 64,
        "time_mix_extra_dim": 32,
        "time_decay_extra_dim": 64,
        "token_shift_count": 2,
    },
    "jamba": {**SSM, **MOE, **SOME_HEADS},
    "granitehybrid": {**SSM, **SOME_HEADS},
    "lfm2": {**SOME_HEADS, "shortconv.l_cache": 3},
    "lfm2/windows": {**SOME_HEADS, **WINDOW, "shortconv.l_cache": 3},
    "nemotron_h": {
        **SSM,
        "attention.head_count_kv": [0, 0, 2, 0, 0, 2, 0, 0],
        "feed_forward_length": [0, 256, 0, 0, 256, 0, 0, 256],
    },
    "falcon-h1": SSM,
    "qwen3next": {**SSM, **MOE, "full_attention_interval": 4},
    "qwen35": {
        **SSM,
        "full_attention_interval": 3,
        "rope.dimension_sections": [16, 24, 24, 0],
    },
}


def metadata(name: str) -> dict[str, Any]:
    architecture = name.partition("/")[0]
    keys = {**BASE, **MODELS[name]}
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "no_vocab",
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(encode_header({key: encode(value) for key, value in values.items()}, []))
    return path


def size(
    folder: Path, architecture: str, context: int, keys: dict[str, Any], **attention: Any
) -> CacheSize | None:
    """Of a header of ``architecture`` with ``keys``, and those of ``attention``."""
    keys = keys | {f"attention.{key}": value for key, value in attention.items()}
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    path = written(folder, {"general.architecture": architecture, **named})
    return cache_size(read_gguf(path), context)


@pytest.mark.engine
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_engine_s_own_figure(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, metadata(name))
    asked = ((8192, "f16", True), (8192, "q8_0", True), (4096, "f16", False))
    words = [str(int(w)) if isinstance(w, bool) else str(w) for one in asked for w in one]
    done = subprocess.run(
        [sys.executable, str(ENGINE), str(path), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    for (context, kind, flash), found in zip(asked, printed, strict=True):
        ours = cache_size(read_gguf(path), context, (kind, kind), flash_attention=flash)
        for buffers, ours_bytes in ((found["KV"], ours.attention), (found["RS"], ours.state)):
            # Each buffer is printed to two decimals.
            rounding = 0.005 * len(buffers)
            assert ours_bytes is not None
            assert ours_bytes / (1 << 20) == pytest.approx(sum(buffers), rel=0, abs=rounding)


def test_a_context_is_whole_blocks_of_cells(tmp_path: Path) -> None:
    found = cache_size(read_gguf(written(tmp_path, metadata("llama"))), 3000, slots=3)
    assert found == CacheSize(3 * 3072 * 8 * 2 * 64 * 2 * 2, 0)


def test_layers_of_a_head_have_no_cache_in_the_trunk_s_context(tmp_path: Path) -> None:
    whole = metadata("glm4moe")
    trunk = cache_size(read_gguf(written(tmp_path, whole)), 4096)
    whole |= {"glm4moe.block_count": 9, "glm4moe.nextn_predict_layers": 1}
    assert cache_size(read_gguf(written(tmp_path, whole)), 4096) == trunk


# llama.cpp issues 27718 and 20570, ollama issue 11471: memory by a multiple of what is taken.
def test_six_layers_of_fifty_two_attend(tmp_path: Path) -> None:
    """Nemotron-3-Nano: 0.75 GiB, where all layers and heads would make 104."""
    heads = [2 if n in (5, 12, 19, 26, 33, 42) else 0 for n in range(52)]
    wide = [0 if n % 2 == 0 or heads[n] else 1856 for n in range(52)]
    found = size(
        tmp_path,
        "nemotron_h_moe",
        131_072,
        {"block_count": 52, "embedding_length": 2688, "feed_forward_length": wide, **widths(128)},
        head_count=32,
        head_count_kv=heads,
    )
    assert found == CacheSize(3 * GIB // 4, None), "its state is in keys that are not here"


def test_sliding_windows(tmp_path: Path) -> None:
    """Gemma 3 12B: 48 layers, five of six with a window of 1,024 (hf-mem issue 60)."""
    found = size(
        tmp_path,
        "gemma3",
        32_768,
        {"block_count": 48, "embedding_length": 3840, **widths(256)},
        head_count=16,
        head_count_kv=8,
        sliding_window=1024,
    )
    assert found.attention == (8 * 32_768 + 40 * 1536) * 8 * (256 + 256) * 2
    assert found.attention < 3 * GIB


def test_one_layer_in_four_attends(tmp_path: Path) -> None:
    """Qwen3-Next-80B: 12 of 48 layers (omlx issue 2725)."""
    found = size(
        tmp_path,
        "qwen3next",
        131_072,
        {
            "block_count": 48,
            "embedding_length": 2048,
            "full_attention_interval": 4,
            **widths(256),
            **SSM,
        },
        head_count=16,
        head_count_kv=2,
    )
    assert found.attention == 12 * 131_072 * 2 * 512 * 2
    assert found.state == 36 * (3 * (512 + 2 * 2 * 64) + 64 * 512) * 4


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("an-architecture-of-tomorrow", {}),
        ("llama", {"block_count": 0}),
        ("llama", {"block_count": 1 << 31}),
        ("llama", {"attention.head_count_kv": [2, 2]}),
        ("llama", {"attention.head_count": "four"}),
        ("glm4moe", {"nextn_predict_layers": 9}),
        ("mimo2", {"attention.sliding_window": 128}),
        ("deepseek2", {"attention.indexer.head_count": 64}),
        ("mamba", {"attention.head_count": 0}),
    ],
)
def test_what_is_not_understood_is_unknown(
    tmp_path: Path, architecture: str, keys: dict[str, Any]
) -> None:
    usual = {"block_count": 4, "embedding_length": 256, "attention.head_count": 4}
    assert size(tmp_path, architecture, 4096, usual | keys) is None
