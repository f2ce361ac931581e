"""The vocabulary inside a trace: what is packed is read, and damage is told."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.trace_file import pack_vocabulary, tokenizer_facts, unpack_vocabulary
from cook.formats.vocabulary import Vocabulary

NOWHERE = Path("t.trace")


def vocabulary(tokens: tuple[bytes, ...]) -> Vocabulary:
    return Vocabulary("SPM", 1, None, True, False, tokens)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=50))
def test_round_trip(tokens: list[bytes]) -> None:
    given_one = vocabulary(tuple(tokens))
    packed = pack_vocabulary(given_one)
    found = unpack_vocabulary(tokenizer_facts(given_one), packed, NOWHERE)
    assert found == given_one
    assert found.digest == given_one.digest


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not zlib",
        zlib.compress(b"")[:-2],
        zlib.compress(b"\1\0\0\0a"),
        zlib.compress(b"\1\0\0\0a\xff\xff\xff\xffb"),
        zlib.compress(b"\1\0\0\0a\1\0\0\0bmore"),
    ],
)
def test_damage_is_an_input_error(payload: bytes) -> None:
    facts = tokenizer_facts(vocabulary((b"a", b"b")))
    with pytest.raises(InputError, match="vocabulary is damaged"):
        unpack_vocabulary(facts, payload, NOWHERE)
