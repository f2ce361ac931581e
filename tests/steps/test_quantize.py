"""A candidate of tensors that were made one by one is the file that llama-quantize writes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.base import QuantizeJob, QuantizeResult, TypeRule
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import TextJob
from cook.engines.worker import compile
from cook.errors import PrerequisiteError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.gguf_writer import SplitLimit, copy_of, encode, write_gguf_file, write_split
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_dat, write_gguf
from cook.formats.quant_types import Flavour, needs_imatrix, stored_type
from cook.graph.execute import Outcomes
from cook.graph.step import source
from cook.graph.store import Store
from cook.paths import demo_dir
from cook.recipe.rules import quantizable
from cook.steps.quantize import TENSOR_KIND, QuantizeStep
from cook.steps.work import MODEL_FILE, model_paths
from tests.workbench import run as run_steps
from tests.workbench import workbench
from tools.random_model import Shape, write_random_model

SHAPE = Shape(vocabulary=640, width=256, layers=1, hidden=512, experts=5)
PATHS = {"quantize.imatrix.file", "quantize.imatrix.dataset"}
REST = "q8_0"
"""Of the embeddings, which no imatrix covers, where the type in question needs one."""
SOME = {
    Flavour.LLAMA_CPP: ("q4_0", "q4_K", "q6_K", "iq2_xs", "iq3_s", "iq4_nl"),
    Flavour.IK_LLAMA_CPP: ("q4_K", "iq1_kt", "iq4_ks", "iq4_k_r4", "q8_0_r8", "iq2_kl"),
}
"""In ordinary tests; all of them under soak."""


@dataclass(frozen=True)
class Models:
    """One random mixture of experts in several forms, and an imatrix of it by format."""

    folder: Path

    def whole(self, type_name: str = "F16") -> Path:
        path = self.folder / f"model-{type_name}.gguf"
        if not path.exists():
            write_random_model(path, replace(SHAPE, type=type_name))
        return path

    def split(self) -> Path:
        """Three shards."""
        file = read_gguf(self.whole())
        return write_split(
            self.folder / "split.gguf",
            file.raw_metadata(),
            [copy_of(file, t.name) for t in file.tensors],
            SplitLimit(max_tensors=5),
            Flavour.LLAMA_CPP,
        )[0]

    def imatrix(self, flavour: Flavour) -> Path:
        path = self.folder / ("imatrix.gguf" if flavour is Flavour.LLAMA_CPP else "imatrix.dat")
        if not path.exists():
            rng = np.random.default_rng(3)
            entries = {}
            for tensor in read_gguf(self.whole()).tensors:
                if len(tensor.shape) > 1 and tensor.name != "token_embd.weight":
                    experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
                    sums = rng.random((experts, tensor.shape[0])).astype(np.float32) * 100
                    entries[tensor.name] = ImatrixEntry(sums, np.full(experts, 7, np.float32))
            made = Imatrix(entries, ("/home/somebody/corpus.txt",), 3, 512, "gguf")
            (write_gguf if flavour is Flavour.LLAMA_CPP else write_dat)(made, path)
        return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def step_of(
    engine: Any, model: Path, type_name: str, imatrix: Path | None, **more: Any
) -> QuantizeStep:
    """All that is quantized as ``type_name``, but for embeddings that cannot be."""
    file = read_gguf(model)
    types = {}
    for tensor in file.tensors:
        types[tensor.name] = tensor.type_name
        if quantizable(tensor.name, tensor.shape, tensor.type_name, engine.flavour, "llama"):
            bare = imatrix is None or tensor.name == "token_embd.weight"
            base = stored_type(tensor.name, tensor.shape, type_name, engine.flavour)
            ends = bare and needs_imatrix(tensor.name, base, "Q8_0", engine.flavour)
            types[tensor.name] = REST if ends else base
    rules = [TypeRule(f"^{n.replace('.', '[.]')}$", t) for n, t in types.items() if t == REST]
    return QuantizeStep(
        engine=engine,
        quant=type_name,
        source=source(file.shards),
        imatrix=source([imatrix]) if imatrix is not None else None,
        ftype="Q8_0",
        rules=(*rules, TypeRule(".*", type_name)),
        expected=tuple(types.items()),
        predicted_tensor_bytes=1,
        **more,
    )


def by_tool(step: QuantizeStep, folder: Path, threads: int = 2) -> GgufFile:
    """What llama-quantize makes of the same."""
    output = folder / f"{step.quant}-{step.imatrix is not None}.gguf"
    imatrix = step.imatrix.path if step.imatrix is not None else None
    job = step.job(output, imatrix, threads)
    tool_runs.quantize(step.engine, job, Supervisor(folder / "logs"))
    return read_gguf(output)


def run(steps: Sequence[QuantizeStep], home: Path, threads: int = 2) -> Outcomes:
    return run_steps(home, *steps, threads=threads)


def file_of(outcomes: Outcomes, step: QuantizeStep) -> GgufFile:
    assert step.key not in outcomes.failures, outcomes.failures[step.key].error
    return read_gguf(model_paths(outcomes.artifact(step))[0])


def made(step: QuantizeStep, home: Path, threads: int = 2) -> GgufFile:
    return file_of(run([step], home, threads), step)


def require_same_data(mine: GgufFile, theirs: GgufFile) -> None:
    for tensor in theirs.tensors:
        assert mine.read_tensor_bytes(tensor.name) == theirs.read_tensor_bytes(tensor.name)


def require_same(mine: GgufFile, theirs: GgufFile) -> None:
    """The whole file, but for paths and what cook says of itself."""
    assert mine.tensors == theirs.tensors
    own = {key for key in mine.metadata if key.startswith("cook.")}
    assert [key for key in mine.metadata if key not in own] == list(theirs.metadata)
    for key in theirs.metadata:
        if key not in PATHS:
            assert mine.raw_value(key) == theirs.raw_value(key), key
    require_same_data(mine, theirs)


def require_types(engine: Any, models: Models, some: Sequence[str], tmp_path: Path) -> None:
    """Each with an imatrix, and without where it needs none."""
    for name in some:
        steps = [step_of(engine, models.whole(), name, models.imatrix(engine.flavour))]
        if not needs_imatrix("x.weight", name, "Q8_0", engine.flavour):
            steps.append(step_of(engine, models.whole(), name, None))
        for step in steps:
            require_same(made(step, tmp_path), by_tool(step, tmp_path))


def test_types_are_those_of_the_tool(engine: Any, models: Models, tmp_path: Path) -> None:
    require_types(engine, models, SOME[engine.flavour], tmp_path)


@pytest.mark.soak
def test_every_type_is_that_of_the_tool(engine: Any, models: Models, tmp_path: Path) -> None:
    require_types(engine, models, sorted(engine.facts.types), tmp_path)


@pytest.mark.parametrize("type_name", ["F32", "BF16", "Q8_0"])
def test_any_source_type(engine: Any, models: Models, tmp_path: Path, type_name: str) -> None:
    step = step_of(engine, models.whole(type_name), "q4_K", None, allow_requantize=True)
    require_same(made(step, tmp_path), by_tool(step, tmp_path))


def test_a_split_source(engine: Any, models: Models, tmp_path: Path) -> None:
    step = step_of(engine, models.split(), "q5_K", models.imatrix(engine.flavour))
    assert len(read_gguf(step.source.path).shards) == 3
    require_same(made(step, tmp_path), by_tool(step, tmp_path))


def test_a_split_candidate(engine: Any, models: Models, tmp_path: Path) -> None:
    """The tensors of one file, made once for both; the shards say which they are."""
    whole = step_of(engine, models.whole(), "q4_K", models.imatrix(engine.flavour))
    for split in (SplitLimit(max_tensors=4), SplitLimit(300_000)):
        step = replace(whole, split=split)
        assert step.key != whole.key
        outcomes = run([whole, step], tmp_path)
        one, several = outcomes.artifact(whole), outcomes.artifact(step)
        assert one.pieces == several.pieces
        paths = model_paths(several)
        assert len(paths) > 2
        assert [f.name for f in several.files] == [p.name for p in paths]
        mine, theirs = file_of(outcomes, step), file_of(outcomes, whole)
        assert [t.name for t in mine.tensors] == [t.name for t in theirs.tensors]
        assert mine.raw_metadata() == theirs.raw_metadata()
        require_same_data(mine, theirs)
        assert outcomes.result(step) is not None
    assert list(Store(tmp_path / "store").verify()) == []


@pytest.mark.engine
def test_a_damaged_shard_is_made_again(bundled: Any, models: Models, tmp_path: Path) -> None:
    step = step_of(bundled, models.whole(), "q4_0", None, split=SplitLimit(max_tensors=5))
    before = [path.read_bytes() for path in made(step, tmp_path).shards]
    store = Store(tmp_path / "store")
    (artifact,) = (a for a in store.entries() if a.kind == "quantize")
    victim = model_paths(artifact)[1]
    os.truncate(victim, victim.stat().st_size - 1)
    (fault,) = store.verify()
    assert fault.path == victim
    assert store.mend([fault]) == ()
    assert not artifact.directory.exists()
    assert [path.read_bytes() for path in made(step, tmp_path).shards] == before


@pytest.mark.ik
def test_more_shards_than_ik_has_room_for_are_told(ik_engine: Any, tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "m.gguf", replace(SHAPE, layers=6))
    step = step_of(ik_engine, model, "q8_0", None, split=SplitLimit(max_tensors=1))
    result = run([step], tmp_path).result(step)
    shards = len(read_gguf(model).tensors)
    assert shards > 60
    assert [w for w in result.warnings if w.startswith(f"{shards} shards: ik_llama.cpp loads")]


@pytest.mark.engine
def test_threads_and_memory_make_no_difference(
    bundled: Any, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a chunk of one thread alone is more than what is allowed."""
    step = step_of(bundled, models.whole(), "iq4_nl", models.imatrix(bundled.flavour))
    expected = made(step, tmp_path / "one", threads=1)
    for home, gib in (("few", "0.001"), ("none", "1e-9")):
        monkeypatch.setenv("COOK_MEMORY", gib)
        found = made(step, tmp_path / home, threads=3)
        assert found.path.read_bytes() == expected.path.read_bytes()


