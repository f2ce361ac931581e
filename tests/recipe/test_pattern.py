"""The pattern subset: what is allowed means what ECMAScript means; the rest is refused."""

from __future__ import annotations

import time

import pytest

from cook.recipe.pattern import PatternError, PatternTimeout, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("attn", "blk.0.attn_q.weight", True),
        ("output", "blk.0.attn_output.weight", True),
        (r"^output\.weight$", "blk.0.attn_output.weight", False),
        (r"^output\.weight$", "output.weight", True),
        ("output.weight", "outputXweight", True),
        (r"weight$", "x.weight\n", False),
        (r"blk\.[0-3]\.", "blk.3.x", True),
        (r"blk\.[0-3]\.", "blk.13.x", False),
        (r"blk\.(1[0-9]|2)\.ffn", "blk.13.ffn_up", True),
        (r"blk\.\d{2}\.", "blk.7.x", False),
        (r"blk\.\d{2,}\.", "blk.123.x", True),
        (r"\d", "blk.\u0661.x", False),
        (r"\w\.\w", "é.é", False),
        (r"[^a-z]", "abc", False),
        (r"[^a-z]", "aBc", True),
        (r"[\d_]+$", "attn_12", True),
        (r"[a\-z]", "-", True),
        (r"[a-]", "-", True),
        (r"[.]", "x", False),
        (r"(?:gate|up)_exps", "ffn_up_exps", True),
        (r"ffn_(?!gate)", "ffn_gate", False),
        (r"ffn_(?!gate)", "ffn_up", True),
        (r"\battn", "blk.0.attn_q", True),
        (r"\battn", "xattn", False),
        ("ATTN", "attn", False),
        ("a|", "zzz", True),
        ("ffn_.*?exps", "ffn_up_exps", True),
        (r"a/b:c d", "a/b:c d", True),
        ("ffn#x", "ffn#x", True),
        ("a&&b", "a&&b", True),
        ("[a&&b]", "&", True),
        ("[a||b]", "|", True),
        ("[~~]", "~", True),
    ],
)
def test_search(pattern: str, name: str, hit: bool) -> None:
    assert parse_pattern(pattern).search(name) is hit


@pytest.mark.parametrize(
    ("pattern", "offset"),
    [
        ("", 0),
        ("ab(", 2),
        ("ab)", 2),
        ("a[b", 1),
        ("a[]b", 1),
        ("[z-a]", 1),
        (r"[\w-z]", 1),
        ("[[:alpha:]]", 1),
        ("a**", 2),
        ("a+*", 2),
        ("a*+", 2),
        ("a{2}+", 4),
        ("+a", 0),
        ("(?=a)", 0),
        ("x(?<=a)", 1),
        ("x(?<!a)", 1),
        ("(?<n>a)", 0),
        ("(?P<n>a)", 0),
        ("(?P=n)", 0),
        ("(?>a)", 0),
        ("(?i)a", 0),
        ("(?#c)", 0),
        ("(?", 0),
        (r"(a)\1", 3),
        (r"a\0", 1),
        (r"\x41", 0),
        (r"\u0041", 0),
        (r"\cA", 0),
        (r"\p{L}", 0),
        (r"\A", 0),
        (r"a\z", 1),
        (r"\K", 0),
        (r"\q", 0),
        ("a\\", 1),
        ("a{", 1),
        ("a{,2}", 1),
        ("a{x}", 1),
        ("a{3,2}", 1),
        ("a{1001}", 1),
        ("(a{100}){100}", 8),
        ("a}", 1),
        ("a]", 1),
        ("^*", 1),
        (r"\b+", 2),
        ("(?!a)*", 5),
        ("(" * 40 + ")" * 40, 33),
        ("a" * 2000, 1024),
    ],
)
def test_refused_with_its_place(pattern: str, offset: int) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(pattern)
    assert caught.value.offset == offset


def test_a_hanging_pattern_is_stopped() -> None:
    pattern = parse_pattern("(?:(?:.{1,9}){1,9}){1,9}[A-Z]$")
    before = time.monotonic()
    with pytest.raises(PatternTimeout):
        pattern.search("blk.61.ffn_gate_up_exps.weight")
    assert time.monotonic() - before < 5


def test_many_slow_searches_are_stopped_together() -> None:
    pattern = parse_pattern(".*" * 300 + "[A-Z]")
    with pytest.raises(PatternTimeout):
        pattern.search_all(f"blk.{i}.ffn_gate_up_exps.weight" for i in range(1000))
