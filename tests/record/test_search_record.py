"""Searches' records are read as they were written, and told apart from what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.errors import InputError
from cook.record.search_record import (
    ReplayedMix,
    read_search_record,
)
from cook.record.versioned import json_values, write_versioned
from tests.searches import search_record


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "searches" / "demo.json"
    write_versioned(json_values(search_record()), path)
    assert read_search_record(path) == search_record()


def test_ratios_keep_their_parts() -> None:
    mix = ReplayedMix(10, drafted=400, accepted=180, cycles=100, positions=280, mean_kld=0.1)
    assert mix.acceptance_length == 2.8
    nothing = ReplayedMix(0, 0, 0, 0, 0, None)
    assert nothing.acceptance_length is None


def test_the_best_of_a_family() -> None:
    record = search_record()
    assert (found := record.finalist("found")) is not None
    assert found.name == "found"
    assert record.finalist("perplexity") is None


def test_what_is_no_search_record_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema_version": 9}', encoding="utf-8")
    with pytest.raises(InputError, match="search record schema version 9, this cook reads 1"):
        read_search_record(path)
    document = json_values(search_record())
    document["aim"]["n_max"] = "many"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=r"aim\.n_max"):
        read_search_record(path)