def test_it_scores_as_the_file_of_the_tool(engine: Any, tmp_path: Path) -> None:
    """Of the tool's file, of cook's, and of cook's in shards."""
    step = step_of(engine, demo_dir() / "draft-f16.gguf", "q4_K", None)
    split = replace(step, split=SplitLimit(max_tensors=9))
    files = by_tool(step, tmp_path), made(step, tmp_path), made(split, tmp_path)
    assert [len(file.shards) > 1 for file in files] == [False, False, True]
    corpus = demo_dir() / "data" / "evaluation.txt"
    jobs = [TextJob(f.path, corpus, 512, 1, 1) for f in files]
    theirs, *mine = (
        tool_runs.perplexity(engine, job, Supervisor(tmp_path / "logs")) for job in jobs
    )
    for found in mine:
        assert (found.perplexity, found.error) == (theirs.perplexity, theirs.error)


@pytest.mark.engine
def test_the_source_s_alignment_is_kept(bundled: Any, models: Models, tmp_path: Path) -> None:
    file = read_gguf(models.whole())
    wide = tmp_path / "wide.gguf"
    metadata = file.raw_metadata()
    metadata["general.alignment"] = encode(256)
    write_gguf_file(wide, metadata, [copy_of(file, t.name) for t in file.tensors], alignment=256)
    usual = made(step_of(bundled, models.whole(), "q5_0", None), tmp_path)
    for split in (None, SplitLimit(max_tensors=4)):
        found = made(step_of(bundled, wide, "q5_0", None, split=split), tmp_path)
        assert found.alignment == 256
        assert all(t.offset % 256 == 0 for t in found.tensors if t.shard == 0)
        require_same_data(found, usual)


