"""``cook predict``: from a trace and drafts, from numbers, and what it refuses."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.speculation import DEFAULTS
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.graph.step import source
from cook.job.predict import PredictRequest, predict_on_trace, predict_typed
from cook.job.predict_show import print_prediction
from cook.output import Mode, Output
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt
from cook.scoring.iid import tokens_per_cycle
from cook.trace.session import TracePlan, record
from cook.trace.worker_target import WorkerTarget

DRAFT = demo_dir() / "draft-f16.gguf"
TARGET = demo_dir() / "target-q8_0.gguf"


@pytest.fixture(scope="module")
def traces(bundled: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """Of four short prompts, by temperature."""
    prompts = tuple(
        Prompt(f"p{i}", "code" if i % 2 else "prose", f"def add_{i}(a, b):\n    ", "pick")
        for i in range(4)
    )
    folder = tmp_path_factory.mktemp("traces")
    logs, args = folder / "logs", ModelArgs(threads=1)
    found = {t: folder / f"t{t:g}.trace" for t in (0.0, 0.8)}
    for temperature, path in found.items():
        plan = TracePlan(prompts, 32, 512, Sampling(temperature, seed=3).applied())
        with (
            KeptWorkers(logs) as workers,
            WorkerTarget(
                bundled, source([TARGET]), args, 512, False, Supervisor(logs), workers
            ) as target,
        ):
            record(target, plan, path)
    return found


def answer(request: PredictRequest, trace: Path, *drafts: Path) -> dict[str, Any]:
    out = io.StringIO()
    whole = replace(request, trace=trace, drafts=drafts)
    print_prediction(whole, Output(Mode.JSON, out, io.StringIO()))
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


TIMED = PredictRequest(verify="1:1.5,3:2.1,5:3.1,9:5.2", draft_ms=0.2, threads=1)


@pytest.mark.engine
def test_a_draft_on_a_trace(traces: dict[float, Path]) -> None:
    found = answer(replace(TIMED, n_max=(2, 4), p_min=(0.0, 0.5)), traces[0.0], DRAFT)
    (draft,) = found["drafts"]
    rows = {(r["n_max"], r["p_min"]): r for r in draft["settings"]}
    assert set(rows) == {(2, 0.0), (4, 0.0), (2, 0.5), (4, 0.5)}
    for row in rows.values():
        assert row["acceptance"] == row["draft_n_accepted"] / row["draft_n"]
        assert row["acceptance_length"] == 1 + row["draft_n_accepted"] / row["cycles"]
        assert sum(d["drafted"] for d in row["by_depth"]) == row["draft_n"]
        assert sum(d["accepted"] for d in row["by_depth"]) == row["draft_n_accepted"]
        assert set(row["categories"]) == {"code", "prose"}
        assert row["end_to_end_tokens_per_s"] is None  # prompts were not timed
    assert rows[4, 0.5]["draft_n"] < rows[4, 0.0]["draft_n"]
    best = max(draft["settings"], key=lambda r: r["decode_tokens_per_s"])
    assert draft["settings"][draft["best"]] == best
    assert found["no_draft"]["decode_tokens_per_s"] == pytest.approx(1000 / 1.5)
    assert draft["rejection_sampling"] == []


@pytest.mark.engine
def test_rivals_need_no_draft(traces: dict[float, Path]) -> None:
    request = PredictRequest(rival=("all", "ngram-map-k:size_n=3,size_m=8"), verify="1:10,65:40")
    found = answer(request, traces[0.0])
    assert [r["name"] for r in found["rivals"]] == [
        *map(str, DEFAULTS[Flavour.LLAMA_CPP]),
        "ngram-map-k size_n=3 size_m=8",
    ]
    bare = found["no_draft"]["decode_tokens_per_s"]
    for rival in found["rivals"]:
        if not rival["draft_n"]:
            assert rival["decode_tokens_per_s"] == pytest.approx(bare)
    assert found["drafts"] == []


@pytest.mark.engine
def test_other_chains_from_stored_probabilities(traces: dict[float, Path]) -> None:
    """On its own text a chain's expectation is about what replay counts; both rules, with ends."""
    request = replace(TIMED, n_max=(1, 4), temperature=(0.8, 0.3), top_p=(0.95,))
    found = answer(request, traces[0.8], DRAFT)
    (draft,) = found["drafts"]
    rows = {(row["temperature"], row["n_max"]): row for row in draft["sampling_chains"]}
    assert set(rows) == {(t, n) for t in (0.3, 0.8) for n in (1, 4)}
    for row in rows.values():
        for rule in ("engine", "rejection_sampling"):
            low, high = row[rule]["acceptance"]
            assert 0 < low <= high <= 1
        assert row["rejection_sampling"]["acceptance"][1] > row["engine"]["acceptance"][0]
    own = rows[0.8, 1]["engine"]["acceptance"]
    counted = next(r for r in draft["settings"] if r["n_max"] == 1)["acceptance"]
    assert own == pytest.approx([counted, counted], abs=0.12)
    assert rows[0.3, 1]["engine"]["acceptance"][0] > own[0]
    assert [w for w in found["warnings"] if "at temperature 0.3" in w]
    assert not [w for w in found["warnings"] if "at temperature 0.8" in w], "its own chain"


