"""The importance matrix of a head, which llama-imatrix has not: complete, right, and what low-bit
types need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.base import ModelArgs, TypeRule
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import TextJob
from cook.engines.worker.loading import model_load
from cook.errors import StepError
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.heads import head_alone
from cook.formats.imatrix_file import read_imatrix
from cook.graph.execute import Outcomes
from cook.graph.step import Workbench, source
from cook.steps.imatrix import HeadImatrixStep, ImatrixStep, Otherwise
from cook.steps.quantize import QuantizeStep
from cook.steps.work import model_paths
from tests.engines.tiny_heads import EXPERTS, FFN, HEADS, WIDTH, write_tiny_heads
from tests.steps.test_quantize import require_same
from tests.workbench import run

HEAD = HEADS * 64
COLUMNS = {
    **{f"blk.2.attn_{name}.weight": WIDTH for name in "qkv"},
    "blk.2.attn_output.weight": HEAD,
    "blk.2.ffn_gate_inp.weight": WIDTH,
    "blk.2.ffn_gate_exps.weight": WIDTH,
    "blk.2.ffn_up_exps.weight": WIDTH,
    "blk.2.ffn_down_exps.weight": FFN,
    "blk.2.ffn_gate_shexp.weight": WIDTH,
    "blk.2.ffn_up_shexp.weight": WIDTH,
    "blk.2.ffn_down_shexp.weight": FFN,
    "blk.2.nextn.eh_proj.weight": 2 * WIDTH,
}
"""What is multiplied in the head's block, with its columns."""
CONTEXT = 64
ARGS = ModelArgs(threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_tiny_heads(tmp_path_factory.mktemp("heads"))
    words = (f"line {n} of the text says {n * n} and {n % 7} more words" for n in range(400))
    (found / "text.txt").write_text("\n".join(words))
    return found


def step(engine: Any, folder: Path, otherwise: Otherwise = "warn", **more: Any) -> HeadImatrixStep:
    whole, corpus = (source([folder / name]) for name in ("whole.gguf", "text.txt"))
    chunks, minimum = more.pop("chunks", 6), more.pop("minimum", 0.5)
    args = (engine, whole, whole, ARGS, corpus, CONTEXT, chunks, False, minimum, otherwise)
    return HeadImatrixStep(*args, **more)


def matrix_of(outcomes: Outcomes, made: HeadImatrixStep) -> Any:
    assert made.key not in outcomes.failures, outcomes.failures[made.key].error
    return read_imatrix(outcomes.artifact(made).file(made.file_name))


@pytest.mark.engine
def test_every_matrix_of_the_block_has_an_entry(bundled: Any, folder: Path, tmp_path: Path) -> None:
    """The same of a head that is cut out of its model and of one that comes alone."""
    inside = step(bundled, folder)
    alone = replace(inside, model=source([folder / "head.gguf"]), process_output=True)
    outcomes = run(tmp_path, inside, alone)
    result, found = outcomes.result(inside), matrix_of(outcomes, inside)
    assert {name: entry.sums.shape[1] for name, entry in found.entries.items()} == COLUMNS
    experts = [e for n, e in found.entries.items() if "_exps" in n]
    assert [len(entry.counts) for entry in experts] == [EXPERTS] * 3
    assert {e.counts.sum() for e in experts} == {2 * 6 * CONTEXT}, "two experts a token"
    assert found.entries["blk.2.attn_q.weight"].counts.tolist() == [6 * CONTEXT]
    assert (result.chunks, result.entries, result.skipped) == (6, len(COLUMNS), ())
    assert result.experts_total == 3 * EXPERTS
    theirs = matrix_of(outcomes, alone)
    assert set(theirs.entries) == {*COLUMNS, "output.weight"}
    for name in COLUMNS:
        assert np.array_equal(theirs.entries[name].sums, found.entries[name].sums), name


def normed(rows: Any) -> Any:
    return rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6)


@pytest.mark.engine
def test_it_adds_up_what_goes_in(
    bundled: Any, folder: Path, tmp_path: Path, bench: Workbench
) -> None:
    """Into `eh_proj` go a token's embedding and the target's row before it, both normed."""
    made = step(bundled, folder, chunks=2)
    outcomes = run(tmp_path / "home", made)
    file = read_gguf(folder / "whole.gguf")
    raw = np.frombuffer(file.read_tensor_bytes("token_embd.weight"), np.float16)
    embeddings = raw.reshape(-1, WIDTH).astype(np.float64)
    wanted = np.zeros(2 * WIDTH)
    load = model_load(bundled, file.path, ARGS, CONTEXT)
    with bench.workers.loaded(bundled, load) as (worker, info):
        tokens = worker.tokenize((folder / "text.txt").read_text(), parse_special=False)
        for chunk in range(2):
            part = list(tokens[chunk * CONTEXT : (chunk + 1) * CONTEXT])
            if info.add_bos and info.bos is not None:
                part[0] = info.bos
            rows = worker.rows(part, [0])
            before = np.concatenate([np.zeros((1, WIDTH)), rows[:-1]])
            read = np.concatenate([normed(embeddings[part]), normed(before)], 1)
            wanted += (read**2).sum(0)
    bench.workers.close()
    (sums,) = matrix_of(outcomes, made).entries["blk.2.nextn.eh_proj.weight"].sums
    assert sums == pytest.approx(wanted, rel=1e-3, abs=1e-2)