@pytest.mark.engine
@pytest.mark.parametrize("rule", ["attn", "^output[.]weight$"])
def test_candidates_share_tensors(bundled: Any, models: Models, tmp_path: Path, rule: str) -> None:
    """The second makes only what differs; the first one's part of the store is not touched."""
    first = step_of(bundled, models.whole(), "q4_K", None)
    changed = {n: "q8_0" for n, t in first.expected if t == "q4_K" and re.search(rule, n)}
    second = replace(
        first,
        quant="another",
        rules=(TypeRule(rule, "q8_0"), *first.rules),
        expected=tuple((dict(first.expected) | changed).items()),
    )
    assert sum(second.shared_bytes().values()) > sum(first.shared_bytes().values())
    outcomes = run([first, second], tmp_path)
    store = Store(tmp_path / "store")
    one, other = outcomes.artifact(first).pieces, outcomes.artifact(second).pieces
    assert len(one) == len(other) == len(first.shared_bytes())
    assert len(one - other) == len(changed) > 0
    assert {a.key for a in store.entries() if a.kind == TENSOR_KIND} == one | other
    users = store.users()
    assert [len(users[key]) for key in sorted(one & other)] == [2] * len(one & other)
    for step in (first, second):
        require_same(file_of(outcomes, step), by_tool(step, tmp_path))
    # Only what was all made again says how long that takes.
    assert outcomes.artifact(second).nominal_s is None


