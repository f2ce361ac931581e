"""Vocabulary compatibility by the engines' rule, and their defaults by the bundled library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import Engine
from cook.engines.process.supervisor import Supervisor
from cook.errors import InputError
from cook.formats.gguf import ValueType, read_gguf
from cook.formats.gguf_writer import WritableValue, encode, write_gguf_file
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.formats.vocabulary import Vocabulary, compare, read_vocabulary, tokens_about
from cook.paths import demo_dir
from cook.prompts.prompt_set import load_prompts
from cook.trace.server_target import Tokenizer

TARGET = Vocabulary("BPE", 1, 2, False, False, tuple(f"t{i}".encode() for i in range(400)))
Read = Callable[..., Vocabulary]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reader(tokens: int = 20, **metadata: WritableValue) -> Vocabulary:
        path = tmp_path / "vocab.gguf"
        keys = {f"tokenizer.ggml.{key}": encode(value) for key, value in metadata.items()}
        keys["tokenizer.ggml.tokens"] = encode([f"t{i}" for i in range(tokens)], ValueType.STRING)
        write_gguf_file(path, keys, ())
        return read_vocabulary(read_gguf(path))

    return reader


def altered(vocabulary: Vocabulary, field: str, value: object) -> Vocabulary:
    values: dict[str, Any] = {field: value}
    return replace(vocabulary, **values)


def changed(index: int, text: bytes) -> Vocabulary:
    tokens = list(TARGET.tokens)
    tokens[index] = text
    return replace(TARGET, tokens=tuple(tokens))


def test_the_first_five_tokens_may_differ() -> None:
    for index in range(5):
        assert compare(TARGET, changed(index, b"other")) == ()
    assert compare(TARGET, changed(5, b"\x1b[2J")) == (r"token 5: target 't5', draft '\x1b[2J'",)
    found = compare(TARGET, replace(TARGET, tokens=tuple(b"x" + t for t in TARGET.tokens)))
    assert found[0] == "token 5: target 't5', draft 'xt5'"
    assert len(found) == 6
    assert found[-1] == "tokens: 390 more of 395 differ"


def test_texts_are_compared_as_c_strings() -> None:
    assert compare(changed(9, b"a\0b"), changed(9, b"a\0c")) == ()


def test_sizes_may_differ_by_128() -> None:
    smaller = replace(TARGET, tokens=TARGET.tokens[:272])
    assert compare(TARGET, smaller) == ()
    smaller = replace(TARGET, tokens=TARGET.tokens[:271])
    assert compare(TARGET, smaller) == ("size: target 400, draft 271",)


def test_another_kind_is_the_only_difference() -> None:
    other = replace(changed(7, b"x"), kind="SPM")
    assert compare(TARGET, other) == ("kind: target BPE, draft SPM",)


@pytest.mark.parametrize("field", ["bos", "eos"])
def test_begin_and_end_tokens_matter_where_they_are_added_and_to_ik(field: str) -> None:
    differs = (f"{field}: target {getattr(TARGET, field)}, draft 7",)
    adding = replace(TARGET, add_bos=True, add_eos=True)
    assert compare(adding, altered(adding, field, 7), LLAMA_CPP) == differs
    other = altered(TARGET, field, 7)
    assert compare(TARGET, other, LLAMA_CPP) == ()
    assert compare(TARGET, other, IK_LLAMA_CPP) == compare(TARGET, other) == differs
    adds = (f"add_{field}: target False, draft True",)
    assert compare(TARGET, altered(TARGET, f"add_{field}", True)) == adds


def test_reading_with_the_engines_defaults(read: Read) -> None:
    gpt2 = read(model="gpt2")
    assert (gpt2.kind, gpt2.bos, gpt2.eos, gpt2.add_bos, gpt2.size) == ("BPE", 11, 11, False, 20)
    assert read(model="gpt2", pre="llama-bpe").add_bos
    assert not read(model="gpt2", pre="llama-bpe", add_bos_token=False).add_bos
    assert read(model="gpt2", pre="glm4").bos is None
    assert read(model="gemma4", add_bos_token=False).add_bos
    assert (read(model="llama").bos, read(model="llama").add_bos) == (1, True)
    assert read(model="t5").add_eos
    assert read(model="bert").bos is None, "101 lies outside these 20 tokens"
    assert read(model="gpt2", bos_token_id=3).bos == 3
    assert read(model="gpt2", bos_token_id=20).bos == 11, "not in the vocabulary"


def test_unusable_vocabularies(read: Read, tmp_path: Path) -> None:
    for metadata, message in (
        ({}, "has no vocabulary"),
        ({"model": "gpt2", "tokens": 0}, "has no vocabulary"),
        ({"model": "magic"}, "'magic' is unknown"),
        ({"model": 7}, "model: is not a string"),
        ({"model": "gpt2", "add_bos_token": 1}, "add_bos_token: is not a boolean"),
        ({"model": "gpt2", "bos_token_id": "1"}, "bos_token_id: is not an integer"),
    ):
        with pytest.raises(InputError, match=message):
            read(**metadata)
    path = tmp_path / "numbers.gguf"
    keys = {"tokenizer.ggml.model": encode("gpt2"), "tokenizer.ggml.tokens": encode([1, 2])}
    write_gguf_file(path, keys, ())
    with pytest.raises(InputError, match="not an array of strings"):
        read_vocabulary(read_gguf(path))


def test_tokens_of_a_text_are_the_longest_that_fit() -> None:
    spaces = Vocabulary("SPM", 1, 2, False, False, (b"a", b"ab", "\u2581ab".encode(), b"c"))
    assert tokens_about(spaces, "") == 0
    assert tokens_about(spaces, "abab ab") == 3
    assert tokens_about(spaces, "abc") == 2
    assert tokens_about(spaces, "a\u00e9") == 3, "a letter that no token covers is its bytes"
    words = Vocabulary("BPE", 1, 2, False, False, ("\u0120ab".encode(), b"ab", b"\xc4\x8a"))
    assert tokens_about(words, "ab ab\n") == 3
    assert tokens_about(words, "\u00e9") == 2
    assert tokens_about(replace(words, kind="WPM"), "ab") is None


@pytest.mark.engine
def test_tokens_of_a_text_are_about_those_of_the_engine(bundled: Engine, tmp_path: Path) -> None:
    """The demo's vocabulary, on its own prompts."""
    model = demo_dir() / "target-q8_0.gguf"
    vocabulary = read_vocabulary(read_gguf(model))
    texts = [p.text for p in load_prompts("demo").prompts]
    with Tokenizer(bundled, model, Supervisor(tmp_path)) as tokenizer:
        theirs = [len(tokenizer.tokenize(text, add_special=False)) for text in texts]
    ours = [tokens_about(vocabulary, text) for text in texts]
    assert ours == pytest.approx(theirs, rel=0.15)