@pytest.mark.engine
def test_the_engines_own_tool_gives_none(bundled: Any, folder: Path, tmp_path: Path) -> None:
    """A build that learns it is news: then cook need not collect it."""
    job = TextJob(folder / "whole.gguf", folder / "text.txt", CONTEXT, 4, 1)
    output = tmp_path / "imatrix.gguf"
    tool_runs.imatrix(bundled, job, output, Supervisor(tmp_path / "logs"), process_output=False)
    names = list(read_imatrix(output).entries)
    assert [name for name in names if name.startswith("blk.2.")] == []
    assert any(name.startswith("blk.1.") for name in names)


@pytest.mark.engine
def test_it_is_joined_with_that_of_the_trunk(bundled: Any, folder: Path, tmp_path: Path) -> None:
    model, corpus = source([folder / "whole.gguf"]), source([folder / "text.txt"])
    trunk = ImatrixStep(bundled, model, corpus, CONTEXT, 4, True, 0.1, "warn")
    made = step(bundled, folder, trunk=trunk)
    outcomes = run(tmp_path, made)
    found = matrix_of(outcomes, made)
    own = read_imatrix(outcomes.artifact(trunk).file(trunk.file_name))
    assert set(found.entries) == {*own.entries, *COLUMNS}
    for name, entry in own.entries.items():
        assert np.array_equal(found.entries[name].sums, entry.sums)


@pytest.mark.engine
def test_it_is_extended_until_experts_were_seen(bundled: Any, folder: Path, tmp_path: Path) -> None:
    """A chunk of 8 tokens chooses 16 times among 8 experts."""
    made = replace(step(bundled, folder, "extend", chunks=1, minimum=1.0), context=8)
    refused = replace(made, otherwise="fail")
    outcomes = run(tmp_path, made, refused)
    result = outcomes.result(made)
    assert result.warnings[0].endswith("of the head's experts have data; extended to 2 chunks")
    assert result.chunks > 1
    assert result.experts_covered == result.experts_total
    message = outcomes.failures[refused.key].error.message
    assert message.endswith("of the head's experts have data, asked for 100%")


@pytest.mark.engine
def test_a_text_that_is_too_short_is_refused(bundled: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a few words")
    made = replace(step(bundled, folder), corpus=source([tmp_path / "short.txt"]))
    error = run(tmp_path, made).failures[made.key].error
    assert isinstance(error, StepError)
    assert "tokens, and a chunk 64" in error.message


def quantized(
    engine: Any, path: Path, types: dict[str, str], imatrix: Any = None, ftype: str = "Q8_0"
) -> QuantizeStep:
    """The head in ``path``, its block as the types say."""
    kept = head_alone(read_gguf(path))
    expected = tuple((t.name, types.get(t.name, t.type_name)) for t in kept.tensors)
    given = source([path])
    rules = (TypeRule(f"^{n.replace('.', '[.]')}$", t) for n, t in types.items() if t != "f32")
    return QuantizeStep(engine, "H", given, imatrix, ftype, tuple(rules), expected, 1, part="head")


def block_as(file: GgufFile, type_name: str) -> dict[str, str]:
    quantizable = {**dict.fromkeys(COLUMNS, type_name), "blk.2.ffn_gate_inp.weight": "f32"}
    return {name: quantizable[name] for name in quantizable if file.find(name)}


@pytest.mark.engine
def test_low_bit_heads_need_it(bundled: Any, folder: Path, tmp_path: Path) -> None:
    """Of a whole model and of its head alone one file comes, and it runs."""
    matrix = step(bundled, folder)
    types = block_as(read_gguf(folder / "whole.gguf"), "iq2_xxs")
    types |= dict.fromkeys(("token_embd.weight", "output.weight"), "q8_0")
    made = quantized(bundled, folder / "whole.gguf", types, matrix)
    alone = quantized(bundled, folder / "head.gguf", types, matrix)
    bare = replace(made, imatrix=None)
    outcomes = run(tmp_path, made, alone, bare)
    error: Any = outcomes.failures[bare.key].error
    log = error.log.read_text(errors="replace")[-2000:] if error.log else ""
    assert "importance matrix" in error.message + log
    assert made.key not in outcomes.failures, outcomes.failures[made.key].error
    mine, theirs = (read_gguf(model_paths(outcomes.artifact(s))[0]) for s in (made, alone))
    assert {t.name: t.type_name for t in mine.tensors} == dict(made.expected)
    assert mine.tensors == theirs.tensors
    for tensor in mine.tensors:
        assert mine.read_tensor_bytes(tensor.name) == theirs.read_tensor_bytes(tensor.name)


@pytest.mark.engine
def test_a_head_is_the_file_of_the_tool(bundled: Any, folder: Path, tmp_path: Path) -> None:
    """llama-quantize takes a head alone; from a whole model it makes none."""
    types = block_as(read_gguf(folder / "head.gguf"), "q4_0")
    types |= dict.fromkeys(("token_embd.weight", "output.weight"), "q5_0")
    made = quantized(bundled, folder / "whole.gguf", types, ftype="Q4_0")
    given = quantized(bundled, folder / "head.gguf", types, ftype="Q4_0")
    outcomes = run(tmp_path, made)
    output = tmp_path / "tool.gguf"
    tool_runs.quantize(bundled, given.job(output, None, 1), Supervisor(tmp_path / "logs"))
    require_same(read_gguf(model_paths(outcomes.artifact(made))[0]), read_gguf(output))
    assert outcomes.result(made).command == ()
