"""Times of steps that were never timed: by size, by what this machine took for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.build import reckon
from cook.build.reckon import FLOPS, READ_BYTES_S, Effort, MachinePace, effort_of, nominal_seconds
from cook.formats.gguf import ValueType
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.reduction import Reduction
from cook.graph.step import Source
from cook.graph.store import Artifact
from cook.prompts.prompt_set import Prompt
from cook.steps.deal import DealStep, Dealt
from cook.steps.quantize import QuantizeStep
from cook.steps.reduce import ReduceStep
from cook.steps.trace import TraceStep
from tests.build.fabricated import source
from tests.build.laid_out import layout, score

LAYOUT = layout(score())


def traced(size: int, max_tokens: int = 100) -> TraceStep:
    found = LAYOUT.forecast
    assert found is not None
    assert isinstance(found.trace, TraceStep)
    return replace(found.trace, target=source("big", size), max_tokens=max_tokens)


def artifact(
    step: Any, seconds: float, kind: str | None = None, engine: str | None = None
) -> Artifact:
    parts = dict(step.key_parts)
    if engine is not None:
        parts["engine"] = {**(parts["engine"] or {}), "digest": engine}
    return Artifact(
        Path("x"),
        kind or step.kind,
        "k",
        "l",
        parts,
        {},
        (),
        seconds,
        None,
        "now",
        {},
        nominal_s=nominal_seconds(step),
    )


def test_every_step_of_a_build_has_an_effort() -> None:
    """`cook plan` said "about 0.0 s and 59 steps never timed here"."""
    forecast = LAYOUT.forecast
    assert forecast is not None
    wanted = [*LAYOUT.making(), *forecast.steps()]
    assert LAYOUT.baseline is not None
    deal = DealStep((LAYOUT.baseline.live, *(c.live for c in LAYOUT.grid[:2])), 0, True)
    wanted += [deal, LAYOUT.grid[0].live]
    without = Dealt((deal,), LAYOUT.baseline.name)
    for candidate in LAYOUT.grid[:2]:
        dealt = Dealt((deal,), candidate.name)
        checks = LAYOUT.checks(candidate, dealt)
        assert checks is not None
        wanted += [*checks.steps(), LAYOUT.compare(candidate, without, dealt)]
    found = {step.kind: effort_of(step) for step in wanted}
    assert {*("trace", "replay", "curve", "deal", "compare", "control", "selfcheck")} <= set(found)
    for kind, effort in found.items():
        assert effort is not None, kind
        assert effort.nominal_s > 0
        # Steps of one worker load their model once: the target's trace, a draft's replay.
        shared = kind in ("curve", "compare", "control", "selfcheck")
        several = {"live": 2, "deal": 3}  # target and drafts, each once
        assert len(effort.models) == (0 if shared else several.get(kind, 1)), kind


def test_a_block_asks_for_all_its_requests_and_loads_each_file_once() -> None:
    assert LAYOUT.baseline is not None
    servers = [LAYOUT.baseline.live, *(c.live for c in LAYOUT.grid[:2])]
    whole = effort_of(DealStep(tuple(servers), 0, True))
    each = [effort_of(server) for server in servers]
    assert whole is not None
    assert sorted(whole.models) == [1_000, 3_000, 9_000]
    assert whole.read_bytes == pytest.approx(sum(e.read_bytes for e in each if e))
    assert whole.decodes == pytest.approx(sum(e.decodes for e in each if e))


def test_tokens_of_a_large_model_take_as_long_as_reading_it() -> None:
    """100 GB at 6 tokens a second is what the field has on 600 GB/s; here it is READ_BYTES_S."""
    one, ten = traced(10**9), traced(10**10)
    tokens = one.work()
    assert nominal_seconds(ten) == pytest.approx(tokens * 1e10 / READ_BYTES_S, rel=0.1)
    ratio = (nominal_seconds(ten) or 0) / (nominal_seconds(one) or 1)
    assert 8 < ratio < 10
    assert (nominal_seconds(traced(10**10, 200)) or 0) / (nominal_seconds(ten) or 1) > 1.9


def test_a_machine_is_known_by_what_it_took() -> None:
    """Three times slower on a small model: so it will be on one a hundred times the size."""
    small, large = traced(10**8), traced(10**10)
    took = 3 * (nominal_seconds(small) or 0)
    pace = MachinePace.of([artifact(small, took)])
    seconds, how = pace.seconds(large, effort_of(large))
    assert seconds == pytest.approx(3 * (nominal_seconds(large) or 0))
    assert how == "as this engine's here, by size"
    other = MachinePace.of([artifact(small, took, engine="another")])
    assert other.seconds(large, effort_of(large))[1] == "as another engine's here, by size"
    # A kind that was never run goes by all that were.
    kinds = MachinePace.of([artifact(small, took, kind="control")])
    assert kinds.seconds(large, effort_of(large))[0] == pytest.approx(
        3 * (nominal_seconds(large) or 0)
    )
    assert kinds.seconds(large, effort_of(large))[1] == "by size and other steps"
    # Steps of which nothing was reckoned say nothing.
    monkey = replace(artifact(small, took), nominal_s=None)
    assert MachinePace.of([monkey, artifact(small, took)]).kinds == pace.kinds


def test_before_anything_ran_the_memory_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reckon, "memory_bytes_s", lambda: READ_BYTES_S / 4)
    monkeypatch.setattr(reckon, "processor_flops", lambda: FLOPS / 2)
    seconds, how = MachinePace.of([]).seconds(traced(10**10), effort_of(traced(10**10)))
    effort = effort_of(traced(10**10))
    assert effort is not None
    assert seconds == pytest.approx(effort.seconds(4.0, 2.0))
    assert seconds is not None
    assert 3.5 < seconds / effort.nominal_s < 4.0
    assert how == "by size and a probe of this machine"


def test_the_probe_finds_a_plausible_machine() -> None:
    assert 1e8 < reckon.memory_bytes_s() < 1e13
    assert 1e8 < reckon.processor_flops() < 1e15


def test_what_no_header_tells_is_said() -> None:
    step = replace(LAYOUT.grid[0].live, draft=traced(1))  # its size is not that of a model
    unknown = replace(step, draft=_NoSize(*_fields(traced(1))))
    seconds, why = MachinePace({}, (1.0, 1.0), probed=True).seconds(unknown, effort_of(unknown))
    assert seconds is None
    assert why == "its size is known only when its inputs are there"


class _NoSize(TraceStep):
    def predicted_bytes(self) -> int:
        return 0


def _fields(step: TraceStep) -> tuple[Any, ...]:
    from dataclasses import fields

    return tuple(getattr(step, f.name) for f in fields(step))


def test_a_prompt_has_as_many_tokens_as_the_vocabulary_makes_of_it(tmp_path: Path) -> None:
    """A plan of random text reckoned four bytes a token, where each was one."""
    words = ["word", "\u2581word"]
    found = {}
    for name, tokens in (("letters", list("dorw\u2581")), ("words", words), ("none", None)):
        path = tmp_path / f"{name}.gguf"
        metadata = {"general.architecture": encode("llama")}
        if tokens is not None:
            metadata["tokenizer.ggml.model"] = encode("llama")
            metadata["tokenizer.ggml.tokens"] = encode(tokens, ValueType.STRING)
        write_gguf_file(path, metadata, ())
        prompts = (Prompt("a", "x", "word word word word", "pick"),)
        step = replace(traced(10**9), prompts=prompts, target=Source(path, "sha256:0", 10**9))
        effort = effort_of(step)
        assert effort is not None
        found[name] = effort.computed_bytes / 1e9
    assert found == pytest.approx({"letters": 19, "words": 4, "none": 19 / 4})


def test_experts_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    facts = {"expert_count": 128, "expert_used_count": 8}
    metadata = {"general.architecture": encode("llama")}
    metadata |= {f"llama.{key}": encode(value) for key, value in facts.items()}
    experts = tensor_of("blk.0.ffn_down_exps.weight", (9, 1, 128), 0, bytes(4 * 9 * 128))
    attention = tensor_of("blk.0.attn_q.weight", (8, 16), 0, bytes(4 * 128))
    output = tensor_of("output.weight", (1, 1), 0, bytes(4))
    write_gguf_file(path, metadata, [experts, attention, output])
    model = Source(path, "sha256:" + "0" * 64, 1000)
    share = (9 * 128 * 8 / 128 + 128 + 1) / (9 * 128 + 128 + 1)
    assert reckon._touched(model) == pytest.approx(1000 * share)

    def read(width: int) -> float:
        step = replace(traced(1000), target=model, batch_width=width)
        effort = effort_of(step)
        assert effort is not None
        return effort.read_bytes / step.work()

    assert read(1) == pytest.approx(1000 * share)
    assert read(2) == pytest.approx(2000 * share), "each token of a batch has its own"
    assert read(64) > read(16) == pytest.approx(1000 * min(1, 16 * share))


def test_an_effort_adds_up() -> None:
    assert Effort((2e9,), 8e9, 0.0, 40e9).nominal_s == pytest.approx(0.4 + 2.0 + 1.0 + 1.0)


def test_types_that_are_searched_for_take_long_to_quantize() -> None:
    assert reckon._seconds_a_weight("IQ1_S") > 10 * reckon._seconds_a_weight("Q4_K")
    assert reckon._seconds_a_weight("iq2_kt") > 10 * reckon._seconds_a_weight("q8_0")


def test_a_quant_computes_as_much_as_its_source(tmp_path: Path) -> None:
    """Of SmolLM2-135M `cook plan` said 5 minutes and 7 went by: replays and divergences of quants
    were reckoned by their bytes, and took as long as the source's."""
    path = tmp_path / "f16.gguf"
    metadata = {"general.architecture": encode("llama")}
    weights = 1 << 20
    write_gguf_file(path, metadata, [tensor_of("output.weight", (32, 1 << 15), 1, bytes(2 << 20))])
    whole = Source(path, "sha256:" + "0" * 64, path.stat().st_size)
    for quarter in (1, 2, 4):
        engine, size = LAYOUT.engine, whole.size_bytes // quarter
        quant = QuantizeStep(engine, "Q", whole, None, "Q4_0", (), (), size)
        assert reckon._touched(quant) == pytest.approx(whole.size_bytes / quarter, rel=0.01)
        assert reckon._computed(quant) == 2 * weights
        half = ReduceStep("half", quant, Reduction(), size // 2)
        assert reckon._computed(half) == pytest.approx(weights, rel=0.01)
