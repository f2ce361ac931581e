"""The reviewed table of the engines' options: whole, exact, and not to be talked round."""

from __future__ import annotations

import string
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


def listed(flavour: Flavour) -> dict[str, frozenset[str]]:
    return {
        tool: parse_flags((RECORDED / flavour / f"{tool}.txt").read_text(errors="replace"))
        for tool in REACHED
    }


def said(option: Option, flag: str) -> list[str]:
    if option.value is None:
        return [flag]
    return [flag, VALUES.get(option.value.says) or option.value.says.split(" or ")[0]]


def unoffered(flavour: Flavour, flags: Any) -> list[str]:
    offered = frozenset().union(*(flags.get(tool, ()) for tool in REACHED))
    return [w for w, o in HARMLESS[flavour].items() if w not in offered and not o.unlisted]


@BOTH
def test_every_option_of_the_help_was_reviewed(flavour: Flavour) -> None:
    for tool, flags in listed(flavour).items():
        assert flags - GARBLED <= set(OPTIONS[flavour]), tool


@BOTH
def test_every_harmless_flag_is_in_the_help(flavour: Flavour) -> None:
    assert unoffered(flavour, listed(flavour)) == []


@pytest.mark.engine
def test_every_harmless_flag_is_in_the_bundled_engine(bundled: Any) -> None:
    assert unoffered(Flavour.LLAMA_CPP, bundled.facts.flags) == []
    for tool in REACHED:
        known = set(OPTIONS[Flavour.LLAMA_CPP]) | GARBLED
        assert set(bundled.facts.flags[tool]) <= known, tool


@pytest.mark.ik
def test_every_harmless_flag_is_in_ik(ik_engine: Any) -> None:
    assert unoffered(Flavour.IK_LLAMA_CPP, ik_engine.facts.flags) == []
    for tool in REACHED:
        assert set(ik_engine.facts.flags[tool]) <= set(OPTIONS[Flavour.IK_LLAMA_CPP]), tool


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


@BOTH
@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (["--model-url", "http://x/y.gguf"], RefusalReason.DOWNLOADS),
        (["-mu", "http://x/y.gguf"], RefusalReason.DOWNLOADS),
        (["-hfr", "a/b"], RefusalReason.DOWNLOADS),
        (["--hf-token", "x"], RefusalReason.DOWNLOADS),
        (["--lora", "x.gguf"], RefusalReason.MODEL),
        (["--override-kv", "a.b=int:1"], RefusalReason.MODEL),
        (["--chat-template-file", "/etc/passwd"], RefusalReason.READS),
        (["--slot-save-path", "/tmp"], RefusalReason.WRITES),
        (["-lcd", "/tmp/x"], RefusalReason.WRITES),
        (["-o", "/tmp/x"], RefusalReason.WRITES),
        (["--path", "/"], RefusalReason.LISTENS),
        (["--host", "0.0.0.0"], RefusalReason.OURS),
        (["--log-file", "/tmp/x"], RefusalReason.LOGS),
    ],
)
def test_what_does_harm_is_refused_with_its_reason(
    flavour: Flavour, attack: list[str], reason: RefusalReason
) -> None:
    (refusal,) = read_flags(attack, [flavour]).refusals
    option = OPTIONS[flavour][attack[0]]
    assert option.effect is reason
    assert option.why in refusal.message
    assert refusal.ours is (reason is RefusalReason.OURS)


@pytest.mark.parametrize(
    ("flavour", "flag", "reason"),
    [
        (Flavour.LLAMA_CPP, "--tools", RefusalReason.CODE),
        (Flavour.LLAMA_CPP, "--mcp-servers-json", RefusalReason.CODE),
        (Flavour.LLAMA_CPP, "-dr", RefusalReason.DOWNLOADS),
        (Flavour.LLAMA_CPP, "-hf", RefusalReason.DOWNLOADS),
        (Flavour.LLAMA_CPP, "--fim-qwen-7b-spec", RefusalReason.DOWNLOADS),
        (Flavour.LLAMA_CPP, "--models-dir", RefusalReason.MODEL),
        (Flavour.LLAMA_CPP, "--log-prompts-dir", RefusalReason.LOGS),
        (Flavour.IK_LLAMA_CPP, "--sqlite-zstd-ext-file", RefusalReason.CODE),
        (Flavour.IK_LLAMA_CPP, "--sql-save-file", RefusalReason.WRITES),
        (Flavour.IK_LLAMA_CPP, "-ld", RefusalReason.LOGS),
        (Flavour.IK_LLAMA_CPP, "-dr", RefusalReason.ENDS),
    ],
)
def test_what_one_engine_has_alone(flavour: Flavour, flag: str, reason: RefusalReason) -> None:
    assert OPTIONS[flavour][flag].effect is reason
    assert read_flags([flag, "x"], [flavour]).refusals


def spellings(flag: str) -> st.SearchStrategy[list[str]]:
    """Ways to say a flag that a parser might take."""
    ways = [
        [flag],
        [flag, "x"],
        [f"{flag}=x"],
        [flag.upper()],
        [f"{flag} x"],
        [f" {flag}"],
        [f"{flag}\u200b"],
        [flag.replace("-", "\u2013", 1)],
        [flag.replace("-", "\u2010")],
    ]
    if flag.startswith("--"):
        ways += [[f"--{flag[2:].replace('-', '_')}"], [flag[1:]], [f"-{flag}"], [flag[:-1]]]
    return st.sampled_from(ways)


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


def test_a_harmless_flag_must_be_in_the_help_of_the_tool() -> None:
    (refusal,) = read_flags(["--numa", "isolate"], offered={"--mlock"}, engine="llama-x").refusals
    assert refusal.lacking
    assert refusal.message == "llama-x has no --numa"


def test_a_value_after_an_equals_sign_is_no_value() -> None:
    (refusal,) = read_flags(["--numa=isolate"]).refusals
    assert refusal.hint is not None
    assert "two items" in refusal.hint
