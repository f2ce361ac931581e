"""What the bundled engine's parts make of the demo draft: quantized bytes and replayed counts.

The engine is built for the processor it runs on, and its compiler fuses multiplications where that
has them, so bytes and logits may differ in the last bit elsewhere. What llama-quantize writes is
frozen as well: where that is another file, bytes are held against the tool alone. On a processor of
other vector instructions than those that the counts were frozen with, they are held within 2 %.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines.base import DraftSettings
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.graph.step import source
from cook.job.prepare import prepare
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts
from cook.scoring.simulate import Profile, positions_of, simulate
from cook.steps.quantize import QuantizeStep
from tests.oracles.freeze import FILES, is_freezing, require_frozen
from tests.steps.test_quantize import PATHS, by_tool, made, require_same, step_of

pytestmark = pytest.mark.engine

DRAFT = demo_dir() / "draft-f16.gguf"
TOKENS = FILES / "replayed_tokens.json"
TYPES = ("q8_0", "q4_0", "q5_K", "q6_K", "iq4_nl", "iq3_s", "iq2_xs", "tq1_0")
EVERY = 18
"""Every so many of the demo's prompts is replayed."""


@pytest.fixture(scope="module")
def quantized(bundled: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[GgufFile]]:
    """Cook's file and the tool's, of the demo recipe's quants and of more types.

    The imatrix is of random numbers: a measured one differs between processors.
    """
    folder = tmp_path_factory.mktemp("quantized")
    rng = np.random.default_rng(5)
    entries = {}
    for tensor in read_gguf(DRAFT).tensors:
        if len(tensor.shape) > 1 and tensor.name != "token_embd.weight":
            experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
            sums = rng.random((experts, tensor.shape[0])).astype(np.float32) * 100
            entries[tensor.name] = ImatrixEntry(sums, np.full(experts, 7, np.float32))
    imatrix = folder / "imatrix.gguf"
    write_gguf(Imatrix(entries, ("corpus.txt",), 3, 512, "gguf"), imatrix)
    steps = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(folder / "home"))
        for layout in prepare("demo", engines=["bundled"]).layouts:
            for step in layout.all_steps():
                if isinstance(step, QuantizeStep):
                    steps[f"{step.quant} of the demo"] = replace(step, imatrix=source([imatrix]))
    for name in TYPES:
        steps[name] = step_of(bundled, DRAFT, name, imatrix)
    return {name: [made(s, folder), by_tool(s, folder)] for name, s in steps.items()}


def digest(file: GgufFile) -> str:
    """Of names, types, shapes, metadata and data; not of paths and what cook says of itself."""
    found = sha256(repr(file.tensors).encode())
    for key in file.metadata:
        if key not in PATHS and not key.startswith("cook."):
            found.update(key.encode() + file.raw_value(key))
    for tensor in file.tensors:
        found.update(file.read_tensor_bytes(tensor.name))
    return found.hexdigest()


def frozen_elsewhere(quantized: dict[str, list[GgufFile]]) -> bool:
    """Whether llama-quantize itself writes other bytes than where the files were frozen."""
    if is_freezing():
        return False
    lines = {f"{name}\t{digest(theirs)}" for name, (_, theirs) in quantized.items()}
    return not lines & set((FILES / "quantized_bytes.tsv").read_text("utf-8").splitlines()[1:])


def test_quantized_bytes(quantized: dict[str, list[GgufFile]]) -> None:
    for mine, theirs in quantized.values():
        require_same(mine, theirs)
    if frozen_elsewhere(quantized):
        pytest.skip("llama-quantize writes other bytes on this processor")
    lines = [f"{name}\t{digest(mine)}" for name, (mine, _) in quantized.items()]
    require_frozen("quantized_bytes.tsv", ["quant\tsha256", *lines])


def texts(bundled: Any, folder: Path) -> list[list[list[int]]]:
    """Prompts and the target's replies, as ids; written once, as a reply hangs on the processor."""
    if not TOKENS.exists() and is_freezing():
        with Worker.open(bundled, Supervisor(folder / "logs")) as worker:
            worker.load(ModelLoad(demo_dir() / "target-q8_0.gguf", context=2048, threads=1))
            found = []
            for prompt in load_prompts("demo").prompts[::EVERY]:
                ids = np.asarray(worker.tokenize(prompt.text), np.int32)
                said = worker.generate(ids, n_predict=80, extra=16).tokens
                found.append([ids.tolist(), said.tolist()])
        TOKENS.write_text(json.dumps(found) + "\n", "utf-8")
    tokens: list[list[list[int]]] = json.loads(TOKENS.read_text("utf-8"))
    return tokens


def replayed(worker: Worker, draft: Path, tokens: list[list[list[int]]]) -> Iterator[str]:
    info = worker.load(ModelLoad(draft, context=2048, threads=1))
    replies = []
    for prompt, said in tokens:
        ids, emitted = np.array(prompt, np.int32), np.array(said, np.int32)
        found = worker.replay(ids, emitted, rollout_steps=12)
        ends = np.isin(emitted, list(info.eog))
        reply = int(ends.argmax()) + 1 if ends.any() else min(80, len(said))
        of = {"prompt": len(prompt), "reply": reply, "n_predict": 80, "context": 2048}
        replies.append(positions_of(found, emitted, eog=info.eog, **of))
    for profile, n_max, p_min in product(Profile, (2, 5, 12), (0.0, 0.6)):
        runs = [simulate(one, DraftSettings(n_max, 0, p_min), profile) for one in replies]
        drafted, accepted = (sum(getattr(r, n) for r in runs) for n in ("draft_n", ACCEPTED))
        yield f"{profile}\t{n_max}\t{p_min}\t{drafted}\t{accepted}"


ACCEPTED = "draft_n_accepted"


def vector_instructions() -> str:
    """Those of this processor that kernels of the engine are chosen by."""
    cpus = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n", 1)[0]
    return " ".join(sorted(set(re.findall(r"\b(?:avx|fma|f16c|amx|asimd|sve)\w*", cpus))))


def test_replayed_counts(
    bundled: Any, quantized: dict[str, list[GgufFile]], tmp_path: Path
) -> None:
    drafts = {"F16": DRAFT, **{name: mine.path for name, (mine, _) in quantized.items()}}
    tokens = texts(bundled, tmp_path)
    lines = [f"# {vector_instructions()}", "draft\tprofile\tn_max\tp_min\tdrafted\taccepted"]
    with Worker.open(bundled, Supervisor(tmp_path / "logs")) as worker:
        for name, draft in drafts.items():
            lines += [f"{name}\t{line}" for line in replayed(worker, draft, tokens)]
    frozen = (FILES / "replayed_counts.tsv").read_text("utf-8").splitlines()
    if is_freezing() or (lines[0] == frozen[0] and not frozen_elsewhere(quantized)):
        require_frozen("replayed_counts.tsv", lines)
        return
    for now, then in zip(lines[2:], frozen[2:], strict=True):
        *words, drafted, accepted = now.split("\t")
        *words_then, drafted_then, accepted_then = then.split("\t")
        assert words == words_then
        counts = [int(drafted), int(accepted)]
        assert counts == pytest.approx([int(drafted_then), int(accepted_then)], rel=0.02), now
