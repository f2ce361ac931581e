"""The trace file and the vocabulary in it: what is written is read; crashes, lies, damage."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cook.errors import InputError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import (
    MAGIC,
    Reply,
    ReplyHead,
    TokenizerFacts,
    TraceFile,
    TraceHeader,
    TraceWriter,
    pack_vocabulary,
    unpack_vocabulary,
)
from cook.formats.vocabulary import Vocabulary
from tests.traces import server_header


def header(**changes: object) -> TraceHeader:
    fields: dict[str, object] = {
        "target_sha256": "a" * 64,
        "tokenizer_sha256": "b" * 64,
        "engine_digest": "e" * 64,
        "device": "cpu",
        "eog": (2,),
        "n_predict": 96,
        "top": 4,
        "sampler": Sampling(temperature=0.8, seed=7).applied(),
        "source": "worker",
    }
    return server_header(**fields | changes)


VOCABULARY = Vocabulary("BPE", None, 2, False, False, (b"a", b"", b"\xff\0", b"bc" * 40))
HEADER = header(tokenizer=TokenizerFacts.of(VOCABULARY))


def reply(name: str, tokens: int = 9, top: int = 4, seed: int = 0) -> Reply:
    rng = np.random.default_rng(seed)
    logp = -np.sort(rng.exponential(2.0, (tokens, top)).astype(np.float32), axis=1)
    return Reply(
        ReplyHead(
            id=name, category="code", stop="eog", prompt_tokens=5, tokens=tokens, emitted=tokens
        ),
        prompt=rng.integers(0, 320, 5).astype(np.int32),
        tokens=rng.integers(0, 320, tokens).astype(np.int32),
        known=np.ones(tokens, bool),
        logp=-rng.exponential(size=tokens).astype(np.float32),
        chain_logp=-rng.exponential(size=tokens).astype(np.float32),
        logsumexp=rng.normal(size=tokens).astype(np.float32),
        margin=rng.random(tokens).astype(np.float32),
        top_ids=rng.integers(0, 320, (tokens, top)).astype(np.int32),
        top_logp=logp,
    )


def write(path: Path) -> list[Reply]:
    replies = [reply(f"r{i}", 5 + i, seed=i) for i in range(3)]
    with TraceWriter(path, HEADER, VOCABULARY) as writer:
        for one in replies:
            writer.append(one)
    return replies


def same(a: Reply, b: Reply) -> None:
    assert a.head == b.head
    for name in ("prompt", "tokens", "known", "logp", "chain_logp", "logsumexp", "margin"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert np.array_equal(a.top_ids, b.top_ids)
    # half precision, relative to the largest: 2^-11 of the distance to it
    distance = np.abs(b.top_logp - b.top_logp[:, :1])
    assert (np.abs(a.top_logp - b.top_logp) <= distance / 1024 + 1e-6).all()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.trace"


def test_round_trip(path: Path) -> None:
    written = write(path)
    trace = TraceFile(path)
    assert (trace.header, trace.ids, trace.cut_short) == (HEADER, ("r0", "r1", "r2"), False)
    assert trace.vocabulary == VOCABULARY
    for a, b in zip(trace, written, strict=True):
        same(a, b)
    same(trace.reply("r1"), written[1])
    assert [h.tokens for h in trace.heads] == [5, 6, 7]


def test_64_largest_cost_about_400_bytes_a_token(path: Path) -> None:
    with TraceWriter(path, header(top=64)) as writer:
        writer.append(reply("big", 1000, 64))
    assert path.stat().st_size / 1000 < 420


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_loses_only_the_reply_it_hits(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "t.trace"
    written = write(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at])
    with TraceWriter(path, HEADER, VOCABULARY) as writer:
        done = set(writer.done)
        for one in written:
            if one.head.id not in done:
                writer.append(one)
    assert path.read_bytes() == whole
    assert len(done) < 3


def test_a_reply_with_flipped_bits_is_refused(path: Path) -> None:
    write(path)
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match="damaged"):
        list(TraceFile(path))


def test_other_conditions_are_refused_with_the_field(path: Path) -> None:
    write(path)
    with pytest.raises(InputError, match="n_predict: 96 there, 97 now"):
        TraceWriter(path, HEADER.model_copy(update={"n_predict": 97}))
    TraceWriter(path, HEADER.model_copy(update={"target_name": "renamed.gguf"})).close()


def test_prompts_that_were_sorted_anew_have_their_new_category(path: Path) -> None:
    write(path)
    before = [head.category for head in TraceFile(path).heads]
    first = TraceFile(path).heads[0].id
    found = TraceFile(path, {first: "another", "absent": "x"})
    assert [head.category for head in found.heads] == ["another", *before[1:]]
    assert next(iter(found)).head.category == "another"


def test_a_server_s_model_is_known_by_its_name_alone(path: Path) -> None:
    TraceWriter(path, server_header()).close()
    other = server_header().model_copy(update={"target_name": "another-Q4_0.gguf"})
    with pytest.raises(InputError, match=r"target_name: .* there, another-Q4_0\.gguf now"):
        TraceWriter(path, other)


def test_an_http_recording_may_be_without_the_vocabulary(path: Path) -> None:
    TraceWriter(path, server_header()).close()
    assert TraceFile(path).vocabulary is None


def test_another_version_is_refused(path: Path) -> None:
    text = json.dumps({**json.loads(header().model_dump_json()), "version": 1}).encode()
    path.write_bytes(b"COOKTRAC" + struct.pack("<IQ", len(text), 0) + text + b"\0\0\0\0")
    with pytest.raises(InputError, match="version 1, this cook reads version 2"):
        TraceFile(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"COOK",
        b"COOKbook: recipes of mine",
        b"COOKTRAC" + struct.pack("<IQ", 1 << 31, 0),
        b"COOKTRAC" + struct.pack("<IQ", 2, 1 << 62) + b"{}",
        b"COOKTRAC" + struct.pack("<IQ", 4000, 0) + b"[" * 4000 + b"\0\0\0\0",
    ],
)
def test_hostile_files_are_input_errors_and_stay(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    for file in (path, path.with_name("absent")):
        with pytest.raises(InputError):
            TraceFile(file)
    if len(raw) > len(MAGIC):  # what is shorter is a trace that crashed
        with pytest.raises(InputError):
            TraceWriter(path, HEADER)
        assert path.read_bytes() == raw


def test_one_writer_at_a_time_and_no_reply_twice(path: Path) -> None:
    with TraceWriter(path, header()) as writer:
        with pytest.raises(InputError, match="another cook"):
            TraceWriter(path, header())
        writer.append(reply("one"))
        with pytest.raises(InputError, match="already"):
            writer.append(reply("one"))
        with pytest.raises(InputError, match="top-3"):
            writer.append(reply("two", top=3))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="leaves part of the chain to the engine"):
        header(sampler=Sampling(0.7))
    good = reply("x")
    cut: list[dict[str, Any]] = [{"logp": good.logp[:-1]}, {"top_logp": good.top_logp[:, :2]}]
    for changed in cut:
        with pytest.raises(InputError, match="its arrays differ in length"):
            replace(good, **changed)
    for wrong in (0.5, float("nan")):
        for column in ("logp", "chain_logp", "top_logp"):
            damaged: dict[str, Any] = {column: np.full_like(getattr(good, column), wrong)}
            with pytest.raises(InputError, match="not between 0 and 1"):
                replace(good, **damaged)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=50).map(tuple))
def test_the_vocabulary_inside_is_read_as_it_was_packed(tokens: tuple[bytes, ...]) -> None:
    written = replace(VOCABULARY, tokens=tokens)
    packed = pack_vocabulary(written)
    assert unpack_vocabulary(TokenizerFacts.of(written), packed, Path("t.trace")) == written


@pytest.mark.parametrize(
    "payload",
    [
        b"not zlib",
        zlib.compress(b"")[:-2],
        zlib.compress(b"\1\0\0\0a"),
        zlib.compress(b"\1\0\0\0a\xff\xff\xff\xffb"),
        zlib.compress(b"\1\0\0\0a\1\0\0\0bmore"),
    ],
)
def test_damage_is_an_input_error(payload: bytes) -> None:
    facts = TokenizerFacts.of(replace(VOCABULARY, tokens=(b"a", b"b")))
    with pytest.raises(InputError, match="vocabulary is damaged"):
        unpack_vocabulary(facts, payload, Path("t.trace"))