@pytest.mark.engine
def test_the_same_bytes_wherever_it_is_made(bundled: Any, models: Models, tmp_path: Path) -> None:
    """Another home, and an imatrix that says other paths of where it comes from."""
    imatrix = models.imatrix(bundled.flavour)
    step = step_of(bundled, models.whole(), "iq2_s", imatrix)
    elsewhere = tmp_path / "elsewhere" / imatrix.name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(imatrix.read_bytes().replace(b"/home/somebody", b"/home/anybodys"))
    other = replace(step, imatrix=source([elsewhere]))
    assert other.key != step.key
    files = made(step, tmp_path / "a"), made(other, tmp_path / "b")
    assert files[0].path.read_bytes() == files[1].path.read_bytes()
    own = {k: str(v) for k, v in files[0].metadata.items() if k.startswith(("cook.", "quantize."))}
    assert own["quantize.imatrix.dataset"] == "corpus.txt"
    assert own["quantize.imatrix.file"] == "imatrix.gguf"
    assert not [text for text in own.values() if "/" in text]
    assert own["cook.source"] == step.source.digest
    assert set(own) >= {"cook.version", "cook.imatrix", "cook.quantizer"}


@pytest.mark.engine
def test_a_source_with_what_is_no_number_is_refused(bundled: Any, tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "m.gguf", SHAPE)
    place = read_gguf(model).place("blk.0.ffn_up_exps.weight")
    with model.open("r+b") as file:
        file.seek(place.offset + 256 * 2 * 600)
        file.write(b"\xff\x7f")  # an f16 that is not a number
    step = step_of(bundled, model, "q4_0", None)
    failure = run([step], tmp_path).failures[step.key]
    assert "not numbers in rows" in failure.error.message
    store = Store(tmp_path / "store")
    assert not [a for a in store.entries() if a.kind == "quantize"]
    assert list(store.verify()) == []


@pytest.mark.engine
@pytest.mark.parametrize("why", ["no headers", "no types"])
def test_llama_quantize_where_the_library_cannot_be_asked(
    bundled: Any, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    step = step_of(bundled, models.whole(), "q4_K", models.imatrix(bundled.flavour))
    if why == "no types":
        step = replace(step, expected=step.expected[:3])
    else:

        def locate(engine: Any) -> Any:
            raise PrerequisiteError("it has no headers")

        monkeypatch.setattr(compile, "locate", locate)
    outcomes = run([step], tmp_path)
    result = outcomes.result(step)
    assert outcomes.artifact(step).pieces == frozenset()
    assert sum("it has no headers" in w for w in result.warnings) == (why == "no headers")
    file = file_of(outcomes, step)
    require_same(file, by_tool(step, tmp_path))
    assert file.string("quantize.imatrix.file") == "imatrix.gguf"
    assert file.string("quantize.imatrix.dataset") == "corpus.txt"
    assert [f.name for f in outcomes.artifact(step).files] == [MODEL_FILE]
    split = replace(step, split=SplitLimit(max_tensors=9))
    shards = made(split, tmp_path)
    assert len(shards.shards) == -(-len(file.tensors) // 9)
    require_same_data(shards, file)


def test_usual_warnings_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, models: Models) -> None:
    jobs: list[QuantizeJob] = []
    news = "blk.0.attn_q.weight: no imatrix data"

    def quantize(_engine: object, job: QuantizeJob, _: Supervisor) -> QuantizeResult:
        jobs.append(job)
        job.output.write_bytes(models.whole().read_bytes())
        usual = "token_embd.weight: no imatrix data"
        return QuantizeResult({}, 9, 1.0, 1, ("q",), (usual, news, "output.weight: odd shape"))

    monkeypatch.setattr(tool_runs, "quantize", quantize)
    engine: Any = SimpleNamespace(
        name="e",
        flavour=Flavour.LLAMA_CPP,
        identity=SimpleNamespace(digest="d"),
        facts=SimpleNamespace(types={}, ftypes=(), files={}),
        quantize_command=lambda job: ("q",),
    )
    step = QuantizeStep(
        engine=engine,
        quant="mine",
        source=source([models.whole()]),
        imatrix=source([models.imatrix(Flavour.LLAMA_CPP)]),
        ftype="Q4_K_M",
        rules=(TypeRule("ffn_.*", "q6_K"),),
        expected=(("blk.0.ffn_up.weight", "q6_K"),),
        predicted_tensor_bytes=77,
    )
    bench = workbench(tmp_path, threads=3)
    assert step.run(bench).warnings == (news, "output.weight: odd shape")
    (job,) = jobs
    assert (job.threads, job.ftype, job.rules) == (3, "Q4_K_M", step.rules)
    assert step.predicted_bytes() == 77
