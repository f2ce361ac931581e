"""JSON as the standard has it."""

from __future__ import annotations

import pytest

from cook.formats import strict_json
from cook.formats.strict_json import loads


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        '{"a": -Infinity}',
        "-1e999",
        "[" * 100_000,
        "{",
        '"\\ud800"',
        '["\\uDFFF"]',
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_numbers_and_text() -> None:
    values = [1, -2500.0, 1e308, True, None, "é"]
    assert loads(b'{"a": [1, -2.5e3, 1e308, true, null, "\\u00e9"]}') == {"a": values}
    assert loads('"\\ud83d\\ude00"') == "\U0001f600", "a character spelt in halves"


@pytest.mark.parametrize("part", [b"[]", b"{}"])
def test_parts_are_counted_before_they_are_made(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_json, "MAX_PARTS", 1000)
    assert len(loads(b"[" + part + (b"," + part) * 900 + b"]")) == 901
    with pytest.raises(ValueError, match="lists and objects"):
        loads(b"[" + part + (b"," + part) * 1000 + b"]")
