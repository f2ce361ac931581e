"""Draft-free settings: whose numbers, and each engine's words for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob
from cook.engines.speculation import DEFAULTS, NgramSettings, NgramType
from cook.errors import InputError
from cook.formats.quant_types import Flavour

Make = Callable[..., Any]
ML, IK = Flavour.LLAMA_CPP, Flavour.IK_LLAMA_CPP


def test_what_is_not_said_is_the_engines_own() -> None:
    said = NgramSettings(NgramType.MAP_K, size_n=8)
    assert str(said) == "ngram-map-k size_n=8"
    assert said.of(ML) == NgramSettings(NgramType.MAP_K, size_n=8, size_m=48)
    assert said.of(IK).longest == 16
    assert said.of(ML).longest == 48
    assert NgramSettings(NgramType.CACHE).of(IK).longest == 8
    assert all(one.of(flavour) == one for flavour in DEFAULTS for one in DEFAULTS[flavour].values())


@pytest.mark.parametrize(
    ("flavour", "settings", "message"),
    [
        (ML, NgramSettings(NgramType.SUFFIX), "has no suffix"),
        (ML, NgramSettings(NgramType.MAP_K, min_hits=2), "does not use min_hits"),
        (ML, NgramSettings(NgramType.CACHE, n_max=4), "does not use n_max"),
        (IK, NgramSettings(NgramType.MOD, n_min=20), "n_min 20 is above its longest draft, 16"),
    ],
)
def test_what_would_do_nothing_is_refused(
    flavour: Flavour, settings: NgramSettings, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        settings.of(flavour)


def job(tmp_path: Path, settings: NgramSettings, draft: bool = False) -> ServerJob:
    path = tmp_path / "draft.gguf" if draft else None
    given = DraftSettings(4) if draft else None
    return ServerJob(
        tmp_path / "target.gguf", ModelArgs(), 512, path, ModelArgs(), given, ngram=settings
    )


def test_mainline_gets_every_number(standin_engine: Make, tmp_path: Path) -> None:
    engine = standin_engine(flavour="llama.cpp")
    found = " ".join(
        engine.server_command(job(tmp_path, NgramSettings(NgramType.MAP_K4V, size_n=8)), 1, None)
    )
    assert "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8" in found
    assert "--spec-ngram-map-k4v-size-m 48 --spec-ngram-map-k4v-min-hits 1" in found
    both = " ".join(
        engine.server_command(job(tmp_path, NgramSettings(NgramType.MOD), draft=True), 1, None)
    )
    assert "--spec-type ngram-mod,draft-simple" in both
    assert "--spec-ngram-mod-n-match 24" in both


def test_ik_gets_a_stage(standin_engine: Make, tmp_path: Path) -> None:
    engine = standin_engine(flavour="ik_llama.cpp")
    suffix = NgramSettings(NgramType.SUFFIX, depth=16)
    words = engine.server_command(job(tmp_path, suffix, draft=True), 1, None)
    stages = [words[i + 1] for i, word in enumerate(words) if word == "--spec-type"]
    assert stages == [
        "suffix:n_max=16,n_min=0,p_min=0.75,suffix_min_match_len=5,suffix_max_depth=16",
        "draft:n_max=4,n_min=0,p_min=0",
    ]
