"""Names of split models."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.formats.naming import model_stem, shard_path, shards_of, split_name

SECOND = Path("/m/Ling-flash-BF16-00002-of-00005.gguf")


def test_a_shards_name() -> None:
    name = split_name(SECOND)
    assert (name.stem, name.number, name.count) == ("Ling-flash-BF16", 2, 5)
    assert shard_path(SECOND, 5, 5).name == "Ling-flash-BF16-00005-of-00005.gguf"
    assert shard_path(Path("/m/stem"), 1, 2) == Path("/m/stem-00001-of-00002.gguf")
    assert model_stem(SECOND) == "Ling-flash-BF16"
    assert shards_of(SECOND)[1] == SECOND
    assert len(shards_of(SECOND)) == 5
    assert shards_of(Path("/m/a.gguf")) == (Path("/m/a.gguf"),)


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "model-00000-of-00003.gguf",
        "model-00004-of-00003.gguf",
        "model-00001-of-65536.gguf",
        "model-00001-of-00003.dat",
    ],
)
def test_other_names(name: str) -> None:
    assert split_name(Path(name)) is None
    assert model_stem(Path(name)) == name.removesuffix(".gguf")
