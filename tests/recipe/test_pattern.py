"""The pattern subset: what is allowed means what ECMAScript means; the rest is refused."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("a(?=b)", "lookahead `(?=` cannot be written for llama.cpp, which splits at `=` | None"),
        (r"(a)\1", "back-references (`\\1`) are not in the subset | None"),
        ("a\\", "a lone `\\` at the end | escape it: `\\\\`"),
        ("a}", "a bare `}` | escape it: `\\}`"),
        ("|{2}", "a bare `{` | escape it: `\\{`"),
        ("(*a)", "nothing for `*` to repeat | escape it: `\\*`"),
        ("^{2}", "an assertion cannot be repeated | None"),
        ("a*?+", "possessive quantifiers are not ECMAScript | None"),
        ("a??{2}", "a quantifier after a quantifier | group it: `(?:...)`"),
        ("a{2,1}", "a repeat count whose lower bound is the larger | None"),
        ("(?:a{10}b){101}", "repeat counts inside one another above 1000 | None"),
        ("[b-a]", "the range b-a is out of order | None"),
        ("[a-\\d]", "a range needs single characters at both ends | None"),
        ("[[:digit:]]", "POSIX classes are not ECMAScript | write the range: `0-9`"),
        ("[\\b]", "unknown escape `\\b` | None"),
        ("(?i)a", "inline flags are not ECMAScript | matching is case-sensitive"),
    ],
)
def test_a_refusal_says_why(pattern: str, told: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(pattern)
    assert f"{caught.value.message} | {caught.value.hint}" == told


def test_counts_that_are_not_inside_one_another_do_not_multiply() -> None:
    assert parse_pattern("(?:a{100}|b{1000})c{0500}").search("b" * 1000 + "c" * 500)


NODE = shutil.which("node")
JUDGE = """
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const judged = cases.map(([pattern, names]) => {
  try { const r = new RegExp(pattern); return names.map((name) => r.test(name)); }
  catch (error) { return null; }
});
console.log(JSON.stringify(judged));
"""
# Pieces that are patterns by themselves, and pieces that need others around them.
PIECES = st.sampled_from(
    re.findall(
        r"\S+",
        r"""
    a b A z 0 9 _ é blk attn_ ffn _exps weight \. \- \/ \# \& \~ \" \' \_ \< \> \[ \] \( \) \{ \}
    \\ \^ \$ \| \* \+ \? . ^ $ | & ~ # = : , / - \d \D \w \W \s \S \b \B \t \n \r \f \v [a-z] [^.]
    [0-9] [\d_] [\]a] [a-] [-a] [+--] [a&&b] [a||b] [~~] [[a] [.] [^a-y] (?:a|b) (up|gate) (?!b)
    * + ? {2} {1,2} {0,} *? +? ?? {2}? ( ) (?: (?! [ ] [^ { }
    """,
    )
) | st.just(" ")
TENSORS = [
    line.split("\t")[0]
    for line in (Path(__file__).parents[1] / "data/ling-flash-2.0.tensors.tsv")
    .read_text()
    .splitlines()[1::40]
]
STRANGE = ["", "a", "ab", "A z", "a\n", "b\r", "é", "é.é", "blk-1", "[x]", "a&&b|", "~#", "\t"]


@pytest.mark.skipif(NODE is None, reason="SKIPPED LOUDLY: no node to judge ECMAScript patterns")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(PIECES, min_size=1, max_size=7).map("".join), min_size=20, max_size=40))
def test_what_is_allowed_means_what_ecmascript_means(patterns: list[str]) -> None:
    allowed = []
    for pattern in patterns:
        with contextlib.suppress(PatternError):
            allowed.append(parse_pattern(pattern))
    names = [*TENSORS, *STRANGE]
    judged = subprocess.run(
        [str(NODE), "-e", JUDGE],
        input=json.dumps([[pattern.source, names] for pattern in allowed]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for read, hits in zip(allowed, json.loads(judged.stdout), strict=True):
        assert [read.search(name) for name in names] == hits, read.source
