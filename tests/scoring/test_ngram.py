"""Draft-free methods: against a slow statement of each, and known answers."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.engines.speculation import DEFAULTS, NgramSettings, NgramType
from cook.formats.quant_types import Flavour
from cook.scoring.ngram import NgramRequest, NgramServer, table_order
from cook.scoring.simulate import Positions, Simulation
from tests.scoring.slow_ngram import SLOW

METHODS = [(flavour, one) for flavour in Flavour for one in DEFAULTS[flavour]]
EOG = frozenset({9})


def server(flavour: Flavour, method: NgramSettings) -> NgramServer:
    return NgramServer(method.of(flavour), flavour)


def request(prompt: list[int], tokens: list[int], reply: int | None = None) -> NgramRequest:
    ids, said = (np.array(part, np.int32) for part in (prompt, tokens))
    return NgramRequest(ids, said, reply or len(tokens), EOG, n_predict=len(tokens) + 1)


def steps(run: Simulation) -> list[tuple[int, int]]:
    return list(zip(run.length.tolist(), run.accepted.tolist(), strict=True))


@st.composite
def numbers(draw: st.DrawFn, flavour: Flavour, method: NgramType) -> NgramSettings:
    """Small ones, so that short texts draft."""
    own = DEFAULTS[flavour][method]
    small = {
        "size_n": st.integers(1, 4),
        "size_m": st.integers(1, 6),
        "min_hits": st.integers(1, 3),
        "n_max": st.integers(1, 9),
        "n_min": st.integers(0, 1),
        "p_min": st.sampled_from([0.0, 0.05, 0.3, 0.75]),
        "min_match": st.integers(1, 4),
        "depth": st.integers(5, 12),
    }
    chosen: dict[str, Any] = {name: draw(small[name]) for name in own.numbers}
    return NgramSettings(method, **chosen)


@st.composite
def talk(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """A prompt, a reply and its limits, of few tokens in phrases that come again."""
    phrases = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1))
    pieces = draw(st.lists(st.sampled_from(phrases), min_size=2, max_size=14))
    text = [token for piece in pieces for token in piece]
    cut = draw(st.integers(1, max(1, len(text) - 2)))
    prompt, tokens = text[:cut], text[cut:] or [1]
    reply = draw(st.integers(max(1, len(tokens) - 3), len(tokens)))
    room = draw(st.integers(0, 6))
    return prompt, tokens, reply, reply + room


@pytest.mark.parametrize("before_a_model", [False, True])
@pytest.mark.parametrize(("flavour", "method"), METHODS)
@settings(deadline=None, max_examples=35)
@given(data=st.data())
def test_as_the_slow_statement(
    data: st.DataObject, flavour: Flavour, method: NgramType, before_a_model: bool
) -> None:
    """Several requests of one server, so that what it keeps counts."""
    chosen = data.draw(numbers(flavour, method)).of(flavour)
    n_max = data.draw(st.integers(1, 12)) if before_a_model else 0
    ours = NgramServer(chosen, flavour)
    theirs = SLOW[method](chosen, flavour)
    for prompt, tokens, reply, limit in data.draw(st.lists(talk(), min_size=1, max_size=4)):
        context = len(prompt) + limit + data.draw(st.integers(0, 4))
        ids, said = (np.array(part, np.int32) for part in (prompt, tokens))
        asked = NgramRequest(ids, said, reply, EOG, limit, context)
        match, model = list[bool](), tuple[Any, ...]()
        if n_max:
            match = data.draw(st.lists(st.booleans(), min_size=len(said), max_size=len(said)))
            eog = np.isin(said, list(EOG))
            seen = Positions(len(prompt), reply, np.array(match), eog=eog)
            model = replace(seen, n_predict=limit, context=context), DraftSettings(n_max)
        assert steps(ours.answer(asked, *model)) == theirs.answer(asked, match, n_max)


def test_what_only_the_draft_model_spends() -> None:
    """Steps of the method spend nothing of the draft's; on ik it then has to catch up."""
    sentence = list(range(10, 40))
    said = [*sentence, *range(100, 110)]
    asked = request([1, *sentence, 2], said)
    for flavour in Flavour:
        seen = Positions(len(asked.prompt), asked.reply, np.zeros(len(said), np.bool_))
        one = server(flavour, NgramSettings(NgramType.SIMPLE, size_n=4, size_m=8))
        run = one.answer(asked, seen, DraftSettings(3))
        by_model = run.decodes > 0
        assert by_model.any()
        assert not by_model.all()
        assert (run.length[by_model] <= 3).all()
        assert not run.catch_up[~by_model].any()
        assert bool(run.catch_up.any()) is (flavour is Flavour.IK_LLAMA_CPP)


