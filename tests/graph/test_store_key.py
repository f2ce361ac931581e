"""The key of an artifact: the same for the same parts, another for any other."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.graph.store import as_read_back, key_of

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(PARTS)
def test_a_key_stays_when_its_parts_were_stored_and_read(parts: dict[str, object]) -> None:
    assert key_of(as_read_back(parts)) == key_of(parts)
    assert key_of(dict(reversed(parts.items()))) == key_of(parts)


@given(PARTS, PARTS)
def test_other_parts_have_another_key(one: dict[str, object], other: dict[str, object]) -> None:
    texts = [repr(sorted_parts(parts)) for parts in (one, other)]
    assert (key_of(one) == key_of(other)) == (texts[0] == texts[1])


def sorted_parts(value: object) -> object:
    """``value`` with the items of every mapping in order."""
    if isinstance(value, dict):
        return {name: sorted_parts(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [sorted_parts(item) for item in value]
    return value


def test_a_key_is_the_hash_of_canonical_json() -> None:
    text = b'{"kind":"x","params":{"a":[1,2.5,null],"b":"\\u00e4"}}'
    parts = {"params": {"b": "ä", "a": (1, 2.5, None)}, "kind": "x"}
    assert key_of(parts) == hashlib.sha256(text).hexdigest()


def test_what_is_no_number_has_no_key() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        key_of({"speed": float("nan")})
