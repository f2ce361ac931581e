"""The community's own formats, of a kept record: nothing invented, everything beside it."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError
from cook.record.measured import PromptFigures
from cook.record.record import Candidate, Record, read_record
from cook.report.posts import (
    MTP_BENCH_PROMPTS,
    PostFormat,
    median_of,
    post,
    post_format,
)
from cook.report.posts import Arm as PostedArm

KEPT = Path(__file__).parents[1] / "data" / "records" / "live.json"
BESIDE = (PostFormat.QWEN38_MTP, PostFormat.MTP_BENCH, PostFormat.LLAMA_CPP)


@pytest.fixture(scope="module")
def record() -> Record:
    return read_record(KEPT)


def arms(record: Record) -> tuple[Candidate, Candidate]:
    """(no draft, the pick)."""
    bare = next(c for c in record.candidates if c.draft is None)
    picked = record.candidate(record.pick.candidate or "")
    assert picked is not None
    if picked.draft is None:
        picked = max(
            (c for c in record.candidates if c.draft and c.live),
            key=lambda c: (c.live and c.live.decode_speed) or 0.0,
        )
    return bare, picked


def medians(candidate: Candidate) -> float:
    of = candidate.prompts
    assert of is not None
    return statistics.median(1000 * t / ms for t, ms in zip(of.tokens, of.decode_ms, strict=True))


@pytest.mark.parametrize("form", BESIDE)
def test_each_has_interval_command_build_and_log_beside_it(
    record: Record, form: PostFormat
) -> None:
    told = post(record, form)
    _, picked = arms(record)
    assert "95%" in told or "no interval" in told
    (engine,) = record.engines.values()
    assert f"{engine.build} [sha256 {engine.digest[:12]}]" in told
    assert told.count("llama-server") == 2
    assert f"--spec-draft-n-max {picked.settings.n_max if picked.settings else ''}" in told
    assert "--port" not in told
    assert told.count("log: not recorded") == 2
    assert "runs not recorded" in told
    assert f"{record.max_tokens} tokens, cook's own set" in told
    assert "/" + str(Path.home()).strip("/") not in told


def test_the_row_of_qwen38_mtp(record: Record) -> None:
    head, rule, row, *_ = post(record, PostFormat.QWEN38_MTP).splitlines()
    assert head == "| Card | Baseline | With flag | n-max | Acceptance | Contributor |"
    assert rule.count("---") == 6
    bare, picked = arms(record)
    card, baseline, flag, n_max, acceptance, contributor = (
        cell.strip() for cell in row.strip("|").split("|")
    )
    assert card == record.machine.processor
    assert baseline == f"{medians(bare):.1f}"
    assert flag == f"{medians(picked):.1f}"
    assert picked.settings is not None
    assert n_max == str(picked.settings.n_max)
    assert picked.live is not None
    assert picked.live.acceptance_rate is not None
    assert f"({picked.live.acceptance_rate:.2f} aggregate)" in acceptance
    assert contributor == "—"


def test_the_lines_of_mtp_bench(record: Record) -> None:
    told = post(record, PostFormat.MTP_BENCH)
    _, picked = arms(record)
    assert picked.prompts is not None
    assert picked.live is not None
    first = f"  {picked.prompts.ids[0]:<18} pred={picked.prompts.tokens[0] + 1:>4} draft="
    assert told.count(first) == 2
    assert "rate=n/a" in told
    parts = told.split("Aggregate: ")[1:]
    plain, drafted = (json.loads(part.split("```")[0]) for part in parts)
    assert plain["total_draft"] == 0
    assert plain["aggregate_accept_rate"] is None
    assert drafted["total_draft"] == picked.live.drafted
    assert drafted["total_draft_accepted"] == picked.live.accepted
    assert drafted["n_requests"] == len(picked.prompts.ids)


def test_the_tables_of_the_thread(record: Record) -> None:
    lines = post(record, PostFormat.LLAMA_CPP).splitlines()
    bare, picked = arms(record)
    assert lines[0] == "| Run | Wall (s) | Accept rate | Avg tok/s |"
    assert lines[2].startswith(f"| {bare.name} |")
    assert "| n/a |" in lines[2]
    assert lines[3].startswith(f"| {picked.name} |")
    assert picked.prompts is not None
    assert sum(line.startswith(f"| {picked.prompts.ids[-1]} |") for line in lines) == 1


def test_the_file_of_speed_bench_adds_up(record: Record) -> None:
    bare, picked = arms(record)
    for candidate in (bare, picked):
        document = json.loads(post(record, PostFormat.SPEED_BENCH, candidate.name))
        *groups, overall = document["summary"]
        assert overall["category"] == "overall"
        assert overall["requests"] == sum(g["requests"] for g in groups)
        assert overall["requests"] == len(document["results"]) == document["completed_samples"]
        assert overall["draft_n"] == sum(r["draft_n"] for r in document["results"])
        assert overall["avg_prompt_t_s"] is None
        assert {r["prompt_tokens"] for r in document["results"]} == {None}
        assert "not SPEED-Bench's" in document["cook"]["prompts"]
        assert document["cook"]["command"].startswith("llama-server ")
        speeds = [r["predicted_per_second"] for r in document["results"]]
        assert overall["avg_pred_t_s"] == pytest.approx(statistics.mean(speeds))
    assert document["summary"][-1]["accept_rate"] == pytest.approx(
        picked.live.acceptance_rate if picked.live else None
    )


def test_what_is_known_of_runs_and_log_is_told(record: Record) -> None:
    candidates = tuple(replace(c, repeats=3, log="0042-server") for c in record.candidates)
    told = post(replace(record, candidates=candidates), PostFormat.QWEN38_MTP)
    assert "3 runs, medians over runs" in told
    assert told.count("log: 0042-server") == 2


def test_the_bench_s_own_prompts_are_named(record: Record) -> None:
    def nine(of: PromptFigures | None) -> PromptFigures | None:
        if of is None:
            return None
        columns: dict[str, Any] = {
            name: getattr(of, name)[:9]
            for name in ("categories", "tokens", "decode_ms", "wall_ms", "drafted", "accepted")
        }
        return PromptFigures(ids=MTP_BENCH_PROMPTS, **columns)

    candidates = tuple(replace(c, prompts=nine(c.prompts)) for c in record.candidates)
    told = post(replace(record, candidates=candidates, max_tokens=192), PostFormat.MTP_BENCH)
    assert "9 prompts x 192 tokens, mtp-bench.py's;" in told


def test_too_few_prompts_have_no_interval(record: Record) -> None:
    _, picked = arms(record)
    of = picked.prompts
    assert of is not None
    few = PromptFigures(
        *(of.ids[:3], of.categories[:3], of.tokens[:3], of.decode_ms[:3], of.wall_ms[:3]),
        *(of.drafted[:3], of.accepted[:3]),
    )
    found = median_of(PostedArm(picked, few))
    assert found.low is None
    assert "no interval" in str(found)


def test_what_cannot_be_shown_says_what_can(record: Record) -> None:
    bare, picked = arms(record)
    with pytest.raises(InputError, match="has no draft"):
        post(record, PostFormat.QWEN38_MTP, bare.name)
    with pytest.raises(InputError, match="did not run live") as caught:
        post(record, PostFormat.QWEN38_MTP, "nobody")
    assert picked.name in (caught.value.hint or "")
    silent = tuple(replace(c, prompts=None) for c in record.candidates)
    with pytest.raises(InputError, match="no draft of this record ran live"):
        post(replace(record, candidates=silent), PostFormat.LLAMA_CPP)
    with pytest.raises(InputError, match="no format 'reddit'"):
        post_format("reddit")
    assert post_format("speed-bench") is PostFormat.SPEED_BENCH
