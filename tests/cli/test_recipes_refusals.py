"""Every refusal of ``cook plan``, over small broken recipes: ``cook recipes check`` has it too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.cli.main import main
from cook.formats.gguf_writer import encode, encode_header, tensor_of
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.trace_file import ReplyHead, TraceWriter
from tests.engines.tiny_model import write_tiny_model
from tests.traces import blank_reply, server_header

SOURCE, TARGET = "demo://draft-f16.gguf", "demo://target-q8_0.gguf"
Q8 = {"name": "A", "type": "Q8_0"}
READY = {"name": "d", "source": SOURCE}
LINE = '{"id": "%s", "category": "a", "prompt": "some %s"}\n'


def scored(**more: Any) -> dict[str, Any]:
    """A recipe with one ready draft; ``more`` of its ``score``."""
    score = {"target": {"source": TARGET}, "prompts": "demo", "limit": 4, "draft": {"n_max": 2}}
    return {"drafts": [READY], "score": {**score, **more}}


def quantized(*rules: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A recipe with one quant; ``more`` of its keys."""
    quant = {**Q8, **({"rules": [*rules]} if rules else {}), **more.pop("quant", {})}
    return {"model": {"source": SOURCE}, "quants": [quant], **more}


def args_of(model: str, **args: Any) -> dict[str, Any]:
    if model == "target":
        return scored(target={"source": TARGET, "args": args})
    return scored(draft={"n_max": 2, "args": args})


