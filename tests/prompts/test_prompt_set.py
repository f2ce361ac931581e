"""The bundled prompts are what they claim to be, bad prompt files are refused with a line, and
halves and calibration share prompts out."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.prompts import prompt_set
from cook.prompts.prompt_set import (
    Half,
    Prompt,
    PromptSet,
    balance_halves,
    calibrates,
    load_prompts,
    require_apart,
    select,
    split_for_calibration,
    subset,
)

ROOT = Path(__file__).parents[2]
IMATRIX = ROOT / "imatrix"
CATEGORIES = (
    *("code", "rewrite", "extract", "summarize"),
    *("explain", "chat", "reasoning", "translate"),
)


def default_rows() -> list[dict[str, Any]]:
    text = files("cook.prompts").joinpath("default.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def shingles(text: str, size: int = 64) -> set[str]:
    flat = " ".join(text.split())
    return {flat[start : start + size] for start in range(len(flat) - size + 1)}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(identifier: str, category: str = "code", **more: object) -> dict[str, object]:
    return {"id": identifier, "category": category, "prompt": f"say {identifier}", **more}


def test_long_prompts_are_long_and_balanced() -> None:
    prompts = load_prompts("long").prompts
    assert len(prompts) == 16
    assert min(len(prompt.text) for prompt in prompts) > 4 * 4000, "four characters a token"
    assert Counter(prompt.half for prompt in prompts) == {"pick": 8, "report": 8}
    assert not {prompt.id for prompt in prompts} & {row["id"] for row in default_rows()}


def test_default_has_every_stratum() -> None:
    prompts = load_prompts("default")
    assert prompts.name == "default"
    assert prompts.categories == CATEGORIES
    assert min(Counter(prompt.category for prompt in prompts.prompts).values()) >= 13
    assert len({prompt.text for prompt in prompts.prompts}) == len(prompts.prompts)


def test_default_prompts_share_no_passage() -> None:
    owner: dict[str, str] = {}
    for prompt in load_prompts("default").prompts:
        assert re.fullmatch(rf"{prompt.category}-\d\d", prompt.id)
        for run in shingles(prompt.text):
            assert owner.setdefault(run, prompt.id) == prompt.id, (run, owner[run], prompt.id)


def test_a_third_of_default_has_a_long_context_and_halves_balance() -> None:
    rows = default_rows()
    long = [r for r in rows if r["context"] == "long"]
    assert 3 * len(long) >= len(rows)
    assert {"rewrite", "extract", "summarize", "code", "explain"} <= {r["category"] for r in long}
    assert all(4_000 <= len(r["prompt"]) <= 14_000 for r in long)
    assert all(len(r["prompt"]) < 4_000 for r in rows if r["context"] == "short")
    counts = Counter((r["category"], r["context"], r["half"]) for r in rows)
    for category in CATEGORIES:
        for context in ("short", "long"):
            assert counts[category, context, "pick"] == counts[category, context, "report"]


def test_missing_halves_alternate_by_id_whatever_the_order(tmp_path: Path) -> None:
    names = ["d", "b", "a", "c"]
    one = load_prompts(write(tmp_path / "one.jsonl", *map(row, names)))
    two = load_prompts(write(tmp_path / "two.jsonl", *map(row, sorted(names))))
    expected = {"a": "pick", "b": "report", "c": "pick", "d": "report"}
    assert {p.id: p.half for p in one.prompts} == expected
    assert {p.id: p.half for p in two.prompts} == expected
    assert [p.id for p in one.prompts] == names
    assert one.sha256 != two.sha256  # another order is another set


def test_sha256_covers_content_and_not_spelling(tmp_path: Path) -> None:
    plain = write(tmp_path / "p.jsonl", row("a", half="pick"), row("b", half="report"))
    spaced = tmp_path / "s.jsonl"
    spaced.write_bytes(
        b"\xef\xbb\xbf" + plain.read_bytes().replace(b", ", b" ,\t").replace(b"\n", b"\r\n\r\n")
    )
    assert load_prompts(str(spaced)).sha256 == load_prompts(plain).sha256
    changed = write(tmp_path / "c.jsonl", row("a", half="report"), row("b", half="report"))
    assert load_prompts(changed).sha256 != load_prompts(plain).sha256


def test_line_separator_within_a_prompt_is_text(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    line = json.dumps({"id": "a", "category": "x", "prompt": "one\u2028two"}, ensure_ascii=False)
    path.write_text(line, encoding="utf-8")
    assert load_prompts(path).prompts[0].text == "one\u2028two"


GOOD = b'{"id": "a", "category": "x", "prompt": "p"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b", "category": "x", "prompt": "p"', "not JSON: "),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": ' + b"1" * 5000 + b"}", "a number in it is too long"),
        (b'{"category": "x"}', "no 'id' and no 'prompt'"),
        (b'{"id": "b", "category": "x", "prompt": " \\n"}', "'prompt' is empty"),
        (b'{"id": 7, "category": "x", "prompt": "p"}', "'id' must be a string"),
        (b'{"id": "a", "category": "y", "prompt": "q"}', "id 'a' was used before, in line 1"),
        (b'{"id": "b", "category": "x", "prompt": "p", "promt": "q"}', "unknown key 'promt'"),
        (b'{"id": "b", "category": "x", "prompt": "p", "id": "c"}', "key 'id' is given twice"),
        (b'{"id": "b", "category": "x", "prompt": "p", "half": "both"}', "'half' must be pick or"),
        (b'{"id": "b", "category": "x", "prompt": "p", "context": "xl"}', "'context' must be"),
        (b'{"id": "b", "category": "x", "prompt": "caf\xe9"}', "not UTF-8: byte 0xe9 at position"),
        (b'{"id": "b", "category": "x", "prompt": "\\ud800"}', "half of a surrogate pair"),
        (b'{"id": "' + b"b" * 201 + b'", "category": "x", "prompt": "p"}', "longer than 200"),
        (
            b'{"id": "b", "category": "x", "prompt": "' + b"p" * (4 * 1024**2 + 1) + b'"}',
            "the prompt is larger than 4 MiB",
        ),
    ],
)
def test_a_bad_line_is_reported_with_file_and_line(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD + b"\n" + line)
    with pytest.raises(InputError) as caught:
        load_prompts(path)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert message in caught.value.message


def test_a_missing_file_names_the_bundled_sets(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    with pytest.raises(InputError, match=r"empty\.jsonl:1: no prompt in this file"):
        load_prompts(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="does not exist") as caught:
        load_prompts(tmp_path / "none.jsonl")
    assert "demo-calibration" in (caught.value.hint or "")
    with pytest.raises(InputError, match="is not a regular file"):
        load_prompts(tmp_path)
    with pytest.raises(InputError):
        load_prompts("a\0b")


def test_limits_of_file_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "many.jsonl", *(row(f"p{i}") for i in range(4)))
    monkeypatch.setattr(prompt_set, "MAX_PROMPTS", 3)
    with pytest.raises(InputError, match=r"many\.jsonl:4: more than 3 prompts"):
        load_prompts(path)
    monkeypatch.setattr(prompt_set, "MAX_FILE_BYTES", 10)
    with pytest.raises(InputError, match=r"many\.jsonl: larger than"):
        load_prompts(path)


def made(*halves: tuple[str, Half]) -> PromptSet:
    """One prompt for each (category, half)."""
    prompts = [Prompt(f"p{n}", category, f"text {n}", h) for n, (category, h) in enumerate(halves)]
    return subset(PromptSet("made", (), ""), prompts)


SETS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from(prompt_set.HALVES)), min_size=2, max_size=60
).map(lambda halves: made(*halves))


@given(SETS, st.integers(1, 50))
def test_select_is_deterministic_and_balanced(prompts: PromptSet, limit: int) -> None:
    chosen = select(prompts, limit, None)
    assert chosen == select(prompts, limit, None)
    assert len(chosen.prompts) == min(limit, len(prompts.prompts))
    assert [p for p in prompts.prompts if p in chosen.prompts] == list(chosen.prompts)
    had = Counter(p.category for p in prompts.prompts)
    got = Counter(p.category for p in chosen.prompts)
    most = max(got.values())
    for category in prompts.categories:
        assert got[category] >= min(had[category], most - 1)
        halves = Counter(p.half for p in chosen.prompts if p.category == category)
        stock = Counter(p.half for p in prompts.prompts if p.category == category)
        for half, other in (prompt_set.HALVES, prompt_set.HALVES[::-1]):
            assert halves[half] >= min(stock[half], halves[other] - 1)


def test_select_of_categories() -> None:
    prompts = load_prompts("default")
    chosen = select(prompts, 5, ["chat", "code"])
    assert Counter(p.category for p in chosen.prompts) == {"code": 3, "chat": 2}
    assert chosen.sha256 not in ("", prompts.sha256)
    assert select(prompts, None, None) == prompts
    assert len(select(prompts, None, ["chat"]).prompts) == 14


def test_select_refuses_what_makes_no_sense() -> None:
    prompts = load_prompts("default")
    with pytest.raises(InputError, match="at least 1"):
        select(prompts, 0, None)
    with pytest.raises(InputError, match="no such prompt category: poetry") as caught:
        select(prompts, None, ["poetry", "chat"])
    assert "translate" in (caught.value.hint or "")
    with pytest.raises(InputError, match="leaves no prompt"):
        select(prompts, None, [])


@given(SETS)
@settings(max_examples=100, deadline=None)
def test_halves_balance_and_nothing_else_changes(prompts: PromptSet) -> None:
    dealt = balance_halves(prompts)
    assert [(p.id, p.category, p.text) for p in dealt.prompts] == [
        (p.id, p.category, p.text) for p in prompts.prompts
    ]
    picks = sum(p.half == "pick" for p in dealt.prompts)
    assert abs(2 * picks - len(dealt.prompts)) <= 1
    assert balance_halves(dealt) is dealt


def test_every_categorys_odd_prompt_does_not_go_to_choosing() -> None:
    """Ten categories, 12 prompts: 10 were chosen on and 2 reported on."""
    wanted = select(load_prompts("default"), 12)
    assert Counter(p.half for p in wanted.prompts)["pick"] > 6
    assert Counter(p.half for p in balance_halves(wanted).prompts) == {"pick": 6, "report": 6}


def test_one_prompt_cannot_be_both_chosen_and_reported_on() -> None:
    with pytest.raises(InputError, match="two prompts at least"):
        balance_halves(made(("a", "pick")))


def named(*ids: str) -> PromptSet:
    prompts = [Prompt(i, "c", f"text of {i}", "pick") for i in sorted(ids)]
    return subset(PromptSet("mine", (), ""), prompts)


@given(st.sets(st.text("abc-019", min_size=1, max_size=8), min_size=30, max_size=60))
def test_other_prompts_move_none(ids: set[str]) -> None:
    every = named(*ids)
    split = split_for_calibration(Path("mine.jsonl"), every)
    kept = {p.id for p in split.calibration.prompts}
    assert kept | {p.id for p in split.scoring.prompts} == ids
    fewer = sorted(ids)[::2]
    assert {i for i in fewer if calibrates(i)} == kept & set(fewer)


def test_about_one_in_three() -> None:
    share = sum(calibrates(f"prompt-{i}") for i in range(3000)) / 3000
    assert 0.3 < share < 0.37


def test_the_default_set_leaves_every_category_on_both_sides() -> None:
    every = load_prompts("default")
    split = split_for_calibration("default", every)
    assert set(split.calibration.categories) == set(every.categories)
    assert set(split.scoring.categories) == set(every.categories)
    assert {p.half for p in split.scoring.prompts} == {"pick", "report"}


def test_the_demo_has_prompts_of_its_own_for_it() -> None:
    every = load_prompts("demo")
    split = split_for_calibration("demo", every)
    assert split.scoring == every
    assert split.calibration == load_prompts("demo-calibration")


def test_nothing_left_is_an_error() -> None:
    kept = [f"p{i}" for i in range(40) if calibrates(f"p{i}")]
    rest = [f"p{i}" for i in range(40) if not calibrates(f"p{i}")]
    with pytest.raises(InputError, match="none is left for scoring"):
        split_for_calibration(Path("m"), named(*kept))
    with pytest.raises(InputError, match="none is left for calibration"):
        split_for_calibration(Path("m"), named(*rest))


def test_a_text_in_both_is_an_error() -> None:
    one = named("a", "b")
    twin = PromptSet("twin", (Prompt("z", "c", " text of b\n", "pick"),), "")
    with pytest.raises(InputError, match=r"prompt z is also calibrated on \(as b\)"):
        require_apart(one, twin)


def test_imatrix_readme_tells_the_truth() -> None:
    readme = (IMATRIX / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w./-]+\.txt)` \| ([\d,]+) \| `([0-9a-f]{64})`", readme, re.M)
    assert {name for name, _, _ in listed} == {"calibration-v1.txt", "own/text-v1.txt"}
    for name, size, digest in listed:
        data = (IMATRIX / name).read_bytes()
        assert len(data) == int(size.replace(",", "")), name
        assert hashlib.sha256(data).hexdigest() == digest, name


def test_every_source_of_the_corpus_is_in_readme_and_notice() -> None:
    script = (IMATRIX / "make_calibration.py").read_text(encoding="utf-8")
    archives = re.findall(r'"([\w.-]+(?:\.tar\.gz|\.whl))"', script)
    assert len(archives) > 10
    readme = (IMATRIX / "README.md").read_text(encoding="utf-8")
    notice = (IMATRIX / "NOTICE").read_text(encoding="utf-8")
    for archive in archives:
        assert f"| `{archive}` |" in readme
        assert f"\n{archive}\n" in notice


@pytest.mark.parametrize("name", ["default", "demo"])
def test_calibration_shares_no_run_of_64_characters_with_prompts(name: str) -> None:
    corpus = shingles((IMATRIX / "calibration-v1.txt").read_text(encoding="utf-8"))
    for prompt in load_prompts(name).prompts:
        shared = shingles(prompt.text) & corpus
        assert not shared, (prompt.id, sorted(shared)[:1])
