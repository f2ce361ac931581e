"""Every Step's key, as the store knows it: kind, version and params decide what is found again.

A key that changes makes every user build again what took hours, so it changes only where the
result does, with the step's version. COOK_UPDATE_SNAPSHOTS=1 writes the golden file anew.
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
from cook.engines.speculation import NgramSettings, NgramType
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour
from cook.formats.reduction import Reduction
from cook.formats.sampling import Sampling
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
from cook.steps.head_imatrix import HeadImatrixStep
from cook.steps.head_replay import HeadReplayStep
from cook.steps.imatrix import ImatrixStep, TraceCorpusStep
from cook.steps.live import LiveStep
from cook.steps.output_type import OutputTypeStep
from cook.steps.quantize import PublishedTensor, QuantizeStep
from cook.steps.replay import ReplayStep
from cook.steps.target_rows import RowsStep
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
    placed = ModelArgs(
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
    )
    greedy = Sampling()
    sampled = Sampling(0.7, seed=2, top_k=40, top_p=0.95, min_p=0.1, repeat_penalty=1.1)

    yield (
        "convert",
        ConvertStep(
            "model",
            (source("a.safetensors"), source("config.json")),
            Converter(converter, Path("py")),
        ),
    )
    yield (
        "convert to f16",
        ConvertStep("model", (source("a.safetensors"),), Converter(converter, Path("py"), "f16")),
    )

    trace = TraceStep(main, target, ModelArgs(), 4096, prompts, 128, greedy, chat=False)
    given = RecordedTraceStep(source("a.trace"), 2, 128)
    yield "trace", trace
    yield (
        "trace placed, chat, sampled",
        TraceStep(ik, target, placed, 4096, prompts, 128, sampled, chat=True),
    )
    yield (
        "trace sampled by default",
        TraceStep(main, target, ModelArgs(), 4096, prompts, 128, Sampling(0.7), chat=False),
    )
    yield "trace in wide batches", replace(trace, batch_width=2)
    yield "recorded trace", given

    calibration = TraceCorpusStep(main, bf16, trace)
    yield "trace corpus", calibration
    yield "trace corpus without special tokens", TraceCorpusStep(ik, bf16, given)

    matrix = ImatrixStep(main, bf16, corpus, 512, None, False, 0.95, "extend")
    yield "imatrix", matrix
    yield (
        "imatrix of a trace",
        ImatrixStep(ik, bf16, calibration, 1024, 40, True, 0.5, "fail", ("--ngl", "99")),
    )

    draft = QuantizeStep(main, "Q4", bf16, None, "Q4_K_M", (), (("a.weight", "q4_K"),), 100)
    yield "quantize", draft
    rules = (TypeRule(r"blk\..*attn", "q8_0"), TypeRule("ffn", "iq1_kt"))
    yield (
        "quantize by rules",
        QuantizeStep(
            ik, "IQ1", bf16, matrix, "iq1_kt", rules, (), None, pure=True, allow_requantize=True
        ),
    )
    yield (
        "quantize with a ready imatrix",
        QuantizeStep(main, "Q4", bf16, source("imatrix.dat"), "Q4_K_M", rules, (), None),
    )

    theirs = PublishedTensor(
        "a.weight", (256, 4), "q4_K", source("shard.gguf"), "Thireus/model", "ab" * 32
    )
    yield (
        "quantize of published tensors",
        QuantizeStep(main, "Q4", bf16, None, "Q4_K_M", (), (), None, published=(theirs,)),
    )

    of_head = HeadImatrixStep(
        *(main, bf16, target, ModelArgs(), corpus, 512, None, False, 0.95, "extend"), trunk=matrix
    )
    yield "imatrix of a head", of_head
    head = replace(draft, imatrix=of_head, part="head")
    yield "quantize a head", head
    yield "splice a head", SpliceHeadStep("Q4", target, head, 100)

    yield "reduce", ReduceStep("Q4 experts=4", draft, Reduction(4))
    yield (
        "reduce a file by layers",
        ReduceStep("a file prune_layers=3,7", source("draft.gguf"), Reduction(None, (3, 7)), 100),
    )

    yield "head", OutputTypeStep(main, "a file output=q4_K", source("draft.gguf"), "q4_K")

    base = PerplexityStep(main, "source", bf16, corpus, 512, 20, vocabulary_size=320)
    yield "perplexity", PerplexityStep(main, "Q4", draft, corpus, 512, None)
    yield "perplexity of the base", base
    yield "perplexity placed", PerplexityStep(ik, "Q4", draft, corpus, 256, 3, args=("-ngl", "99"))
    yield "divergence", DivergenceStep(main, "Q4", draft, base)
    yield "divergence placed", DivergenceStep(main, "Q4", draft, base, ("-ngl", "99"))

    yield "memory", MemoryStep(main, "Q4", draft, ModelArgs(), 4096)
    yield "memory placed", MemoryStep(ik, "a file", source("draft.gguf"), placed, 4096)

    yield "replay", ReplayStep(main, "Q4", draft, trace, ModelArgs())
    yield (
        "replay of a share, rolled out",
        ReplayStep(ik, "a file", source("draft.gguf"), given, placed, 8, 32, ("first",)),
    )
    own = ReplayStep(main, "source", bf16, trace, ModelArgs(), top=TOP)
    yield "variant", VariantStep(ReplayStep(main, "mix", draft, trace, ModelArgs()), own)
    timed = CurveStep(main, "mix", draft, trace, ModelArgs(), False, (1, 2, 5), 1)
    yield "variant curve", VariantCurveStep(timed)
    yield (
        "replay that keeps the draft's likeliest tokens",
        ReplayStep(main, "Q4", draft, trace, ModelArgs(), top=64),
    )
    yield "curve", CurveStep(main, "Q4", draft, trace, ModelArgs(), False, (1, 2, 5))
    yield (
        "curve by slots",
        SlotCurveStep(main, "Q4", draft, trace, ModelArgs(), False, (1, 5), (1, 2, 4)),
    )
    yield (
        "curve by slots of a head",
        SlotCurveStep(main, "mtp", draft, trace, ModelArgs(), False, (1,), (1, 2), head=True),
    )
    yield (
        "curve of the target",
        CurveStep(ik, "target", target, given, placed, True, (1, 5), turn=2),
    )
    rows = RowsStep(main, target, ModelArgs(), trace)
    yield "rows", rows
    yield (
        "head replay",
        HeadReplayStep(main, "mtp", source("mtp.gguf"), trace, rows, ModelArgs(), 8, 0.3),
    )
    yield (
        "curve of a head",
        CurveStep(main, "mtp", source("mtp.gguf"), trace, ModelArgs(), False, (1, 2), head=True),
    )
    verified = CurveStep(main, "target", target, trace, placed, True, (1, 5))
    yield (
        "curve of a target with a head",
        replace(verified, name="target with a head", plain=verified),
    )
    yield "control", ControlStep(main, target, ModelArgs(), trace, 5)
    yield "control placed", ControlStep(ik, target, placed, given, 17)

    nothing = LiveStep(
        *(main, "no draft", target, placed, 4096, None, ModelArgs(), None),
        *(prompts, 128, greedy, False),
    )
    settings = DraftSettings(8, 1, 0.25)
    drafted = LiveStep(
        *(main, "Q4", target, placed, 4096, draft, ModelArgs(), settings),
        *(prompts, 128, sampled, True, 2),
    )
    yield "live without a draft", nothing
    yield "live", drafted
    yield (
        "live on ik",
        LiveStep(
            *(ik, "Q4", target, placed, 4096, draft, placed, DraftSettings(4)),
            *(prompts[:1], 128, greedy, False),
        ),
    )
    yield "live in parallel", replace(drafted, slots=4)
    yield "live without a file", replace(nothing, ngram=NgramSettings(NgramType.CACHE))
    yield (
        "live behind n-grams, in a context of its own",
        replace(drafted, ngram=NgramSettings(NgramType.CACHE), draft_context=2048),
    )
    yield "live head", replace(drafted, head=HeadKind.MTP)
    deal = DealStep((nothing, drafted), 0, True)
    later = replace(deal, servers=(nothing,), block=1, together=False)
    yield "deal", deal
    yield "deal in turns", later
    without, dealt = Dealt((deal, later), "no draft"), Dealt((deal,), "Q4")
    yield "compare", CompareStep(main, "Q4", target, placed, 4096, without, dealt)
    yield (
        "selfcheck",
        RecountStep(main, "Q4", draft, placed, settings, Profile.MAINLINE_2025, trace, dealt),
    )


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Step[Any]]:
    """Every named step, on one and the same machine."""
    monkeypatch.setattr(sys.modules[Step.__module__], "machine", lambda: MACHINE)
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


def test_keys_differ(found: dict[str, Step[Any]]) -> None:
    assert len({step.key for step in found.values()}) == len(found)


def test_a_raw_flag_makes_another_key(found: dict[str, Step[Any]]) -> None:
    loaded = {
        name: step
        for name, step in found.items()
        if isinstance(
            step,
            (
                TraceStep,
                ReplayStep,
                CurveStep,
                ControlStep,
                RecountStep,
                RowsStep,
                HeadReplayStep,
            ),
        )
    }
    assert loaded
    for name, step in loaded.items():
        flagged = replace(step, args=replace(step.args, extra=("--rope-freq-base", "9")))
        assert flagged.key != step.key, name


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
