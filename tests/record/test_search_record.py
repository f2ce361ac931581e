"""Searches' records are read as they were written; what is none is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError
from cook.record.search_record import ReplayedMix, read_search_record
from cook.record.versioned import json_values, write_versioned
from tests.searches import search_record


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "searches" / "demo.json"
    write_versioned(json_values(search_record()), path)
    assert read_search_record(path) == search_record()
    write_versioned(json_values(search_record()) | {"schema_version": 9}, path)
    with pytest.raises(InputError, match="search record schema version 9, this cook reads 1"):
        read_search_record(path)


def test_ratios_keep_their_parts() -> None:
    mix = ReplayedMix(10, drafted=400, accepted=180, cycles=100, positions=280, mean_kld=0.1)
    assert mix.acceptance_length == 2.8
    assert ReplayedMix(0, 0, 0, 0, 0, None).acceptance_length is None


def test_the_best_of_a_family() -> None:
    record = search_record()
    assert record.finalist("found").name == "found"
    assert record.finalist("perplexity") is None
