"""The reviewed table of the engines' options: whole, exact, and not to be talked round."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.facts import parse_flags
from cook.engines.options import OPTIONS, FlagEffect, Option, RefusalReason, normal, read_flags
from cook.formats.quant_types import Flavour

RECORDED = Path(__file__).parent / "standins" / "recorded"
REACHED = ("server", "imatrix", "perplexity")
"""Tools that raw flags reach. llama-quantize and the worker get none."""
# Flags that their help prints across two lines, or with a dot.
GARBLED = {"--fim-qwen-1", "--spec-ngram-", "-min-hits"}
HARMLESS = {f: {w: o for w, o in t.items() if o.harmless} for f, t in OPTIONS.items()}
REFUSED = {f: {w: o for w, o in t.items() if not o.harmless} for f, t in OPTIONS.items()}
VALUES = {
    "a whole number": "1",
    "a number": "1.5",
    "0 or 1": "1",
    "a mask in hexadecimal": "0xF",
    "first-last": "0-3",
    "numbers with commas": "3,1",
    "pairs of whole numbers with commas": "0,1,2,0",
    "TYPE,LAYERS": "q8_0,4",
    "name=number with commas": "fusion=1,offload-batch-size=64",
    "COUNT,THRESHOLD": "6,1",
}
BOTH = pytest.mark.parametrize("flavour", list(Flavour))


def said(option: Option, flag: str) -> list[str]:
    if option.value is None:
        return [flag]
    return [flag, VALUES.get(option.value.says) or option.value.says.split(" or ")[0]]


def check_reviewed(flavour: Flavour, flags: Mapping[str, Collection[str]]) -> None:
    """Every flag that a tool offers was reviewed, and every harmless one is offered."""
    known = set(OPTIONS[flavour]) | (GARBLED if flavour is Flavour.LLAMA_CPP else set())
    for tool in REACHED:
        assert set(flags[tool]) <= known, tool
    offered = frozenset().union(*(flags[tool] for tool in REACHED))
    assert {w for w, o in HARMLESS[flavour].items() if not o.unlisted} <= offered


@BOTH
def test_every_option_of_the_help_was_reviewed(flavour: Flavour) -> None:
    folder = RECORDED / flavour
    helps = {tool: (folder / f"{tool}.txt").read_text(errors="replace") for tool in REACHED}
    check_reviewed(flavour, {tool: parse_flags(text) for tool, text in helps.items()})


def test_every_option_of_the_engine_was_reviewed(engine: Any) -> None:
    check_reviewed(engine.flavour, engine.facts.flags)


@BOTH
def test_a_spelling_has_one_meaning_and_every_option_its_reason(flavour: Flavour) -> None:
    for word, option in OPTIONS[flavour].items():
        assert word in option.spellings
        assert word == normal(word)
        assert option.why
        assert option.value is None or option.harmless
    for word in set(HARMLESS[Flavour.LLAMA_CPP]) & set(HARMLESS[Flavour.IK_LLAMA_CPP]):
        # A recipe is read before its engine is known: the number of words must not depend on it.
        values = {HARMLESS[f][word].value is None for f in Flavour}
        assert len(values) == 1, word


@BOTH
def test_harmless_flags_pass_with_a_value_of_their_form(flavour: Flavour) -> None:
    for word, option in HARMLESS[flavour].items():
        words = said(option, word)
        reading = read_flags(words, [flavour])
        assert reading.refusals == (), words
        (found,) = reading.flags
        assert (found.option, found.flag, found.value) == (option, word, ([*words, None])[1])
        assert isinstance(found.option.effect, FlagEffect)


ML, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


@pytest.mark.parametrize(
    ("flavours", "flag", "reason"),
    [
        (Flavour, "--model-url", RefusalReason.DOWNLOADS),
        (Flavour, "-hfr", RefusalReason.DOWNLOADS),
        ([ML], "-dr", RefusalReason.DOWNLOADS),
        ([ML], "--fim-qwen-7b-spec", RefusalReason.DOWNLOADS),
        ([ML], "--models-dir", RefusalReason.MODEL),
        (Flavour, "--lora", RefusalReason.MODEL),
        (Flavour, "--override-kv", RefusalReason.MODEL),
        (Flavour, "--chat-template-file", RefusalReason.READS),
        (Flavour, "--slot-save-path", RefusalReason.WRITES),
        (Flavour, "-lcd", RefusalReason.WRITES),
        (Flavour, "-o", RefusalReason.WRITES),
        ([IK], "--sql-save-file", RefusalReason.WRITES),
        (Flavour, "--path", RefusalReason.LISTENS),
        (Flavour, "--host", RefusalReason.OURS),
        (Flavour, "--log-file", RefusalReason.LOGS),
        ([ML], "--log-prompts-dir", RefusalReason.LOGS),
        ([ML], "--tools", RefusalReason.CODE),
        ([ML], "--mcp-servers-json", RefusalReason.CODE),
        ([IK], "--sqlite-zstd-ext-file", RefusalReason.CODE),
        ([IK], "-dr", RefusalReason.ENDS),
    ],
)
def test_what_does_harm_is_refused_with_its_reason(
    flavours: Iterable[Flavour], flag: str, reason: RefusalReason
) -> None:
    for flavour in flavours:
        (refusal,) = read_flags([flag, "x"], [flavour]).refusals
        option = OPTIONS[flavour][flag]
        assert option.effect is reason
        assert option.why in refusal.message
        assert refusal.ours is (reason is RefusalReason.OURS)


def spellings(flag: str) -> st.SearchStrategy[list[str]]:
    """Ways to say a flag that a parser might take."""
    dashes = (flag.replace("-", "\u2013", 1), flag.replace("-", "\u2010"))
    ways = [flag, f"{flag}=x", flag.upper(), f"{flag} x", f" {flag}", f"{flag}\u200b", *dashes]
    if flag.startswith("--"):
        ways += [f"--{flag[2:].replace('-', '_')}", flag[1:], f"-{flag}", flag[:-1]]
    return st.sampled_from([[flag, "x"], *([way] for way in ways)])


@st.composite
def hidden(draw: st.DrawFn) -> tuple[Flavour, list[str], int]:
    """Harmless flags with a refused one somewhere among them, and its place."""
    flavour = draw(st.sampled_from(list(Flavour)))
    harmless = list({o.spellings: o for o in HARMLESS[flavour].values()}.values())
    around = draw(st.lists(st.sampled_from(harmless), max_size=4, unique_by=lambda o: o.spellings))
    groups = [said(option, draw(st.sampled_from(option.spellings))) for option in around]
    attack = draw(spellings(draw(st.sampled_from(sorted(REFUSED[flavour])))))
    place = draw(st.integers(0, len(groups)))
    words = [w for g in groups[:place] for w in g]
    return flavour, [*words, *attack, *(w for g in groups[place:] for w in g)], len(words)


@given(hidden())
def test_no_spelling_hides_a_refused_flag(case: tuple[Flavour, list[str], int]) -> None:
    flavour, words, place = case
    flag = normal(words[place])
    if flag in HARMLESS[flavour]:  # `-sp` cut from `--sp`...: another flag, and a harmless one
        return
    assert any(refusal.index == place for refusal in read_flags(words, [flavour]).refusals)
    assert any(refusal.index == place for refusal in read_flags(words).refusals) or (
        any(flag in table for table in HARMLESS.values())
    )


@given(
    st.sampled_from([(f, w) for f in Flavour for w, o in HARMLESS[f].items() if o.value]),
    st.sampled_from(sorted({w for t in REFUSED.values() for w in t})),
)
def test_a_flag_is_no_value(valued: tuple[Flavour, str], smuggled: str) -> None:
    flavour, flag = valued
    if smuggled in HARMLESS[flavour]:  # refused on the other engine only
        return
    reading = read_flags([flag, smuggled, "http://x/"], [flavour])
    assert not reading.flags
    assert {refusal.index for refusal in reading.refusals} >= {0, 1}


@given(st.lists(st.text(string.printable + "\u2013\u202e", max_size=20), max_size=6))
def test_what_passes_is_whole_and_known(words: list[str]) -> None:
    reading = read_flags(words)
    if not reading.refusals:
        again = [w for s in reading.flags for w in (s.flag, s.value) if w is not None]
        assert again == [normal(w) for w in words]


def test_a_flag_is_said_once() -> None:
    twice = ["--no-warmup", "--poll", "1", "--warmup"]
    (refusal,) = read_flags(twice, [Flavour.LLAMA_CPP]).refusals
    assert (refusal.index, refusal.message) == (3, "`--warmup` is said twice")


def test_what_the_table_does_not_know_is_refused_though_the_tool_has_it() -> None:
    (refusal,) = read_flags(["--new-thing"], offered={"--new-thing"}).refusals
    assert "not among the options that cook has reviewed" in refusal.message
    (cut,) = read_flags(["--model-ur"], [Flavour.LLAMA_CPP]).refusals
    assert "`--model-url`? it downloads" in cut.message


def test_a_harmless_flag_that_does_not_pass() -> None:
    """The tool at hand has none, or its value comes after an equals sign."""
    (refusal,) = read_flags(["--numa", "isolate"], offered={"--mlock"}, engine="llama-x").refusals
    assert refusal.missing
    assert refusal.message == "llama-x has no --numa"
    (refusal,) = read_flags(["--numa=isolate"]).refusals
    assert "two items" in str(refusal.hint)