def test_a_repeated_sentence_is_drafted() -> None:
    sentence = list(range(10, 40))
    found = server(Flavour.LLAMA_CPP, NgramSettings(NgramType.SIMPLE, size_n=4, size_m=8))
    run = found.answer(request([1, *sentence, 2], sentence))
    assert (run.draft_n, run.draft_n_accepted) == (24, 24)
    assert steps(run)[:3] == [(0, 0), (0, 0), (0, 0)]  # four tokens must have come again


def test_mod_of_mainline_drafts_nothing_on_short_prompts() -> None:
    """Its least draft is 48 tokens: a repeated sentence of 30 is none."""
    sentence = list(range(10, 40))
    asked = request([1, *sentence, 2], sentence[:26])
    assert server(Flavour.LLAMA_CPP, NgramSettings(NgramType.MOD)).answer(asked).draft_n == 0
    eager = NgramSettings(NgramType.MOD, n_min=4)
    assert server(Flavour.LLAMA_CPP, eager).answer(asked).draft_n_accepted


def test_the_pool_of_mod_is_shared_and_that_of_simple_is_not() -> None:
    """The same reply again: drafted from the request before."""
    reply = list(range(10, 90))
    for method, remembered in (
        (NgramSettings(NgramType.MOD, n_min=1), True),
        (NgramSettings(NgramType.SIMPLE), False),
    ):
        one = server(Flavour.LLAMA_CPP, method)
        one.answer(request([1, 2, 3], reply))
        again = one.answer(request([4, 5, 6], reply))
        assert bool(again.draft_n_accepted) is remembered


def test_cache_forgets_to_read_the_next_prompt() -> None:
    """Its table is counted by positions: a second, shorter request adds nothing (#27852)."""
    one = server(Flavour.LLAMA_CPP, NgramSettings(NgramType.CACHE))
    first = list(range(10, 80))
    one.answer(request(first, [1, 2, 3, 4, 5]))
    phrase = [101, 102, 103, 104, 105, 106]
    prompt = [*phrase, 7, *phrase, 8, *phrase, 9]
    assert one.answer(request(prompt, phrase)).draft_n == 0
    fresh = server(Flavour.LLAMA_CPP, NgramSettings(NgramType.CACHE))
    assert fresh.answer(request(prompt, phrase)).draft_n_accepted


def test_an_end_inside_a_draft() -> None:
    """Mainline counts nothing from it on; ik counts what the target said after it."""
    phrase = [1, 2, 3, 4, 9, 5, 6, 7]
    settings_ = NgramSettings(NgramType.SIMPLE, size_n=2, size_m=4)
    asked = request([8, *phrase, 8, 3], [1, *phrase[1:]], reply=5)
    for flavour, expected in ((Flavour.LLAMA_CPP, 2), (Flavour.IK_LLAMA_CPP, 4)):
        run = server(flavour, settings_).answer(asked)
        assert (run.draft_n, run.draft_n_accepted) == (4, expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_table_order_is_that_of_libstdcxx(tmp_path: Path) -> None:
    source = tmp_path / "order.cpp"
    source.write_text(
        "#include <cstdio>\n#include <cstdlib>\n#include <unordered_map>\n"
        "int main(int n, char ** v) { std::unordered_map<int, int> m;\n"
        "for (int i = 1; i < n; i++) m.emplace(atoi(v[i]), i);\n"
        'auto c = m; for (auto & p : c) printf("%d ", p.first); }\n'
    )
    subprocess.run(["g++", str(source), "-o", str(tmp_path / "order")], check=True)
    rng = np.random.default_rng(3)
    for count in (1, 5, 13, 14, 30, 130, 700):
        keys = rng.permutation(60_000)[:count].tolist()
        said = subprocess.run(
            [str(tmp_path / "order"), *map(str, keys)], check=True, capture_output=True, text=True
        )
        assert table_order(keys) == [int(word) for word in said.stdout.split()]
