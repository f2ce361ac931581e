"""Reading the tools' output: recorded logs, the field's logs, and garbage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines import tool_output
from cook.engines.facts import parse_flags, parse_ftypes, parse_types
from cook.engines.process.outcome import tail
from cook.engines.server_api import parse_completion

LOGS = Path(__file__).parent / "logs"


def log(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


QUANTIZED = {
    "llama.cpp": (
        {
            "output.weight": "q6_K",
            "blk.0.attn_v.weight": "q8_0",
            "blk.0.ffn_down.weight": "q5_0",
            "blk.0.attn_norm.weight": "f32",
        },
        ["q4_K became q5_0"],
    ),
    # Custom types and fallback messages stand in the middle of the lines here.
    "ik_llama.cpp": (
        {
            "output.weight": "iq6_k",
            "blk.1.attn_v.weight": "q8_0",
            "blk.0.ffn_up.weight": "iq1_kt",
            "blk.0.ffn_down.weight": "iq4_nl",
        },
        ["fallback to iq4_nl", "no imatrix data"],
    ),
}


@pytest.mark.parametrize("flavour", QUANTIZED)
def test_quantize_log(flavour: str) -> None:
    types, warnings = QUANTIZED[flavour]
    read = tool_output.parse_quantize_log(log(f"quantize-{flavour}.txt"))
    assert len(read.types) == 21
    assert read.types | types == read.types
    assert read.types["token_embd.weight"] != "f16"
    for words in warnings:
        assert any(words in warning for warning in read.warnings)


def test_a_tensor_in_work_is_not_there_yet() -> None:
    text = log("quantize-llama.cpp.txt")
    cut = text[: text.index("size =     0.27 MiB")]
    assert list(tool_output.parse_quantize_log(cut).types)[-1] == "blk.0.attn_v.weight"


def test_dry_run_names_the_type_in_parentheses() -> None:
    line = (
        "[   5/  21] blk.0.attn_q.weight - [   256,    256,      1,      1], type =    f16, "
        "size =     0.12 MiB ->     0.04 MiB (q4_K)\n"
    )
    assert tool_output.parse_quantize_log(line).types == {"blk.0.attn_q.weight": "q4_K"}


@pytest.mark.parametrize(
    ("text", "estimate"),
    [
        ("Final estimate: PPL = 15351.3331 +/- 3196.31732\n", (15351.3331, 3196.31732)),
        ("Final estimate: PPL over 4 chunks for n_ctx=128 = 7.5 +/- 0.05", (7.5, 0.05)),
        ("ETA 0.1 Final estimate: PPL = 1e3 +/- 1", (1000.0, 1.0)),
        ("", None),
        ("Final estimate: PPL = -nan +/- -nan", None),
        ("Final estimate: PPL over 4 chunks for n_ctx=128 = inf +/- 1", None),
        ("Final estimate: PPL = -3.0 +/- 1.0", None),
        ("Final estimate: PPL = 3.0 +/- -1.0", None),
        ("Final estimate: PPL = 99999999" + "9" * 400 + " +/- 1", None),
    ],
)
def test_final_estimate(text: str, estimate: tuple[float, float] | None) -> None:
    assert tool_output.parse_final_estimate(text) == estimate


@pytest.mark.parametrize(
    "text",
    [
        "[1]12.1,[2]nan,",
        "Final estimate: PPL over 4 chunks for n_ctx=128 = nan +/- 1",
        "Unexpected negative standard deviation of log(prob)",
        "non-finite values detected in blk.0.attn_v.weight",
        "detected NaNs in blk.0.attn_v.weight",
    ],
)
def test_not_finite_is_noticed(text: str) -> None:
    assert tool_output.not_finite(text)


def test_finite_is_finite() -> None:
    estimate = "[1]9968.9707,[2]9515.5179,\nFinal estimate: PPL = 1.0 +/- 0.1"
    assert tool_output.not_finite(log("divergence.txt") + estimate) is None


def test_divergence() -> None:
    text = log("divergence.txt")
    values = tool_output.parse_divergence(text) or {}
    assert values["mean_kld"] == 8.402222
    assert values["mean_kld_error"] == 0.080182
    assert values["base_perplexity"] == 13936.748155
    assert values["perplexity_ratio"] == 0.506481
    assert values["p99_kld"] == 10.961584
    assert values["rms_delta_p_percent"] == 2.917
    assert tool_output.parse_divergence_chunks(text) == 4
    for words in ("Same top p", "Median  KLD", "8.402222", "0.166656"):
        assert tool_output.parse_divergence(text.replace(words, "nan")) is None


def test_divergence_of_a_model_that_equals_its_base() -> None:
    text = log("divergence.txt").replace("0.506481 ±   0.166656", "1.000007 ±       -nan")
    values = tool_output.parse_divergence(text) or {}
    assert values["perplexity_ratio"] == 1.000007
    assert values["perplexity_ratio_error"] is None


def test_chunks_and_plans() -> None:
    assert tool_output.parse_chunks("[1]9.1,[2]9.2,[10]9.3,\n") == 10
    plan = tool_output.parse_planned_chunks
    assert plan("calculating perplexity over 230 chunks, n_ctx=512") == 230
    assert plan("compute_imatrix: computing over 4 chunks, n_ctx=1") == 4
    assert tool_output.progress_of("0.1 minutes\n[1]9.1,[2]9.2,", 4) == (2, 4)
    assert tool_output.progress_of("nothing", 4) is None


def test_partial_imatrix_messages_of_the_field() -> None:
    text = (
        "save_imatrix: entry '               blk.10.ffn_down_exps.weight' has partial data (99.61%)"
        " 1 out of 256 experts are missing data Storing **but be aware**\n"
        "save_imatrix: warning: storing only 219 out of 220 entries\n"
    )
    assert len(tool_output.parse_imatrix_warnings(text)) == 2


MIB = 1 << 20
OF_TWO_DEVICES = b"""\
load_tensors: offloaded 6/6 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   123.50 MiB
load_tensors:        CUDA0 model buffer size =  1000.25 MiB
llama_context:        CPU  output buffer size =     0.50 MiB
llama_kv_cache:      CUDA1 KV buffer size =    48.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =     2.00 MiB
sched_reserve:      CUDA0 compute buffer size =    10.00 MiB
"""
# A device reads it, and it is the host's.
OF_THE_HOST = b"""\
load_tensors:    CUDA_Host model buffer size =   100.00 MiB
llama_context:  CUDA_Host  output buffer size =     4.00 MiB
"""
NO_BUFFERS = b"CPU buffer size = 5.00 MiB\nprompt cache size = 8192.000 MiB\nload_tensors: done\n"


@pytest.mark.parametrize(
    ("log", "mib", "on_devices"),
    [
        (
            OF_TWO_DEVICES,
            {"model": 1123.75, "output": 0.5, "KV": 48, "RS": 2, "compute": 10},
            1060.25,
        ),
        (OF_THE_HOST, {"model": 100, "output": 4}, 0),
        # ik names no use of its weights.
        (b"llm_load_tensors:        CPU buffer size =    87.00 MiB\n", {"model": 87}, 0),
        (b"llm_load_tensors:  CUDA_Host buffer size =   205.00 MiB\n", {"model": 205}, 0),
        (b"llm_load_tensors:      CUDA0 buffer size =  8620.75 MiB\n", {"model": 8620.75}, 8620.75),
        (NO_BUFFERS, {}, 0),
    ],
    ids=["two devices", "host", "ik", "ik's host", "ik's device", "none"],
)
def test_buffers_by_use_and_on_devices(log: bytes, mib: dict[str, float], on_devices: int) -> None:
    sizes = {use: int(size * MIB) for use, size in mib.items()}
    assert tool_output.parse_buffers(log) == (sizes, int(on_devices * MIB))


PIECES = st.sampled_from(
    [
        *("[   1/  21] a.weight - [ 1, 2, 3, 4], type =    f16, ", "converting to q4_K .. "),
        *("size =     0.16 MiB ->     0.04 MiB\n", "Final estimate: PPL = ", "nan", " +/- ", "[1]"),
        *(
            "Mean    KLD:",
            "±",
            "999.9",
            "-",
            "|    64 |",
            "save_imatrix: entry '",
            "\x00",
            "\n",
            ",",
        ),
        *("version: 1 (abc)", "q4_K\t1\t", "Allowed quantization types", " - [", '{"pl": 1'),
    ]
)
GARBAGE = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=60).map("".join))


@settings(max_examples=150, deadline=None)
@given(GARBAGE)
def test_garbage_raises_nothing(text: str) -> None:
    assert all(tool_output.parse_quantize_log(text).types)
    estimate = tool_output.parse_final_estimate(text)
    assert estimate is None or all(map(math.isfinite, estimate))
    tool_output.parse_divergence(text)
    tool_output.parse_divergence_chunks(text)
    tool_output.parse_imatrix_warnings(text)
    tool_output.progress_of(text, None)
    tool_output.not_finite(text)
    parse_flags(text)
    parse_ftypes(text)
    parse_types(text)
    assert "\x1b" not in tail(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
TIMINGS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted"),
        st.integers(-1, 9) | JSON,
    )
    | {"draft_by_depth": JSON},
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {"timings": TIMINGS},
        optional=dict.fromkeys(
            ("content", "tokens", "completion_probabilities", "stop_type"), JSON
        ),
    )
)
def test_hostile_completions_are_value_errors_or_sane(answer: dict[str, object]) -> None:
    try:
        completion = parse_completion(answer)
    except ValueError:
        return
    assert completion.predicted_n >= 0
    assert completion.predicted_ms >= 0
    assert (completion.draft_n_accepted or 0) <= (completion.draft_n or 0)