CASES: dict[str, tuple[dict[str, Any], str]] = {
    # files that are not there, or are something else
    "no-model": (quantized(model={"source": "absent.gguf"}), "no such file"),
    "no-draft": ({**scored(), "drafts": [{**READY, "source": "absent.gguf"}]}, "no such file"),
    "no-target": (scored(target={"source": "absent.gguf"}), "no such file"),
    "no-prompts": (scored(prompts="absent.jsonl"), "no such file"),
    "no-corpus": (quantized(imatrix={"corpus": "absent.txt"}), "no such file"),
    "no-imatrix": (quantized(imatrix={"file": "absent.gguf"}), "no such file"),
    "no-evaluation": (quantized(evaluate={"corpus": "absent.txt"}), "no such file"),
    "no-trace": (scored(trace="absent.trace"), "no such file"),
    "model-is-a-page": (quantized(model={"source": "page.gguf"}), "a web page"),
    "target-is-a-page": (scored(target={"source": "page.gguf"}), "a web page"),
    "draft-is-a-page": ({**scored(), "drafts": [{**READY, "source": "page.gguf"}]}, "a web page"),
    "draft-is-a-lora": ({**scored(), "drafts": [{**READY, "source": "lora.gguf"}]}, "a LoRA"),
    "target-is-a-head": (scored(target={"source": "head.gguf"}), "an EAGLE-3 head"),
    "model-is-a-head": (quantized(model={"source": "head.gguf"}), "an EAGLE-3 head"),
    "imatrix-is-a-page": (quantized(imatrix={"file": "page.gguf"}), "page.gguf"),
    "trace-is-a-page": (scored(trace="page.gguf"), "not a trace"),
    # what headers say
    "another-vocabulary": (
        {**scored(), "drafts": [{**READY, "source": "tiny.gguf"}]},
        "cannot draft for",
    ),
    "source-of-another-vocabulary": (
        {**scored(), **quantized(model={"source": "tiny.gguf"})},
        "cannot draft for",
    ),
    "experts": (quantized(quant={"experts": [4]}), "so it cannot use 4"),
    "layers": ({"drafts": [{**READY, "prune_layers": [7]}]}, "no layer 7"),
    "head-needs-data": ({"drafts": [{**READY, "output": ["iq2_xs"]}]}, "needs importance data"),
    "head-of-no-type": ({"drafts": [{**READY, "output": ["q8_K"]}]}, "no type of stored weights"),
    "requantized": (quantized(model={"source": TARGET}, quant={"type": "Q4_0"}), "already quant"),
    "rows": (quantized({"ffn_down": "q4_K"}, model={"source": "odd.gguf"}), "q4_K"),
    "needs-an-imatrix": (quantized({"dense_ffn": "iq2_s"}, {".*": "q8_0"}), "needs an imatrix"),
    "imatrix-without": (
        quantized({"dense_ffn": "iq2_s"}, {".*": "q8_0"}, imatrix={"file": "i.gguf"}),
        "that is not in the imatrix",
    ),
    "embeddings": (
        quantized({"embeddings": "iq2_xs"}, imatrix={"file": "i.gguf"}),
        "embeddings never have any",
    ),
    # rules and types
    "no-stored-type": (quantized({"attn_q": "q8_K"}), "no type of stored weights"),
    "rules-under-f16": (quantized({"attn_q": "q8_0"}, quant={"type": "F16"}), "ignore rules"),
    "texts-shared": (
        quantized(imatrix={"corpus": "text.txt"}, evaluate={"corpus": "text.txt"}),
        "also used for evaluation",
    ),
    # prompts
    "prompts-not-json": (scored(prompts="words.jsonl"), "words.jsonl:1: not JSON"),
    "prompts-unknown-key": (scored(prompts="key.jsonl"), "key.jsonl:1: unknown key"),
    "prompts-twice": (scored(prompts="twice.jsonl"), "twice.jsonl:2: id 'x' was used before"),
    "prompts-empty": (scored(prompts="empty.jsonl"), "no prompt in this file"),
    "prompts-alone": (scored(prompts="one.jsonl"), "two prompts at least"),
    "prompts-all-kept": (
        {**quantized(imatrix={"corpus": "trace"}), **scored(prompts="one.jsonl", method="live")},
        "none is left for",
    ),
    "category": (scored(categories=["nonesuch"]), "no category `nonesuch`"),
    "weights": (scored(weights={"nonesuch": 1}), "no category `nonesuch`"),
    # a trace of something else
    "trace-length": (scored(trace="t.trace", max_tokens=99), "was recorded with max_tokens"),
    "trace-target": (scored(trace="t.trace"), "t.trace"),
    # what servers are asked
    "slots": (scored(slots=[1, 32], draft={"n_max": 128}), "verify 4128 at once"),
    "rival-missing": (scored(rivals=["suffix"]), "has no suffix"),
    "rival-number": (scored(rivals=[{"type": "ngram-mod", "p_min": 0.5}]), "does not use p_min"),
    "first-missing": (scored(draft={"n_max": 2, "after": ["suffix"]}), "has no suffix"),
    "draft-and-rival": (
        {**scored(rivals=["ngram-mod"]), "drafts": [{**READY, "name": "ngram-mod"}]},
        "is a draft and a rival",
    ),
    "cache-type": (args_of("draft", cache_type_k="q6_0"), "no KV cache of type q6_0"),
    "draft-ubatch": (args_of("draft", ubatch=64), "draft args: ubatch"),
    "replay-cannot-follow": (args_of("target", extra=["--poll", "0"]), "cannot follow `--poll`"),
    "flag-of-cook": (args_of("target", extra=["-c", "99"]), "-c"),
    "flag-unknown": (args_of("target", extra=["--nonesuch"]), "--nonesuch"),
    "flag-unsafe": (args_of("target", extra=["--api-key-file", "/etc/passwd"]), "--api-key-file"),
    "imatrix-flag": (
        quantized(imatrix={"corpus": "text.txt", "args": {"extra": ["--port", "1"]}}),
        "--port",
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the recipes name."""
    folder = tmp_path_factory.mktemp("doors")
    texts = {
        "page.gguf": "<!DOCTYPE html><html>",
        "text.txt": "".join(f"sentence {n * n} of the text\n" for n in range(400)),
        "words.jsonl": "some words\n",
        "key.jsonl": '{"id": "x", "category": "a", "prompt": "p", "colour": "red"}\n',
        "twice.jsonl": LINE % ("x", "tea") + LINE % ("x", "milk"),
        "empty.jsonl": "\n",
        "one.jsonl": LINE % ("x", "tea"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    kinds: dict[str, dict[str, Any]] = {
        "lora.gguf": {"general.architecture": "llama", "general.type": "adapter"},
        "head.gguf": {"general.architecture": "eagle3"},
    }
    for name, metadata in kinds.items():
        header = {key: encode(value) for key, value in metadata.items()}
        data = encode_header(header, [tensor_of("blk.0.attn_q.weight", (4,), 0, bytes(16))])
        (folder / name).write_bytes(data + bytes(32))
    write_tiny_model(folder / "tiny.gguf", layers=1)
    write_tiny_model(folder / "odd.gguf", layers=1, odd_hidden=True)
    head = ReplyHead(id="x", category="a", prompt_tokens=1, tokens=1, emitted=1, stop="limit")
    head = head.model_copy(update={"rendered_sha256": "a"})
    with TraceWriter(folder / "t.trace", server_header()) as writer:
        writer.append(blank_reply(head, known=True))
    entry = ImatrixEntry(np.ones((1, 256), np.float32), np.ones(1, np.float32))
    write_gguf(Imatrix({"blk.0.attn_q.weight": entry}, (), 1, 512, "gguf"), folder / "i.gguf")
    return folder


Refused = Callable[..., int]


@pytest.fixture
def refused(files: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """``refused(keys, message, *options)``: the exit status, one to ``cook plan`` and ``cook
    recipes check``, as are their errors."""

    def ask(keys: dict[str, Any], message: str, *options: str) -> int:
        recipe, answers = files / "r.yaml", []
        recipe.write_text(json.dumps({"version": 1, "name": "r", **keys}, indent=1))
        for door in (("plan",), ("recipes", "check")):
            status = main([*door, str(recipe), *options])
            lines = capsys.readouterr().err.splitlines()
            warned = {n for n, line in enumerate(lines) if " warning: " in line}
            warned |= {n + 1 for n in warned if "hint:" in "".join(lines[n + 1 : n + 2])}
            answers.append((status, [line for n, line in enumerate(lines) if n not in warned]))
        planned, checked = answers
        assert any(message in line for line in planned[1]), planned[1]
        assert checked == planned
        return planned[0]

    return ask


@pytest.mark.engine
@pytest.mark.parametrize("case", CASES)
def test_what_plan_refuses_check_refuses(case: str, refused: Refused, bundled: Any) -> None:
    assert refused(*CASES[case]) in (2, 5)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("keys", "options", "message", "status"),
    [
        (quantized({"no_such_tensor": "q8_0"}), ("--strict",), "matches no tensor", 2),
        (scored(draft={"n_max": 2, "context": [512]}), ("--strict",), "changes nothing here", 2),
        (scored(), ("--engine", "unknown"), "unknown", 5),
        (quantized(quant={"type": "IQ1_KT"}), ("--engine", "bundled"), "has no base type", 5),
        ({**quantized(), "engine": "ik_llama.cpp"}, ("--engine", "bundled"), "recipe needs ik", 5),
    ],
)
def test_options_are_one_to_both(
    keys: dict[str, Any],
    options: tuple[str, ...],
    message: str,
    status: int,
    refused: Refused,
    bundled: Any,
) -> None:
    assert refused(keys, message, *options) == status


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompts": "words.jsonl"}, "words.jsonl:1: not JSON"),
        ({"slots": [1, 32], "draft": {"n_max": 128}}, "verify 4128 at once"),
        ({"rivals": ["suffix"]}, "has no suffix"),
        ({"trace": "absent.trace"}, "absent.trace: no such file"),
    ],
)
def test_models_that_are_on_the_hub_hide_no_fault(
    more: dict[str, Any], message: str, files: Path, capsys: Any, monkeypatch: Any
) -> None:
    """Nothing is fetched to check a recipe, and what needs no header is found all the same."""
    monkeypatch.setattr("socket.getaddrinfo", None)
    target, ready = {"source": "hf://some/model"}, {**READY, "source": "hf://some/draft"}
    recipe = files / "hub.yaml"
    keys = {**scored(**{"target": target, **more}), "drafts": [ready]}
    recipe.write_text(json.dumps({"version": 1, "name": "hub", **keys}))
    assert main(["recipes", "check", str(recipe)]) == 2
    assert message in capsys.readouterr().err
