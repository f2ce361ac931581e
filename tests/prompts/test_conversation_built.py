"""Conversations rendered by a target's template on a real engine, through a whole build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.engines.base import Engine
from cook.errors import InputError
from cook.formats.trace_file import TraceFile
from cook.job.prepare import prepare
from cook.record.record import Record
from tests.builds import build
from tests.engines.tiny_model import write_tiny_model
from tests.prompts.test_conversation import ASKED, OPENAI, RECORDS, SAID

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RECIPE = """\
version: 1
name: talk
drafts: [{name: small, source: small.gguf}]
score:
  target: {source: target.gguf, args: {threads: 1}}
  prompts: talk.jsonl
  max_tokens: 8
  context: 512
  draft: {n_max: [2], args: {threads: 1}}
  live_budget: {minutes: 0.05}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A target with SmolLM2's kind of template, a draft, and two conversations."""
    write_tiny_model(tmp_path / "target.gguf", template=CHATML)
    write_tiny_model(tmp_path / "small.gguf", layers=1)
    records = (RECORDS["openai"], RECORDS["sharegpt"], {"messages": OPENAI[1:2]})
    (tmp_path / "talk.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    return tmp_path


@pytest.mark.engine
def test_a_build_on_conversations(home: Path, bundled: Engine) -> None:
    record: Record = build(home, "talk", RECIPE)
    assert {c.draft for c in record.candidates} == {None, "small"}
    assert all(c.live is not None for c in record.candidates)
    (path,) = home.glob("store/trace/*/target.trace")
    trace = TraceFile(path)
    assert len(trace) == 3
    spelt = {reply.head.id: bytes(t - 3 for t in reply.prompt if 3 <= t < 259) for reply in trace}
    for name, said in (
        *(("conversation-1", (*SAID, ("user", ASKED))), ("QWJhYvA_0", (*SAID, ("user", ASKED)))),
        ("conversation-3", (("user", "Hi."),)),
    ):
        whole = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
        found = spelt[name].decode().replace("▁", " ").strip()
        assert found == f"{whole}<|im_start|>assistant"


@pytest.mark.engine
def test_a_target_without_a_template_is_refused_before_anything_runs(
    home: Path, bundled: Engine
) -> None:
    write_tiny_model(home / "target.gguf")
    recipe = home / "talk.yaml"
    recipe.write_text(RECIPE)
    with pytest.raises(InputError, match="conversation-1 is a conversation, and no chat template"):
        prepare(recipe, plan_only=True)
