"""Whatever stands in a recipe file, loading gives a recipe or a RecipeError with its place."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cook.documents.tree import read_text
from cook.errors import RecipeError
from cook.recipe.load import load_recipe, parse_recipe
from cook.recipe.pattern import PatternError, PatternTimeout, parse_pattern

BROKEN = Path(__file__).parents[1] / "data" / "broken_recipes"
SEEDS = [
    *(p.read_bytes() for p in sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))),
    *(p.read_bytes() for p in sorted(BROKEN.glob("*.yaml"))),
]
TOKENS = [
    *(b": ", b"- ", b"\n", b"  ", b"{", b"}", b"[", b"]", b",", b"'", b'"', b"|", b">", b"#"),
    *(b"&a ", b"*a", b"<<", b"!!int ", b"---\n", b"...\n", b"%YAML 1.1\n", b"? ", b"~", b"\t"),
    *(b"1e999", b".nan", b"0x", b"-1", b"true", b"\x00", b"\xff", b"\xc3\xa9", b"\xe2\x80\xa8"),
    *(b"extends", b"rules", b"name", b"quants", b"sweep", b"over", b"score", b"imatrix", b"re:("),
    *(b"attention", b"q8_0", b"Q4_K_M", b"hf://a/b@c/d", b"demo://x", b"{1}", b"((((", b"\\"),
]


def load(raw: bytes, path: Path) -> None:
    """Load; only RecipeError may escape, and each problem has a place inside the file."""
    path.write_bytes(raw)
    lines = raw.decode("utf-8", "replace").count("\n") + raw.count(b"\r") + 10
    try:
        load_recipe(path)
    except RecipeError as error:
        problems = error.problems
    else:
        return
    for problem in problems:
        assert problem.message
        assert 1 <= problem.line <= lines
        assert problem.column >= 1


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real recipe with some of its bytes removed, repeated, or replaced by YAML's own words."""
    raw = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(raw)))
        end = min(len(raw), at + draw(st.integers(0, 40)))
        put = draw(
            st.one_of(st.sampled_from(TOKENS), st.just(raw[at:end] * 2), st.binary(max_size=3))
        )
        raw = raw[:at] + put + raw[draw(st.sampled_from([at, end])) :]
    return raw


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["Q4_K_M", "q8_0", "attention", "A", "B", "trace", "demo", "x.gguf", "{1}"]),
)
KEY_WORDS = (
    "version name engine model source imatrix corpus coverage experts evaluate quants type extends "
    "rules drop_rules mixture sweep over drafts score target args draft n_max p_min sampling "
    "prompts weights categories pick subject_to extra attention output re:x"
)
KEYS = st.sampled_from(KEY_WORDS.split(" "))
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)
        ),
        max_leaves=25,
    ),
    max_size=12,
)


def given_often(examples: int, **strategies: st.SearchStrategy[Any]) -> Any:
    """``examples`` of what hypothesis draws, of a test that writes them into one folder."""
    health = [HealthCheck.function_scoped_fixture]
    often = settings(max_examples=examples, deadline=None, suppress_health_check=health)
    return lambda test: often(given(**strategies)(test))


def mutated_recipes(raw: bytes, tmp_path: Path) -> None:
    load(raw, tmp_path / "r.yaml")


def wrong_shapes(document: dict[str, object], tmp_path: Path) -> None:
    full = {"version": 1, "name": "x", "model": {"source": "a.gguf"}, **document}
    load(json.dumps(full).encode(), tmp_path / "r.yaml")


def patterns(source: str, name: str) -> None:
    """Refused within itself, or it compiles and matches."""
    offset = 0
    with suppress(PatternTimeout):
        try:
            parse_pattern(source).search(name)
        except PatternError as error:
            offset = error.offset
    assert 0 <= offset <= len(source)


PATTERNS = st.text(alphabet="ab.01()[]{}|*+?^$\\-:!=<>,dwsbP x_", max_size=24)
MUTATED, WRONG = {"raw": mutated()}, {"document": DOCUMENTS}
PATTERN = {"source": PATTERNS, "name": st.text(alphabet="ab.01 _-x=", max_size=12)}
test_mutated_recipes = given_often(30, **MUTATED)(mutated_recipes)
test_any_bytes = given_often(30, raw=st.binary(max_size=200))(mutated_recipes)
test_wrong_shapes = given_often(30, **WRONG)(wrong_shapes)
test_patterns = given_often(100, **PATTERN)(patterns)
test_mutated_recipes_at_length = pytest.mark.soak(given_often(5_000, **MUTATED)(mutated_recipes))
test_wrong_shapes_at_length = pytest.mark.soak(given_often(5_000, **WRONG)(wrong_shapes))
test_patterns_at_length = pytest.mark.soak(given_often(50_000, **PATTERN)(patterns))


def test_seeds_are_read() -> None:
    assert len(SEEDS) > 40
    assert parse_recipe(read_text(BROKEN.parents[2] / "recipes" / "demo.yaml"), Path("demo.yaml"))
