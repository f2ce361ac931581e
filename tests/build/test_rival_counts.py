"""A rival's live counts: simulated in the order in which its servers were asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.build.forecast import Forecaster
from cook.build.layout import Configuration
from cook.build.rival_counts import rival_counts
from tests.build.fabricated import Fabrication, World
from tests.build.laid_out import layout, score

RIVAL = {"type": "ngram-map-k", "size_n": 2, "size_m": 4}


def ran(folder: Path) -> tuple[Configuration, Forecaster]:
    laid_out = layout(score(rivals=[RIVAL], max_tokens=40))
    fabrication = Fabrication(folder, World(reply_tokens=40))
    assert laid_out.forecast is not None
    configuration = next(c for c in laid_out.grid if c.rival is not None)
    fabrication.run([laid_out.forecast.trace, *configuration.rounds])
    return configuration, Forecaster(laid_out.forecast, fabrication.outcomes)


def test_counts_of_every_round_are_simulated_from_its_own_start(tmp_path: Path) -> None:
    configuration, forecaster = ran(tmp_path)
    found = rival_counts(configuration, forecaster)
    assert found is not None
    assert found.exact == found.requests == sum(len(r.prompts) for r in configuration.rounds)
    assert (found.live_drafted, found.live_accepted) == (
        found.replay_drafted,
        found.replay_accepted,
    )
    assert found.passed


def test_numbers_that_are_not_the_servers_are_seen(tmp_path: Path) -> None:
    configuration, forecaster = ran(tmp_path)
    assert configuration.rival is not None
    other = replace(configuration.rival.settings, size_m=3)
    other_rival = replace(configuration.rival, settings=other)
    found = rival_counts(replace(configuration, rival=other_rival), forecaster)
    assert found is not None
    assert found.exact < found.requests


def test_nothing_is_said_where_nothing_ran(tmp_path: Path) -> None:
    configuration, forecaster = ran(tmp_path)
    never = tuple(replace(step, repeat=7) for step in configuration.rounds)
    assert rival_counts(replace(configuration, rounds=never), forecaster) is None
