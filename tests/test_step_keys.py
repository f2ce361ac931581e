"""Every Step's key, as the store knows it: kind, version and params decide what is found again.

A key that changes makes every user build again what took hours, so it changes only where the
result does, with the step's version. COOK_UPDATE_SNAPSHOTS=1 writes the golden file again.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import isabstract
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cook

# Where the Steps and what they are made of live; nothing below names a module.
# isort: split
from cook.engines.base import DraftSettings, EngineIdentity, ModelArgs, TypeRule
from cook.engines.environment import user_settings
from cook.engines.speculation import NgramSettings, NgramType
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour
from cook.formats.reduction import Reduction
from cook.formats.sampling import Sampling
from cook.graph.execute import closure
from cook.graph.step import Source, Step
from cook.prompts.prompt_set import Prompt
from cook.provenance import Machine
from cook.scoring.simulate import Profile
from cook.steps.checks import CompareStep, ControlStep, RecountStep
from cook.steps.convert import Converter, ConvertStep
from cook.steps.copies import ReduceStep, SpliceHeadStep
from cook.steps.curve import CurveStep, SlotCurveStep
from cook.steps.deal import DealStep, Dealt
from cook.steps.draft_quality import DivergenceStep, MemoryStep, PerplexityStep
from cook.steps.head_replay import HeadReplayStep, RowsStep
from cook.steps.imatrix import HeadImatrixStep, ImatrixStep, TraceCorpusStep
from cook.steps.live import LiveStep
from cook.steps.output_type import OutputTypeStep
from cook.steps.quantize import PublishedTensor, QuantizeStep
from cook.steps.replay import ReplayStep
from cook.steps.trace import RecordedTraceStep, TraceStep
from cook.steps.variant import TOP, VariantCurveStep, VariantStep

# isort: split

GOLDEN = Path(__file__).parent / "data" / "step_keys.json"
MACHINE = Machine("a processor", 8, 64 << 30, "Linux 6.1", ("a GPU",))
CONVERTER = {
    "convert_hf_to_gguf.py": "print('convert')\n",
    "conversion/llama.py": "LLAMA = 1\n",
    "gguf-py/gguf/writer.py": "WRITER = 1\n",
}


@dataclass(frozen=True)
class Build:
    """What a key asks of an engine, without one."""

    name: str
    flavour: Flavour
    flags: Mapping[str, frozenset[str]]

    @property
    def identity(self) -> EngineIdentity:
        commit = "0c1e570" if self.flavour is Flavour.LLAMA_CPP else None
        return EngineIdentity(self.flavour, f"{self.name} build 1", commit, digest_of(self.name))

    @property
    def facts(self) -> Any:
        return SimpleNamespace(types={"q4_K": 12}, ftypes=("Q4_K_M",), flags=self.flags)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def source(name: str, size_bytes: int = 1000) -> Source:
    return Source(Path("/anywhere") / name, f"sha256:{digest_of(name)}", size_bytes)


def steps(folder: Path) -> Iterator[tuple[str, Step[Any]]]:
    """Named steps of every kind, each also with whatever is optional; ``folder`` is empty."""
    main: Any = Build("main", Flavour.LLAMA_CPP, {"imatrix": frozenset({"--parse-special"})})
    ik: Any = Build("ik", Flavour.IK_LLAMA_CPP, {})
    for name, text in CONVERTER.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    converter = folder / "convert_hf_to_gguf.py"
    bf16, target, corpus = source("bf16.gguf", 9000), source("target.gguf"), source("text.txt")
    prompts = (
        Prompt("first", "prose", "Once upon a time", "pick"),
        Prompt("second", "code", "def main():\n    \u201cx\u201d", "report"),
    )
    bare, placed = (
        ModelArgs(),
        ModelArgs(
            n_gpu_layers=99,
            override_tensor=("exps=CPU", "blk.1=CUDA0"),
            cpu_moe=True,
            n_cpu_moe=3,
            devices=("CUDA0", "CUDA1"),
            cache_type_k="q8_0",
            cache_type_v="q4_0",
            flash_attention=True,
            threads=4,
            threads_batch=8,
            batch=1024,
            ubatch=256,
            rpc=("host:1",),
            extra=("--mlock",),
        ),
    )
    greedy = Sampling()
    sampled = Sampling(0.7, seed=2, top_k=40, top_p=0.95, min_p=0.1, repeat_penalty=1.1)

    weights, config = source("a.safetensors"), source("config.json")
    whole = ConvertStep("model", (weights, config), Converter(converter, Path("py")))
    yield "convert", whole
    to_f16 = replace(whole.converter, outtype="f16")
    yield "convert to f16", replace(whole, files=(weights,), converter=to_f16)

    trace = TraceStep(main, target, bare, 4096, prompts, 128, greedy, chat=False)
    given = RecordedTraceStep(source("a.trace"), 2, 128)
    yield "trace", trace
    chat = replace(trace, engine=ik, args=placed, sampling=sampled, chat=True)
    yield "trace placed, chat, sampled", chat
    yield "trace sampled by default", replace(trace, sampling=Sampling(0.7))
    yield "trace in wide batches", replace(trace, batch_width=2)
    yield "recorded trace", given

    calibration = TraceCorpusStep(main, bf16, trace)
    yield "trace corpus", calibration
    yield "trace corpus without special tokens", TraceCorpusStep(ik, bf16, given)

    matrix = ImatrixStep(main, bf16, corpus, 512, None, False, 0.95, "extend")
    yield "imatrix", matrix
    of_trace = ImatrixStep(ik, bf16, calibration, 1024, 40, True, 0.5, "fail", ("--ngl", "99"))
    yield "imatrix of a trace", of_trace

    draft = QuantizeStep(main, "Q4", bf16, None, "Q4_K_M", (), (("a.weight", "q4_K"),), 100)
    yield "quantize", draft
    rules = (TypeRule(r"blk\..*attn", "q8_0"), TypeRule("ffn", "iq1_kt"))
    ruled = QuantizeStep(ik, "IQ1", bf16, matrix, "iq1_kt", rules, (), None)
    yield "quantize by rules", replace(ruled, pure=True, allow_requantize=True)
    ready = replace(ruled, engine=main, quant="Q4", imatrix=source("imatrix.dat"), ftype="Q4_K_M")
    yield "quantize with a ready imatrix", ready
    shard = source("shard.gguf")
    theirs = PublishedTensor("a.weight", (256, 4), "q4_K", shard, "Thireus/model", "ab" * 32)
    published = QuantizeStep(main, "Q4", bf16, None, "Q4_K_M", (), (), None, published=(theirs,))
    yield "quantize of published tensors", published

    reading = main, bf16, target, bare, corpus, 512, None, False, 0.95
    of_head = HeadImatrixStep(*reading, "extend", trunk=matrix)
    yield "imatrix of a head", of_head
    head = replace(draft, imatrix=of_head, part="head")
    yield "quantize a head", head
    yield "splice a head", SpliceHeadStep("Q4", target, head, 100)

    ready_draft, mtp = source("draft.gguf"), source("mtp.gguf")
    yield "reduce", ReduceStep("Q4 experts=4", draft, Reduction(4))
    fewer = ReduceStep("a file prune_layers=3,7", ready_draft, Reduction(None, (3, 7)), 100)
    yield "reduce a file by layers", fewer
    yield "head", OutputTypeStep(main, "a file output=q4_K", ready_draft, "q4_K")

    base = PerplexityStep(main, "source", bf16, corpus, 512, 20, vocabulary_size=320)
    yield "perplexity", PerplexityStep(main, "Q4", draft, corpus, 512, None)
    yield "perplexity of the base", base
    yield "perplexity placed", PerplexityStep(ik, "Q4", draft, corpus, 256, 3, args=("-ngl", "99"))
    yield "divergence", DivergenceStep(main, "Q4", draft, base)
    yield "divergence placed", DivergenceStep(main, "Q4", draft, base, ("-ngl", "99"))

    yield "memory", MemoryStep(main, "Q4", draft, bare, 4096)
    yield "memory placed", MemoryStep(ik, "a file", ready_draft, placed, 4096)

    replay = ReplayStep(main, "Q4", draft, trace, bare)
    yield "replay", replay
    share = ReplayStep(ik, "a file", ready_draft, given, placed, 8, 32, ("first",))
    yield "replay of a share, rolled out", share
    own = ReplayStep(main, "source", bf16, trace, bare, top=TOP)
    yield "variant", VariantStep(replay, own)
    timed = CurveStep(main, "Q4", draft, trace, bare, False, (1, 2, 5))
    yield "variant curve", VariantCurveStep(replace(timed, turn=1))
    yield "replay that keeps the draft's likeliest tokens", replace(replay, top=64)
    yield "curve", timed
    by_slots = SlotCurveStep(main, "Q4", draft, trace, bare, False, (1, 5), (1, 2, 4))
    yield "curve by slots", by_slots
    of_mtp = replace(by_slots, model=draft, widths=(1,), sequences=(1, 2), head=True)
    yield "curve by slots of a head", of_mtp
    of_target = CurveStep(ik, "target", target, given, placed, True, (1, 5), turn=2)
    yield "curve of the target", of_target
    rows = RowsStep(main, target, bare, trace)
    yield "rows", rows
    yield "head replay", HeadReplayStep(main, "mtp", mtp, trace, rows, bare, 8, 0.3)
    yield "curve of a head", replace(timed, model=mtp, widths=(1, 2), head=True)
    verified = CurveStep(main, "target", target, trace, placed, True, (1, 5))
    yield "curve of a target with a head", replace(verified, plain=verified)
    yield "control", ControlStep(main, target, bare, trace, 5)
    yield "control placed", ControlStep(ik, target, placed, given, 17)

    served, settings = (main, "no draft", target, placed, 4096), DraftSettings(8, 1, 0.25)
    nothing = LiveStep(*served, None, bare, None, prompts, 128, greedy, False)
    drafted = LiveStep(*served, draft, bare, settings, prompts, 128, sampled, True, 2)
    drafted = replace(drafted, name="Q4")
    yield "live without a draft", nothing
    yield "live", drafted
    of_ik = replace(nothing, engine=ik, draft=draft, draft_args=placed, prompts=prompts[:1])
    yield "live on ik", replace(of_ik, settings=DraftSettings(4))
    yield "live in parallel", replace(drafted, slots=4)
    cache = NgramSettings(NgramType.CACHE)
    yield "live without a file", replace(nothing, ngram=cache)
    behind = replace(drafted, ngram=cache, draft_context=2048)
    yield "live behind n-grams, in a context of its own", behind
    yield "live head", replace(drafted, head=HeadKind.MTP)
    deal = DealStep((nothing, drafted), 0, True)
    later = replace(deal, servers=(nothing,), block=1, together=False)
    yield "deal", deal
    yield "deal in turns", later
    without, dealt = Dealt((deal, later), "no draft"), Dealt((deal,), "Q4")
    yield "compare", CompareStep(main, "Q4", target, placed, 4096, without, dealt)
    recounted = Profile.MAINLINE_2025, trace, dealt
    yield "selfcheck", RecountStep(main, "Q4", draft, placed, settings, *recounted)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Step[Any]]:
    """Every named step, on one and the same machine and with no variables for its engines."""
    monkeypatch.setattr(sys.modules[Step.__module__], "machine", lambda: MACHINE)
    for name in user_settings():
        monkeypatch.delenv(name)
    listed = list(steps(tmp_path))
    named = dict(listed)
    assert len(named) == len(listed), "two of one name"
    for step in named.values():
        assert step.key  # while the machine is the fixed one
    return named


def test_keys_are_those_of_every_store_there_is(found: dict[str, Step[Any]]) -> None:
    keys = {name: {"key": s.key, "parts": dict(s.key_parts)} for name, s in found.items()}
    if os.environ.get("COOK_UPDATE_SNAPSHOTS") == "1":
        GOLDEN.write_text(json.dumps(keys, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert list(keys) == list(golden)
    assert len({step.key for step in found.values()}) == len(found), "two of one key"
    for name, parts in keys.items():
        assert parts == golden[name], name


def test_every_step_of_the_package_has_its_golden_key(found: dict[str, Step[Any]]) -> None:
    for module in pkgutil.walk_packages(cook.__path__, "cook."):
        if module.name == "cook.__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "torch":  # only training needs it, and has no Step
                raise
    exist = {kind for kind in subclasses(Step) if kind.__module__.startswith("cook.")}
    exist = {kind for kind in exist if not isabstract(kind)}
    assert exist == {type(step) for step in found.values()}


def test_a_raw_flag_makes_another_key(found: dict[str, Step[Any]]) -> None:
    kinds = (TraceStep, ReplayStep, CurveStep, ControlStep, RecountStep, RowsStep, HeadReplayStep)
    loaded = {name: step for name, step in found.items() if isinstance(step, kinds)}
    assert {type(step) for step in loaded.values()} == set(kinds)
    for name, step in loaded.items():
        flagged = replace(step, args=replace(step.args, extra=("--rope-freq-base", "9")))
        assert flagged.key != step.key, name


def test_what_times_hang_on_is_in_the_keys_of_timed_steps_alone(
    found: dict[str, Step[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = found["variant curve"]
    before = {name: step.key for name, step in found.items()}
    with monkeypatch.context() as patched:
        patched.setattr(CurveStep, "version", CurveStep.version + 1)
        assert replace(variant).key != variant.key, "it is a curve"
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    moved = {name for name, step in found.items() if replace(step).key != before[name]}
    own = {name for name, step in found.items() if step.timed and step.uses() is not None}
    assert own <= moved
    rest = {n for n in set(found) - own if not any(i.timed for i in closure([found[n]]).values())}
    assert not rest & moved


def test_a_step_has_its_key_on_every_machine_that_it_is_sent_to(
    found: dict[str, Step[Any]],
) -> None:
    for name, step in found.items():
        sent = pickle.loads(pickle.dumps(step))  # noqa: S301
        assert replace(sent).key == step.key, name  # reckoned there, not brought along


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)
