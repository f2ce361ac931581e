"""What a reference means among any files."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.naming import split_name
from cook.hub.listing import HubFile, Listing, choose, safe
from cook.recipe.sources import HubRef

NAMES = st.sampled_from(
    [
        *("m-Q4.gguf", "m-Q8.gguf", "mmproj-F16.gguf", "imatrix.gguf"),
        *("BF16/m-00001-of-00002.gguf", "BF16/m-00002-of-00002.gguf"),
        *("Q2/m-00001-of-00003.gguf", "Q2/m-00003-of-00003.gguf"),
        *("model.safetensors", "consolidated.safetensors", "config.json", "tokenizer.json"),
        *("modeling.py", "sub/model.safetensors", "sub/config.json"),
    ]
)
PATHS = st.one_of(st.none(), NAMES, st.sampled_from(["BF16", "Q2", "sub", "m", "m-Q", "x"]))


@given(names=st.sets(NAMES), path=PATHS, cached=st.booleans())
def test_a_choice_is_whole_or_an_error(names: set[str], path: str | None, cached: bool) -> None:
    files = tuple(HubFile(name, len(name), None, "0" * 40) for name in sorted(names))
    listing = Listing(HubRef("org/m", None, path), "0" * 40, files, cached)
    try:
        chosen = choose(listing)
    except InputError:
        assert path not in names or split_name(Path(str(path))) is not None
        return
    paths = [f.path for f in chosen.files]
    assert set(paths) <= names
    assert len(set(paths)) == len(paths)
    if chosen.kind == "file":
        assert paths == [path]
    elif chosen.kind == "gguf":
        split = split_name(Path(paths[0]))
        assert len(paths) == (split.count if split else 1)
        assert split is None or [split_name(Path(p)).number for p in paths] == list(
            range(1, split.count + 1)
        )
    else:
        assert any(p.endswith("config.json") for p in paths)
        assert paths[0].endswith(".safetensors")
        assert not any(p.endswith(".py") for p in paths)
        assert {"model.safetensors", "consolidated.safetensors"} - set(paths)


@given(st.text(max_size=300))
def test_no_name_leaves_the_folder(path: str) -> None:
    if safe(path):
        base = Path("/base")
        assert base in (base / path).parents
        assert ".." not in Path(path).parts
