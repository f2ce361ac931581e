"""What steps cost and need, by the headers of their models and the lengths of their texts."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import cook.steps
from cook.engines.base import ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_output import parse_buffers
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.formats.gguf import ValueType
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.reduction import Reduction
from cook.graph.step import READ_BYTES_S, Needs, Source, Step
from cook.graph.step import source as source_at
from cook.prompts.prompt_set import Prompt
from cook.steps.copies import ReduceStep
from cook.steps.deal import DealStep, Dealt
from cook.steps.quantize import QuantizeStep
from cook.steps.trace import TraceStep
from cook.steps.work import Phase, computed_bytes, model_bytes, read_bytes, trunk_bytes
from tests.engines.tiny_heads import write_tiny_heads
from tests.job.fabricated import source
from tests.job.laid_out import SIZES, TARGET, layout, score

LAYOUT = layout(score())


def traced(size: int, max_tokens: int = 100) -> TraceStep:
    found = LAYOUT.forecast
    assert isinstance(found.trace, TraceStep)
    return replace(found.trace, target=source("big", size), max_tokens=max_tokens)


def test_every_step_of_a_build_has_a_cost() -> None:
    """`cook plan` said "about 0.0 s and 59 steps never timed here"."""
    deal = DealStep((LAYOUT.baseline.live, *(c.live for c in LAYOUT.grid[:2])), 0, True)
    wanted = [*LAYOUT.making(), *LAYOUT.forecast.steps(), deal, LAYOUT.grid[0].live]
    without = Dealt((deal,), LAYOUT.baseline.name)
    for candidate in LAYOUT.grid[:2]:
        checks = LAYOUT.checks(candidate, Dealt((deal,), candidate.name), without)
        wanted += [c for c in (checks.counts, checks.compare, checks.control) if c is not None]
    found = {step.kind: step.cost() for step in wanted}
    assert {*("trace", "replay", "curve", "deal", "compare", "control", "selfcheck")} <= set(found)
    for kind, cost in found.items():
        assert cost is not None, kind
        assert cost.nominal_s > 0
        # Steps of one worker load their model once: the target's trace, a draft's replay.
        shared = kind in ("curve", "compare", "control", "selfcheck")
        several = {"live": 2, "deal": 3}  # target and drafts, each once
        assert len(cost.loads) == (0 if shared else several.get(kind, 1)), kind


def test_a_block_asks_for_all_its_requests_and_loads_each_file_once() -> None:
    servers = [LAYOUT.baseline.live, *(c.live for c in LAYOUT.grid[:2])]
    whole = DealStep(tuple(servers), 0, True).cost()
    each = [server.cost() for server in servers]
    assert sorted(whole.loads) == [1_000, 3_000, 9_000]
    assert whole.read_bytes == pytest.approx(sum(e.read_bytes for e in each if e))
    assert whole.decodes == pytest.approx(sum(e.decodes for e in each if e))


def test_tokens_of_a_large_model_take_as_long_as_reading_it() -> None:
    """100 GB at 6 tokens a second is what the field has on 600 GB/s; here it is READ_BYTES_S."""
    one, ten, long = (
        traced(size, tokens).cost().nominal_s
        for size, tokens in ((10**9, 100), (10**10, 100), (10**10, 200))
    )
    assert ten == pytest.approx(traced(10**10).tokens * 1e10 / READ_BYTES_S, rel=0.1)
    assert 8 < ten / one < 10
    assert long / ten > 1.9


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
        found[name] = step.cost().computed_bytes / 1e9
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
    assert read_bytes(model) == pytest.approx(1000 * share)

    def read(width: int) -> float:
        step = replace(traced(1000), target=model, batch_width=width)
        return step.cost().read_bytes / step.tokens

    assert read(1) == pytest.approx(1000 * share)
    assert read(2) == pytest.approx(2000 * share), "each token of a batch has its own"
    assert read(64) > read(16) == pytest.approx(1000 * min(1, 16 * share))


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
        assert read_bytes(quant) == pytest.approx(whole.size_bytes / quarter, rel=0.01)
        assert computed_bytes(quant) == 2 * weights
        half = ReduceStep("half", quant, Reduction(), size // 2)
        assert computed_bytes(half) == pytest.approx(weights, rel=0.01)


def test_a_live_run_holds_target_and_draft_and_a_replay_the_draft() -> None:
    laid = layout()
    large, small = (
        next(c for c in laid.grid if c.draft is not None and c.draft.name == name)
        for name in ("large", "small")
    )
    assert large.live.needs() == Needs(TARGET.size_bytes + SIZES["large"])
    both = DealStep((large.live, small.live), 0, True)
    assert both.needs() == Needs(TARGET.size_bytes + sum(SIZES.values())), "the target once"
    replay = next(d for d in laid.forecast.drafts if d.draft.name == "small").replay
    assert replay.needs() == Needs(SIZES["small"])


def test_layers_on_a_device_need_one() -> None:
    placed = {"source": "/models/target.gguf", "args": {"n_gpu_layers": 99}}
    laid = layout(score(target=placed))
    assert laid.forecast.trace.needs().device
    assert DealStep((laid.baseline.live,), 0, True).needs().device
    replay = laid.forecast.drafts[0].replay
    assert not replay.needs().device
    assert replace(replay, args=replace(replay.args, devices=("CUDA0",))).needs().device


def test_a_head_that_does_not_draft_is_not_in_memory(engine: Any, tmp_path: Path) -> None:
    """Both engines leave out the tensors of a head inside of the file."""
    write_tiny_heads(tmp_path)
    with Worker.open(engine, Supervisor(tmp_path / "logs")) as worker:
        worker.load(model_load(engine, tmp_path / "whole.gguf", ModelArgs(threads=1), 256))
        held = parse_buffers(worker.log.read_bytes())[0]["model"]
    whole, trunk = (source_at([tmp_path / f"{name}.gguf"]) for name in ("whole", "trunk"))
    assert trunk_bytes(whole) == pytest.approx(held, rel=0.05)
    assert (model_bytes(whole) or 0) > 1.2 * held
    assert trunk_bytes(trunk) == model_bytes(trunk)


def test_every_step_has_a_phase_and_every_phase_a_step() -> None:
    names = (found.name for found in iter_modules(cook.steps.__path__, "cook.steps."))
    steps = {
        kind
        for module in map(import_module, names)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Step) and not isabstract(kind)
    }
    assert {kind.phase for kind in steps} == set(Phase)
