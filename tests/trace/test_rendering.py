"""A stand-in without weights renders prompts as the model's own server does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.formats.gguf import read_gguf
from cook.formats.vocabulary import read_vocabulary
from cook.prompts.prompt_set import Prompt
from cook.trace.rendering import render_prompts, write_stand_in
from tests.engines.tiny_model import write_tiny_model

TEMPLATE = (
    "{% for m in messages %}[{{ m.role | upper }}] {{ m.content | trim }} [END]\n{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT] {% endif %}"
)
TEXTS = ('Say "hello".\n', "def add(a, b):\n    <|x|> {{ no template }}", "größer als 日本")

PROMPTS = tuple(Prompt(str(n), "c", text, "pick") for n, text in enumerate(TEXTS))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template no engine knows by heart."""
    return write_tiny_model(tmp_path_factory.mktemp("chat") / "m.gguf", template=TEMPLATE)


def test_a_stand_in_has_the_tokenizer_to_the_byte(chatty: Path, tmp_path: Path) -> None:
    model = read_gguf(chatty)
    stand_in = read_gguf(write_stand_in(tmp_path / "stand-in.gguf", model))
    keys = [key for key in model.metadata if key.startswith("tokenizer.")]
    assert "tokenizer.chat_template" in keys
    assert [stand_in.raw_value(key) for key in keys] == [model.raw_value(key) for key in keys]
    assert read_vocabulary(stand_in).digest == read_vocabulary(model).digest
    assert stand_in.file_bytes < model.file_bytes / 10


def test_it_renders_as_the_models_server_does(engine: Engine, chatty: Path, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    extra = ("--jinja",)
    job = ServerJob(target=chatty, target_args=ModelArgs(threads=1, extra=extra), context=512)
    with Server(engine, job, supervisor) as server:
        whole = [server.apply_template(prompt.messages) for prompt in PROMPTS]
    assert render_prompts(engine, chatty, extra, PROMPTS, supervisor) == whole
    for text, one in zip(TEXTS, whole, strict=True):
        assert one == f"[USER] {text.strip()} [END]\n[ASSISTANT] "