@pytest.mark.engine
@pytest.mark.parametrize("model", ["llama", "gpt2-default", "gpt2-tekken", "gpt2-glm4", "rwkv"])
def test_defaults_equal_the_bundled_library(model: str, tmp_path: Path) -> None:
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    name, _, pre = model.partition("-")
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", *(f"t{i}" for i in range(200))]
    metadata: dict[str, bytes] = {
        "general.architecture": encode("llama"),
        "tokenizer.ggml.model": encode(name),
        "tokenizer.ggml.tokens": encode(tokens),
        "tokenizer.ggml.scores": encode([0.0] * len(tokens)),
        "tokenizer.ggml.token_type": encode([1] * len(tokens), ValueType.INT32),
        "tokenizer.ggml.merges": encode(["t 1"]),
    }
    if pre:
        metadata["tokenizer.ggml.pre"] = encode(pre)
    path = tmp_path / "vocab.gguf"
    write_gguf_file(path, metadata, ())
    ours = read_vocabulary(read_gguf(path))
    parameters = library.llama_model_default_params()
    parameters.vocab_only = True
    loaded = library.llama_model_load_from_file(str(path).encode(), parameters)
    assert loaded
    vocab = library.llama_model_get_vocab(loaded)
    kinds = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV"}
    assert kinds[library.llama_vocab_type(vocab)] == ours.kind
    assert library.llama_vocab_bos(vocab) == (-1 if ours.bos is None else ours.bos)
    assert library.llama_vocab_eos(vocab) == (-1 if ours.eos is None else ours.eos)
    assert library.llama_vocab_get_add_bos(vocab) is ours.add_bos
    assert library.llama_vocab_get_add_eos(vocab) is ours.add_eos
    assert library.llama_vocab_n_tokens(vocab) == ours.size
    library.llama_model_free(loaded)
