"""Speeds and speedups: one definition, by which all that is printed divides."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cook.engines.speculation import NgramSettings, NgramType
from cook.record.record import PromptFigures, Record, write_record
from cook.report import speedups
from cook.report.card import CardFacts, card
from cook.report.document import Table
from cook.report.headline import headline
from cook.report.sections import lengths, speeds, tables
from cook.report.show import shown
from cook.report.speedups import (
    DECODE,
    WHOLE,
    acceptance_error,
    base_of,
    drafts_at_their_best,
    runs_of,
    speed_interval,
    speed_notes,
    speed_of,
    speedups_by_category,
)
from cook.scoring.compare import common
from tests.report.records import SCORED, easy_half, of_name, tables_of, with_candidates
from tests.report.records import record as whole_record


def half_digit(text: str) -> tuple[float, float]:
    """The figure that ``text`` begins with, and half of its last digit."""
    found = re.match(r"(\d+(?:\.(\d+))?)", text)
    assert found, text
    return float(found[1]), 0.5 * 10.0 ** -len(found[2] or "")


def divides(speedup: str | None, speed: str | None, base: str | None) -> bool:
    """Whether the printed ``speedup`` is the quotient of the printed speeds, to its last digit."""
    (ratio, slack), (mine, off), (theirs, their_off) = (
        half_digit(text or "") for text in (speedup, speed, base)
    )
    low, high = (mine - off) / (theirs + their_off), (mine + off) / (theirs - their_off)
    return low - slack <= ratio <= high + slack


@pytest.fixture(params=SCORED)
def scored(request: pytest.FixtureRequest) -> Record:
    return SCORED[request.param]()


def rows_of(table: Table) -> list[dict[str, str | None]]:
    return [
        dict(zip((title for title, _ in table.columns), row, strict=True)) for row in table.rows
    ]


def test_every_row_of_every_table_of_candidates_divides(scored: Record) -> None:
    printed = shown(scored)
    wide = rows_of(printed.wide)
    (base,) = (row for row in wide if row["candidate"] == base_of(scored).name)
    checked = 0
    for table in (printed.table, printed.wide, *tables_of(tables.candidates(scored))):
        for row in rows_of(table):
            for what in ("decode", "end-to-end"):
                ratio = next((row[t] for t in row if t.startswith(f"{what} speedup")), None)
                speed = row.get(f"{what} t/s")
                if ratio is not None and speed is not None:
                    assert divides(ratio, speed, base[f"{what} t/s"]), (row, base)
                    checked += 1
    assert checked >= 2 * len(wide)


def test_the_first_plot_the_lengths_and_the_card_have_the_same_figures(scored: Record) -> None:
    reference = f"{speed_of(scored, base_of(scored)).tokens_per_s:.2f}"  # type: ignore[arg-type]
    (figures,) = tables_of(speeds.by_draft(scored))
    for _, _, speed, speedup, _ in figures.rows:
        assert divides(speedup, speed, reference)
    whole = replace(scored, pick=replace(scored.pick, maximize="end_to_end_speed"))
    (by_length,) = tables_of(lengths.section(whole))
    assert by_length.caption == f"Without a draft: {reference} tokens/s."
    cells = {cell.lstrip("~") for row in by_length.rows for cell in row[1:] if cell}
    assert {row[2] for row in figures.rows} <= cells
    text = card(scored, CardFacts("M", {d.quant: (f"{d.quant}.gguf",) for d in scored.drafts}))
    for row in re.findall(r"^\| .*x.* \|$", text, re.MULTILINE):
        columns = [c.strip() for c in row.strip("|").split("|")]
        place = next(i for i, c in enumerate(columns) if re.match(r"\d\.\d\dx", c))
        assert divides(columns[place], columns[place - 1], reference), row


def test_the_headline_divides(scored: Record) -> None:
    facts = {fact.label: fact for fact in headline(scored).facts}
    whole = scored.pick.maximize == "end_to_end_speed"
    label = "end-to-end speed" if whole else "decode speed"
    base = speed_of(scored, base_of(scored), WHOLE if whole else DECODE)  # type: ignore[arg-type]
    speedup = facts["end-to-end speedup"].value if whole else facts[label].note.split(", ")[-1]
    assert divides(speedup, facts[label].value, f"{base.tokens_per_s:.2f}")


def test_the_sentence_has_the_speedups_of_the_pick_s_row(scored: Record) -> None:
    wide = shown(scored).wide
    assert wide.strong is not None
    row = rows_of(wide)[wide.strong]
    cells = [cell or "" for title, cell in row.items() if "speedup" in title]
    ratios = re.findall(r"(\d+\.\d\d)x(?: as fast| end to end)", scored.pick.sentence)
    assert ratios
    for ratio in ratios:
        assert any(cell.startswith(f"{ratio}x") for cell in cells), (ratio, cells)


def test_what_a_forecast_is_off_by_is_the_quotient_of_the_two_that_are_printed(
    scored: Record,
) -> None:
    both = [c for c in scored.candidates if c.live and c.predicted]
    rows = [row for table in tables_of(speeds.predicted_live(scored)) for row in table.rows]
    assert len(rows) == len(both)
    for _, *cells in rows:
        for predicted, live, off_by in (cells[:3], cells[3:]):
            ratio = float(predicted or 0) / float(live or 0)
            assert 100 * (ratio - 1) == pytest.approx(float(off_by.rstrip("%")), abs=0.06)
    for candidate in both:
        predicted_s, live_s = speeds.forecast_check(candidate) or (0.0, 1.0)
        assert predicted_s / live_s - 1 == pytest.approx(candidate.predicted.off_by)


def test_the_marked_row_is_the_best_live_row_or_a_note_says_why(scored: Record) -> None:
    objective = DECODE if scored.pick.maximize == "decode_speed" else WHOLE
    found = {c.name: s for c in scored.candidates if (s := speed_of(scored, c, objective))}
    ran = {name: s for name, s in found.items() if s.live} or found
    best = max(ran, key=lambda name: ran[name].speedup or 0.0)
    if best != scored.pick.candidate:
        said = f"On the {ran[best].part} of {best} the pick has"
        assert any(note.startswith(said) for note in speed_notes(scored))


def test_requests_of_a_second_pass_are_counted_as_requests(
    records: ModuleType, record: Record
) -> None:
    """Both passes are of the same prompts."""
    again = []
    for name in ("no draft", "Q8_0 n_max=4", "Q4_K_M n_max=4"):
        one = of_name(record, name)
        ids = tuple(f"p{i % records.BLOCK}" for i in range(len(one.prompts.ids)))
        again.append(replace(one, prompts=replace(one.prompts, ids=ids)))
    changed = with_candidates(record, *again)
    assert [speed_of(changed, one).part for one in again[1:]] == [None, "12 of 24 requests"]


def test_forecasts_of_what_did_not_run_are_multiplied_by_the_printed_factor(record: Record) -> None:
    guessed = of_name(record, "IQ1_S n_max=4")
    unscaled = replace(record, factors=())
    for objective, factor in ((WHOLE, 0.97), (DECODE, 0.962)):
        scaled, plain = (speed_of(one, guessed, objective) for one in (record, unscaled))
        assert scaled.speedup == pytest.approx(factor * (plain.speedup or 0.0))
    assert plain.speedup == pytest.approx(guessed.predicted.decode_speedup)
    by_category = zip(
        *(speedups_by_category(one, guessed) for one in (record, unscaled)), strict=True
    )
    for one, other in by_category:
        assert (one.name, one.ratio) == (other.name, pytest.approx(0.97 * other.ratio))
    note = "Forecasts of the rows that did not run are multiplied by 0.97, decoding by 0.96"
    assert f"{note} (2 drafts ran)" in [*speed_notes(record)]
    assert not any(note.startswith("Forecasts") for note in speed_notes(unscaled))


def test_a_server_that_learns_says_after_how_many_requests(record: Record) -> None:
    ngram: Any = {"settings": None, "ngram": NgramSettings(NgramType.MOD)}
    rival = replace(record.candidates[2], name="ngram-mod", draft="ngram-mod", **ngram)
    said = "ngram-mod learns from every request: its speed is after 24 requests"
    assert said in [*speed_notes(with_candidates(record, rival))]


def test_a_category_s_interval_holds_its_ratio(record: Record) -> None:
    found = speedups_by_category(record, record.candidates[2])
    assert len(found) == 3
    for one in found:
        assert len(one.each) == 8
        assert min(one.each) <= one.ratio <= max(one.each)
        assert one.interval.low < one.ratio < one.interval.high


def test_a_block_pairs_with_the_same_block_only(record: Record) -> None:
    one = of_name(record, "Q8_0 n_max=4")
    moved = replace(one, prompts=replace(one.prompts, block=(0,) * 12 + (7,) * 12))
    changed = with_candidates(record, moved)
    assert {len(c.each) for c in speedups_by_category(changed, moved)} == {4}


def test_a_no_draft_that_did_not_run_is_no_reference(records: ModuleType, record: Record) -> None:
    """Its forecast may be the faster one, but nothing that ran was compared with it."""
    bare = record.candidates[0]
    fast = records.requests(150.0)
    guess = records.prediction(fast, fast, (), 0)
    other = replace(bare, name="no draft (ik)", engine="ik", live=None, predicted=guess)
    assert base_of(with_candidates(record, other)) == bare


def test_without_a_no_draft_there_is_a_speed_and_no_speedup(records: ModuleType) -> None:
    record = records.record(predicted=False)
    alone = replace(record, candidates=record.candidates[1:])
    found = speed_of(alone, alone.candidates[0])
    assert found.speedup is None
    assert found.text is None
    assert drafts_at_their_best(alone) == []


def prompts(accepted: list[int], first: int = 0) -> PromptFigures:
    count = len(accepted)
    return PromptFigures(
        ids=tuple(f"p{first + i}" for i in range(count)),
        categories=tuple("ab"[i % 2] for i in range(count)),
        tokens=(100,) * count,
        decode_ms=(1.0,) * count,
        wall_ms=(1.0,) * count,
        drafted=(100,) * count,
        accepted=tuple(accepted),
    )


def test_the_error_of_an_acceptance_is_by_prompts() -> None:
    assert acceptance_error(prompts([50] * 8)) == 0
    once = prompts([40, 40, 60, 60] * 4)
    assert acceptance_error(once) == pytest.approx(0.1 * (8 / 7) ** 0.5 / 16**0.5)
    assert acceptance_error(prompts([40, 60] * 8)) == 0, "what differs between categories"
    assert acceptance_error(prompts([50] * 7)) is None
    assert acceptance_error(prompts([50] * 14), "a") is None, "seven prompts of the category"
    assert acceptance_error(prompts([50] * 16), "a") == 0
    assert acceptance_error(None) is None
    passes: Any = {f.name: 2 * getattr(once, f.name) for f in fields(once)}
    twice = PromptFigures(**{**passes, "block": (0,) * 16 + (1,) * 16})
    assert acceptance_error(twice) == pytest.approx(acceptance_error(once)), "not by requests"


def test_speeds_are_compared_over_common_requests() -> None:
    slow = prompts([50] * 16)
    fast = replace(slow, wall_ms=(0.5,) * 16)
    found = speed_interval(fast, slow, 0.95)
    assert found.low < 2.0 < found.high
    assert found.high / found.low < 1.06, "only starts differ"
    one = replace(fast, block=(0,) * 16, order=tuple(range(1, 17)))
    other = replace(slow, block=(0,) * 16, order=tuple(range(17, 33)))
    apart = speed_interval(one, other, 0.95)
    assert apart.high / apart.low > 1.1, "one turn each, one after the other"
    assert speed_interval(fast, prompts([50] * 16, first=9), 0.95) is None
    assert speed_interval(fast, None, 0.95) is None
    assert speedups._ratio(common(runs_of(fast, "a"), runs_of(slow, "a"))) == 2.0
    assert speed_interval(fast, slow, 0.95, "c") is None


def test_prompts_without_a_time_are_left_out() -> None:
    broken = replace(prompts([50] * 4), wall_ms=(0.0, 1.0, -1.0, 2.0))
    assert [run.id for run in runs_of(broken)] == ["p1", "p3"]


def test_the_documented_lines_recompute_the_picks_speedup(tmp_path: Path) -> None:
    """What docs/report.md tells a reader to run on the record's JSON."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    for whole in (whole_record(), easy_half()):
        for winner in ("Q8_0 n_max=4", "Q4_K_M n_max=4"):
            record = replace(whole, pick=replace(whole.pick, candidate=winner))
            write_record(record, tmp_path / "record.json")
            argv = [sys.executable, "-c", code, str(tmp_path / "record.json")]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            found = record.candidate(winner)
            assert done.stdout == f"{winner}: {found.speedup:.2f}x\n"
