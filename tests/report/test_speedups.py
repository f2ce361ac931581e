"""Speeds and speedups: one definition, by which all that is printed divides."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from cook.engines.speculation import NgramSettings, NgramType
from cook.record.record import PromptFigures, Record, write_record
from cook.report import speedups
from cook.report.candidates import section as candidates_section
from cook.report.card import CardFacts, card
from cook.report.document import Section, Table
from cook.report.headline import headline
from cook.report.sections import forest, lengths
from cook.report.sections.predicted_live import forecast_check
from cook.report.sections.predicted_live import section as predicted_live
from cook.report.show import shown
from cook.report.speedups import (
    DECODE,
    Speed,
    acceptance_error,
    base_of,
    drafts_at_their_best,
    runs_of,
    speed_interval,
    speed_notes,
    speed_of,
    speedup_text,
    speedups_by_category,
)
from cook.scoring.compare import common
from tests.report import records as made
from tests.report.records import SCORED

NUMBER = r"(\d+(?:\.(\d+))?)"


def half_digit(text: str) -> tuple[float, float]:
    """The figure that ``text`` begins with, and half of its last digit."""
    found = re.match(NUMBER, text)
    assert found, text
    return float(found[1]), 0.5 * 10.0 ** -len(found[2] or "")


def divides(speedup: str, speed: str, base: str) -> bool:
    """Whether the printed ``speedup`` is the quotient of the printed speeds, to its last digit."""
    (ratio, slack), (mine, off), (theirs, their_off) = map(half_digit, (speedup, speed, base))
    low, high = (mine - off) / (theirs + their_off), (mine + off) / (theirs - their_off)
    return low - slack <= ratio <= high + slack


@pytest.fixture(params=SCORED)
def record(request: pytest.FixtureRequest) -> Record:
    return SCORED[request.param]()


def tables_of(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def base_name(record: Record) -> str:
    base = base_of(record)
    return base.name


def test_every_row_of_every_table_of_candidates_divides(record: Record) -> None:
    printed = shown(record)
    every = [
        (printed.table.columns, printed.table.rows),
        (printed.wide.columns, printed.wide.rows),
        *((t.columns, t.rows) for t in tables_of(candidates_section(record))),
    ]
    base = dict(zip((t for t, _ in every[1][0]), _row(every[1][1], base_name(record)), strict=True))
    checked = 0
    for columns, rows in every:
        titles = [title for title, _ in columns]
        for cells in rows:
            row = dict(zip(titles, cells, strict=True))
            for what in ("decode", "end-to-end"):
                ratio = next((row[t] for t in titles if t.startswith(f"{what} speedup")), None)
                speed = row.get(f"{what} t/s")
                if ratio is not None and speed is not None:
                    reference = base[f"{what} t/s"]
                    assert reference is not None
                    assert divides(ratio, speed, reference), (cells, reference)
                    checked += 1
    assert checked >= 2 * len(printed.wide.rows)


def _row(rows: tuple[tuple[str | None, ...], ...], name: str) -> tuple[str | None, ...]:
    return next(row for row in rows if row[0] == name)


def test_the_first_plot_the_lengths_and_the_card_have_the_same_figures(record: Record) -> None:
    base = speed_of(record, base_of(record))  # type: ignore[arg-type]
    reference = f"{base.tokens_per_s:.2f}"
    (figures,) = tables_of(forest.by_draft(record))
    for _, _, speed, speedup, _ in figures.rows:
        assert divides(speedup or "", speed or "", reference)
    whole = replace(record, pick=replace(record.pick, maximize="end_to_end_speed"))
    (by_length,) = tables_of(lengths.section(whole))
    assert by_length.caption == f"Without a draft: {reference} tokens/s."
    cells = {cell.lstrip("~") for row in by_length.rows for cell in row[1:] if cell}
    assert {row[2] for row in figures.rows} <= cells
    text = card(record, CardFacts("M", {d.quant: (f"{d.quant}.gguf",) for d in record.drafts}))
    for row in re.findall(r"^\| .*x.* \|$", text, re.MULTILINE):
        columns = [c.strip() for c in row.strip("|").split("|")]
        place = next(i for i, c in enumerate(columns) if re.match(r"\d\.\d\dx", c))
        assert divides(columns[place], columns[place - 1], reference), row


def test_the_headline_divides(record: Record) -> None:
    facts = {fact.label: fact for fact in headline(record).facts}
    winner, base = record.candidate(record.pick.candidate or ""), base_of(record)
    assert winner is not None
    assert base is not None
    whole = record.pick.maximize == "end_to_end_speed"
    objective = {"end-to-end speed": None, "decode speed": DECODE}
    label = "end-to-end speed" if whole else "decode speed"
    reference = speed_of(record, base, *([DECODE] if objective[label] else []))
    speedup = facts["end-to-end speedup"].value if whole else facts[label].note.split(", ")[-1]
    assert divides(speedup, facts[label].value, f"{reference.tokens_per_s:.2f}")


def test_the_sentence_has_the_speedups_of_the_pick_s_row(record: Record) -> None:
    printed = shown(record).wide
    assert printed.strong is not None
    titles = [title for title, _ in printed.columns]
    row = dict(zip(titles, printed.rows[printed.strong], strict=True))
    ratios = re.findall(r"(\d+\.\d\d)x(?: as fast| end to end)", record.pick.sentence)
    assert ratios
    for ratio in ratios:
        cells = [row[t] or "" for t in titles if "speedup" in t]
        assert any(cell.startswith(f"{ratio}x") for cell in cells), (ratio, cells)


def test_what_a_forecast_is_off_by_is_the_quotient_of_the_two_that_are_printed(
    record: Record,
) -> None:
    both = [c for c in record.candidates if c.live and c.predicted]
    rows = [row for table in tables_of(predicted_live(record)) for row in table.rows]
    assert len(rows) == len(both)
    for _, *cells in rows:
        for predicted, live, off_by in (cells[:3], cells[3:]):
            assert predicted is not None
            assert live is not None
            ratio = float(predicted) / float(live)
            assert 100 * (ratio - 1) == pytest.approx(float(off_by.rstrip("%")), abs=0.06)
    for candidate in both:
        pair = forecast_check(candidate)
        assert pair is not None
        assert pair[0] / pair[1] - 1 == pytest.approx(candidate.predicted.off_by)


def test_the_marked_row_is_the_best_live_row_or_a_note_says_why(record: Record) -> None:
    objective = DECODE if record.pick.maximize == "decode_speed" else None
    args = [objective] if objective else []
    speeds = {c.name: s for c in record.candidates if (s := speed_of(record, c, *args))}
    ran = {name: s for name, s in speeds.items() if s.live} or speeds
    best = max(ran, key=lambda name: ran[name].speedup or 0.0)
    if best != record.pick.candidate:
        part = ran[best].part
        assert part is not None
        assert any(
            note.startswith(f"On the {part} of {best} the pick has") for note in _notes(record)
        )


def _notes(record: Record) -> list[str]:
    return list(speed_notes(record))


def test_a_row_that_left_early_says_on_how_many_prompts_it_is(records: ModuleType) -> None:
    record = records.record()
    early = record.candidate("Q4_K_M n_max=4")
    found = speed_of(record, early)
    assert found.kind == "12 of 24 prompts"
    assert found.speedup == early.speedup
    base = speed_of(record, record.candidates[0])
    assert found.tokens_per_s == pytest.approx(early.speedup * base.tokens_per_s)
    assert found.tokens_per_s != pytest.approx(early.live.end_to_end_speed, rel=1e-3)
    assert any(note.startswith("Rows of fewer prompts") for note in _notes(record))


def test_requests_of_a_second_pass_are_counted_as_requests(records: ModuleType) -> None:
    """Both passes are of the same prompts."""
    record = records.record()
    again = {}
    for name in ("no draft", "Q8_0 n_max=4", "Q4_K_M n_max=4"):
        one = record.candidate(name)
        ids = tuple(f"p{i % records.BLOCK}" for i in range(len(one.prompts.ids)))
        again[name] = replace(one, prompts=replace(one.prompts, ids=ids))
    changed = replace(record, candidates=tuple(again.get(c.name, c) for c in record.candidates))
    found = speed_of(changed, again["Q4_K_M n_max=4"])
    assert found.part == "12 of 24 requests"
    whole = speed_of(changed, again["Q8_0 n_max=4"])
    assert whole.part is None


def test_forecasts_of_what_did_not_run_are_multiplied_by_the_printed_factor(
    records: ModuleType,
) -> None:
    record = records.record()
    guessed = record.candidate("IQ1_S n_max=4")
    whole, decode = speed_of(record, guessed), speed_of(record, guessed, DECODE)
    assert whole.speedup == pytest.approx(0.97 * guessed.predicted.speedup)
    assert decode.speedup == pytest.approx(0.962 * guessed.predicted.decode_speedup)
    note = "Forecasts of the rows that did not run are multiplied by 0.97, decoding by 0.96"
    assert f"{note} (2 drafts ran)" in _notes(record)
    assert any(f"{note} (2 drafts ran)" in answer for answer in shown(record).answers)
    unscaled = replace(record, factors=())
    found = speed_of(unscaled, guessed)
    assert found.speedup == pytest.approx(guessed.predicted.speedup)
    assert not any(note.startswith("Forecasts") for note in _notes(unscaled))


def test_the_interval_is_said_to_be_over_other_prompts(records: ModuleType) -> None:
    record = records.record()
    found = speed_of(record, record.candidate(record.pick.candidate))
    assert found.interval == record.candidate(record.pick.candidate).speedup_interval
    note = "In brackets is the 95% interval on other prompts of the kind"
    assert note in _notes(record)
    assert note not in _notes(records.forecast_only())


def test_a_server_that_learns_says_after_how_many_requests(records: ModuleType) -> None:
    record = records.record()
    one = record.candidate("Q8_0 n_max=4")
    rival = replace(
        one, name="ngram-mod", draft="ngram-mod", settings=None, ngram=NgramSettings(NgramType.MOD)
    )
    notes = _notes(replace(record, candidates=(*record.candidates, rival)))
    assert "ngram-mod learns from every request: its speed is after 24 requests" in notes


def test_a_row_a_draft_fastest_first_and_live_where_it_ran(records: ModuleType) -> None:
    rows = drafts_at_their_best(records.record())
    assert {row.candidate.draft for row in rows} == {"Q8_0", "Q4_K_M", "IQ1_S"}
    assert [row.ratio for row in rows] == sorted((row.ratio for row in rows), reverse=True)
    by_draft = {row.candidate.draft: row for row in rows}
    assert by_draft["Q8_0"].live
    assert not by_draft["IQ1_S"].live
    assert drafts_at_their_best(records.bare()) == []


def test_categories_have_their_requests_and_the_losers_show(records: ModuleType) -> None:
    record = records.record()
    slow = records.candidate("Q8_0", slow=("prose",))
    record = replace(
        record, candidates=tuple(slow if c.name == slow.name else c for c in record.candidates)
    )
    found = {one.name: one for one in speedups_by_category(record, slow)}
    assert set(found) == set(records.CATEGORIES)
    assert found["prose"].ratio < 1 < found["class"].ratio
    assert len(found["prose"].each) == 8
    assert all(ratio < 1 for ratio in found["prose"].each)
    for one in found.values():
        assert one.interval.low < one.ratio < one.interval.high


def test_categories_of_a_forecast_are_multiplied_as_well(records: ModuleType) -> None:
    record = records.record()
    guessed = record.candidate("IQ1_S n_max=4")
    found = speedups_by_category(record, guessed)
    plain = speedups_by_category(replace(record, factors=()), guessed)
    for one, other in zip(found, plain, strict=True):
        assert one.name == other.name
        assert one.ratio == pytest.approx(0.97 * other.ratio)


def test_a_no_draft_that_did_not_run_is_no_reference(records: ModuleType) -> None:
    """Its forecast may be the faster one, but nothing that ran was compared with it."""
    record = records.record()
    bare = record.candidates[0]
    fast = records.requests(150.0)
    guess = records.prediction(fast, fast, (), 0)
    other = replace(bare, name="no draft (ik)", engine="ik", live=None, predicted=guess)
    assert base_of(replace(record, candidates=(*record.candidates, other))) == bare


def test_without_a_no_draft_there_is_a_speed_and_no_speedup(records: ModuleType) -> None:
    record = records.record(predicted=False)
    alone = replace(record, candidates=record.candidates[1:])
    found = speed_of(alone, alone.candidates[0])
    assert found.speedup is None
    assert found.text is None
    assert drafts_at_their_best(alone) == []


def test_a_speedup_without_an_interval_stands_alone() -> None:
    assert Speed(100.0, 1.4, live=True).text == "1.40x"
    assert speedup_text(None, None) is None


def prompts(accepted: list[int | None], drafted: int = 100, first: int = 0) -> PromptFigures:
    count = len(accepted)
    return PromptFigures(
        ids=tuple(f"p{first + i}" for i in range(count)),
        categories=tuple("ab"[i % 2] for i in range(count)),
        tokens=(100,) * count,
        decode_ms=(1.0,) * count,
        wall_ms=(1.0,) * count,
        drafted=tuple(drafted if a is not None else None for a in accepted),
        accepted=tuple(accepted),
    )


def test_the_error_of_an_acceptance_is_by_prompts() -> None:
    alike = acceptance_error(prompts([50] * 8))
    assert alike == 0
    mixed = acceptance_error(prompts([40, 40, 60, 60] * 4))
    assert mixed == pytest.approx(0.1 * (8 / 7) ** 0.5 / 16**0.5)
    assert acceptance_error(prompts([40, 60] * 8)) == 0, "what differs between categories"
    assert acceptance_error(prompts([50] * 7)) is None
    assert acceptance_error(prompts([50] * 14), "a") is None, "seven prompts of the category"
    assert acceptance_error(prompts([50] * 16), "a") == 0
    assert acceptance_error(None) is None


def test_an_error_of_two_passes_is_by_prompts_and_not_by_requests() -> None:
    once = prompts([40, 40, 60, 60] * 4)
    twice = replace(
        once,
        **{
            name: getattr(once, name) * 2
            for name in ("ids", "categories", "tokens", "decode_ms", "wall_ms")
        },
        drafted=once.drafted * 2,
        accepted=once.accepted * 2,
        block=(0,) * 16 + (1,) * 16,
    )
    assert acceptance_error(twice) == pytest.approx(acceptance_error(once))


def test_speeds_are_compared_over_common_requests() -> None:
    slow = prompts([50] * 16)
    fast = replace(slow, wall_ms=(0.5,) * 16)
    found = speed_interval(fast, slow, 0.95)
    assert found.low < 2.0 < found.high
    assert found.high / found.low < 1.06, "only starts differ"
    assert speed_interval(fast, prompts([50] * 16, first=9), 0.95) is None
    assert speed_interval(fast, None, 0.95) is None
    assert speedups._ratio(common(runs_of(fast, "a"), runs_of(slow, "a"))) == 2.0
    assert speed_interval(fast, slow, 0.95, "c") is None


def test_prompts_without_a_time_are_left_out() -> None:
    broken = replace(prompts([50] * 4), wall_ms=(0.0, 1.0, -1.0, 2.0))
    assert [run.id for run in runs_of(broken)] == ["p1", "p3"]


def test_a_block_pairs_with_the_same_block_only(records: ModuleType) -> None:
    record = records.record()
    one = record.candidate("Q8_0 n_max=4")
    moved = replace(one, prompts=replace(one.prompts, block=(0,) * 12 + (7,) * 12))
    changed = replace(record, candidates=tuple(moved if c is one else c for c in record.candidates))
    for found in speedups_by_category(record, one):
        assert len(found.each) == 8
        assert min(found.each) <= found.ratio <= max(found.each)
    assert {len(c.each) for c in speedups_by_category(changed, moved)} == {4}


def test_the_documented_lines_recompute_the_picks_speedup(tmp_path: Path) -> None:
    """What docs/report.md tells a reader to run on the record's JSON."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    for whole in (made.record(), made.easy_half()):
        for winner in ("Q8_0 n_max=4", "Q4_K_M n_max=4"):
            record = replace(whole, pick=replace(whole.pick, candidate=winner))
            write_record(record, tmp_path / "record.json")
            argv = [sys.executable, "-c", code, str(tmp_path / "record.json")]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            found = record.candidate(winner)
            assert done.stdout == f"{winner}: {found.speedup:.2f}x\n"
