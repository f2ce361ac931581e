"""A recipe whose model, texts and target are on the Hub: planned, built, and published."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from cook.hub.upload import PublishRequest, pack, publish
from cook.job.plan import plan
from cook.job.prepare import prepare
from cook.job.run import build
from cook.output import Mode, Output
from cook.paths import demo_dir

RECIPE = """\
version: 1
name: hub
model: {source: 'hf://org/Demo@main'}
evaluate: {corpus: 'hf://org/texts/eval.txt', context: 256, chunks: 2, divergence: false}
quants: [{name: Q4_0, type: Q4_0}]
score:
  target: {source: 'hf://org/Target/target-q8_0.gguf', args: {threads: 1}}
  method: live
  prompts: demo
  limit: 2
  max_tokens: 8
  context: 2048
  draft: {n_max: [4], args: {threads: 1}}
  live_budget: {minutes: 0.05}
"""


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_from_the_hub_and_back(hub: Any, login: str, bundled: Any, tmp_path: Path) -> None:
    demo = demo_dir()
    model, target = (demo / "draft-f16.gguf").read_bytes(), (demo / "target-q8_0.gguf").read_bytes()
    commit = hub.add("org/Demo", {"Demo-F16.gguf": model})
    hub.add("org/Target", {"target-q8_0.gguf": target}, private=True)
    hub.add("org/texts", {"eval.txt": (demo / "data" / "evaluation.txt").read_bytes()})
    recipe = tmp_path / "hub.yaml"
    recipe.write_text(RECIPE)
    planned = plan(prepare(recipe, plan_only=True))
    downloads = [n.needed_bytes for n in planned.needs if n.name == "download"]
    assert downloads == [len(model) + len(target)]
    output = Output(Mode.QUIET, io.StringIO(), io.StringIO())
    built = build(prepare(recipe, output=output), output)
    assert not built.failures
    # The plan knew the names that the build then used.
    assert {s.key for s in planned.steps} <= {s.key for s in built.record.steps}
    again = plan(prepare(recipe, plan_only=True))
    assert not again.stale
    assert "download" not in {n.name for n in again.needs}
    origin = next(o for o in built.record.sources if o.role == "model")
    assert (origin.reference, origin.commit) == ("hf://org/Demo@main", commit)
    assert {o.role for o in built.record.sources} == {"model", "target", "evaluate.corpus"}
    sent = pack(built.record, PublishRequest("me/Demo-GGUF", license="mit"))
    assert "base_model: org/Demo\n" in sent.card
    publish(sent, output)
    there = hub.repos["me/Demo-GGUF"].commits[-1][1]
    assert there["Demo-Q4_0.gguf"] == Path(str(built.record.drafts[0].path)).read_bytes()
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert login.encode() not in file.read_bytes(), file
