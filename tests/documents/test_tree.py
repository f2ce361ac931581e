"""The YAML reader: scalars by YAML 1.2, places, and limits."""

from __future__ import annotations

import pytest

from cook.documents.tree import MAX_DEPTH, Locations, parse, plain_data, resolve_scalar
from cook.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("nUll", "nUll"),
        ("true", True),
        ("yes", "yes"),
        ("12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0xff", 255),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.2.3", "1.2.3"),
        ("+1.5e+2", 150.0),
        ("9" * 41, "9" * 41),
        ("=", "="),
    ],
)
def test_scalar(text: str, value: object) -> None:
    found = resolve_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_special_floats() -> None:
    found = [resolve_scalar(text) for text in (".inf", "-.Inf", ".NaN")]
    assert repr(found) == "[inf, -inf, nan]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: '12'\nb: \"true\"\nc: |\n  5\n", {"a": "12", "b": "true", "c": "5\n"}),
        ("1: a\nno: b\nnull: c\n1.5: d\n", {"1": "a", "no": "b", "null": "c", "1.5": "d"}),
        (
            "a: &x {k: [1, 2]}\nb: *x\nc: [*x, *x]\n",
            {"a": {"k": (1, 2)}, "b": {"k": (1, 2)}, "c": ({"k": (1, 2)}, {"k": (1, 2)})},
        ),
    ],
    ids=["quoted scalars are text", "keys are text", "anchors expand"],
)
def test_data(text: str, value: object) -> None:
    root, problems = parse(text, "f")
    assert plain_data(root) == value
    assert not problems


def test_depth_limit_is_exact() -> None:
    parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f")
    with pytest.raises(RecipeError, match="nested deeper"):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "f")


def test_places() -> None:
    root, _ = parse("a:\n  - b: 1\n    c: [x, yy]\n  - - z\n", "f")
    where = Locations("f", root)

    places: dict[tuple[str | int, ...], tuple[int, int]] = {
        ("a",): (1, 1),
        ("a", 0): (2, 5),
        ("a", 0, "b"): (2, 8),
        ("a", 0, "c"): (3, 5),
        ("a", 0, "c", 1): (3, 12),
        ("a", 1, 0): (4, 7),
        ("a", 7, "nothing"): (1, 1),
    }
    assert {keys: (where.at(*keys).line, where.at(*keys).column) for keys in places} == places
    assert where.key_at("a", 0, "b").column == 5


def test_columns_count_characters_not_bytes() -> None:
    with pytest.raises(RecipeError) as caught:
        parse("é: [ö, *u]\n", "f")
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (1, 8)


def test_windows_line_ends() -> None:
    root, _ = parse("a: 1\r\nb:\r\n  c: 2\r\n", "f")
    assert plain_data(root) == {"a": 1, "b": {"c": 2}}
    assert Locations("f", root).at("b", "c").line == 3
