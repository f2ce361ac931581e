"""JSON as the standard has it."""

from __future__ import annotations

import pytest

from cook.formats.strict_json import loads


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "-1e999", "[" * 100_000, "", "{"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_numbers_and_text() -> None:
    assert loads(b'{"a": [1, -2.5e3, 1e308, true, null, "\\u00e9"]}') == {
        "a": [1, -2500.0, 1e308, True, None, "é"]
    }