@pytest.mark.engine
def test_a_draft_that_cannot_be_is_refused_as_what_it_is(
    traces: dict[float, Path], tiny_model: Path, tmp_path: Path
) -> None:
    metadata = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    tensor = tensor_of("blk.0.attn_q.weight.lora_a", (4,), 0, bytes(16))
    lora = tmp_path / "lora.gguf"
    write_gguf_file(lora, {k: encode(v) for k, v in metadata.items()}, [tensor])
    for draft, message in (
        (tiny_model, r"cannot draft for target-q8_0.gguf: .*target.*draft"),
        (lora, r"lora\.gguf: this is a LoRA adapter, no model"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            answer(PredictRequest(n_max=(2,)), traces[0.0], draft)
    merge = "merge it into its model first: llama-export-lora -m MODEL --lora FILE"
    assert caught.value.hint == merge


def test_typed_numbers() -> None:
    out, err, times = io.StringIO(), io.StringIO(), "1:146,2:170,5:220"
    typed = PredictRequest(target_ms=146, draft_ms=12, verify=times, n_max=(1, 2, 4, 5))
    print_prediction(replace(typed, token_acceptance=0.62), Output(Mode.JSON, out, err))
    found = json.loads(out.getvalue())
    first = found["settings"][0]
    assert first["cycle_ms"] == pytest.approx(170 + 2 * 12)
    assert first["acceptance_length"] == pytest.approx(1.62)
    assert found["no_draft_tokens_per_s"] == pytest.approx(1000 / 146)
    assert "pooled" in err.getvalue()
    assert "what n_max 5 costs is drawn on from there" in err.getvalue()
    assert "every batch is taken to cost" not in err.getvalue(), "its times are typed"


LOGGED = PredictRequest(acceptance=102 / 168, target_ms=20.0, draft_ms=1.0)
"""tests/data/server_logs/ik.log: 42 drafts of four tokens, 168 generated, 102 accepted."""


@pytest.mark.parametrize(
    ("changed", "length", "assumed"),
    [
        ({"n_max": (4,)}, 4, False),
        ({"n_max": (4,), "acceptance_at": 3}, 3, False),
        ({}, 3, True),
        ({"profile": "ik"}, 16, True),
        ({"n_max": (2, 6)}, 3, True),
    ],
)
def test_acceptance_is_what_a_log_prints(
    changed: dict[str, Any], length: int, assumed: bool
) -> None:
    found = predict_typed(replace(LOGGED, **changed))
    assert tokens_per_cycle(found.alpha, length) == pytest.approx(1 + length * 102 / 168)
    assert any(f"at n_max {length}, llama-server's own" in w for w in found.warnings) == assumed
    rates = [row.acceptance for row in found.settings]
    assert rates == sorted(rates, reverse=True), "less is accepted of longer drafts"


def test_the_acceptance_of_one_token_has_a_flag_of_its_own() -> None:
    """A server with n_max 3 printed 81.5 % accepted, and made 3.44 tokens a step."""
    whole = predict_typed(replace(LOGGED, acceptance=0.815, n_max=(3,)))
    assert whole.settings[0].acceptance_length == pytest.approx(3.445)
    one = predict_typed(replace(LOGGED, acceptance=None, token_acceptance=0.815, n_max=(3,)))
    assert one.alpha == 0.815
    assert one.settings[0].acceptance_length == pytest.approx(3.02, abs=0.005)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_acceptance": 0.8}, "give one of them"),
        ({"acceptance": None, "token_acceptance": 0.8, "acceptance_at": 4}, "give one of them"),
        ({"acceptance": math.nan}, "between 0 and 1"),
        ({"acceptance": 62.0}, "between 0 and 1"),
        ({"target_ms": None}, "needs the times"),
        ({"draft_ms": None}, "needs the times"),
        ({"profile": "vllm"}, "no profile"),
        ({"verify": "1:0"}, "out of range"),
        ({"verify": "1:nan"}, "out of range"),
        ({"verify": "1:1,1:2"}, "given twice"),
        ({"verify": "x"}, "is not TOKENS:MS"),
        ({"verify": "2:100", "target_ms": None}, "needs the time of one token"),
        ({"verify": "1:5"}, "two different times"),
    ],
)
def test_numbers_that_cannot_be_or_are_missing(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        predict_typed(replace(LOGGED, **changed))


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_all_or_nothing_accepted_is_no_error(ratio: float) -> None:
    row = predict_typed(replace(LOGGED, acceptance=ratio, n_max=(5,))).settings[0]
    assert row.acceptance_length == pytest.approx(1 + 5 * ratio)


def test_a_link_is_waited_for_by_every_decode() -> None:
    near = replace(LOGGED, n_max=(4,))
    here, there = predict_typed(near), predict_typed(replace(near, link_ms=2.0))
    # Four drafted tokens and the mirror.
    assert there.settings[0].cycle_ms - here.settings[0].cycle_ms == pytest.approx(5 * 2.0)
    assert there.settings[0].speedup < here.settings[0].speedup
    unknown = predict_typed(replace(near, link_ms=2.0, link_mbit=100.0))
    assert unknown.settings == there.settings
    assert "--link-mbit is left out" in unknown.warnings[-1]


ON_TRACE = PredictRequest(trace=Path("some.trace"), drafts=(DRAFT,))


def refused(changed: dict[str, Any], message: str) -> None:
    whole = replace(ON_TRACE, **changed)
    with pytest.raises(InputError, match=message):
        _ = whole.rivals, predict_on_trace(whole, Output(Mode.QUIET))


def test_slots_are_timed_here_and_a_speed_belongs_to_a_link() -> None:
    refused({"slots": (2,)}, "--slots needs drafts")
    refused({"slots": (2,), "target": TARGET, "draft_ms": 0.2}, "--slots needs drafts")
    refused({"link_mbit": 1000.0}, "--link-mbit goes with")


def test_options_that_do_not_go_together() -> None:
    refused({"acceptance_at": 4}, "go with --acceptance")
    refused({"target": TARGET, "target_ms": 3.0}, "give one of them")
    refused({"verify": "1:x"}, "is not TOKENS:MS")
    refused({"n_max": (4, 33)}, "--n-max must be between 1 and 32")
    for name in ("acceptance", "token_acceptance"):
        typed: dict[str, Any] = {name: 0.5}
        with pytest.raises(InputError, match="--acceptance replaces the trace"):
            print_prediction(replace(ON_TRACE, **typed), Output(Mode.QUIET))


def test_a_trace_and_a_draft_or_rivals_that_there_are() -> None:
    refused({"drafts": ()}, "a trace and a draft")
    refused({"trace": None}, "a trace and a draft")
    refused({"rival": ("ngram",)}, "rival ngram: type")
    refused({"rival": ("ngram-mod:size_n",)}, "not KEY=NUMBER")
    refused({"rival": ("ngram-mod:size_n=0",)}, "size_n")
    refused({"rival": ("all:size_n=3",)}, "every engine's own numbers")


@pytest.mark.engine
def test_without_headers_the_error_says_what_does_without(
    traces: dict[float, Path], monkeypatch: pytest.MonkeyPatch, bundled: Engine, tmp_path: Path
) -> None:
    """As a prebuilt release is: its tools and libraries, and no headers."""
    release = tmp_path / "release" / "bin"
    release.mkdir(parents=True)
    for folder in map(Path, (*bundled.facts.library_dirs, bundled.facts.bin_dir)):
        for file in (path for path in folder.iterdir() if path.is_file()):
            if file.name.startswith("llama-"):
                shutil.copy(file, release)
            else:
                (release / file.name).symlink_to(file)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    request = PredictRequest(n_max=(3,), threads=1, engine=f"release={release}")
    with pytest.raises(PrerequisiteError, match="has no headers") as caught:
        answer(request, traces[0.0], DRAFT)
    assert "method: live" in str(caught.value.hint)
