"""Conversion with a stand-in that shows what the real converter was seen to do."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.errors import CookError, InputError, PrerequisiteError, StepError
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, write_gguf_file
from cook.job.locate import locate
from cook.recipe.sources import HubRef
from cook.steps.convert import Converter, find_converter, model_files, parameters, require_whole

HERE = Path(__file__).parent
Make = Callable[[str], Path]


def safetensors(path: Path, count: int) -> Path:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(2 * count))
    return path


@pytest.fixture
def converter(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Converter:
    checkout = tmp_path / "llama.cpp"
    shutil.copytree(HERE / "converter", checkout)
    shutil.copy(tiny_model, checkout / "ready.gguf")
    write_gguf_file(checkout / "empty.gguf", {"general.architecture": encode("llama")}, ())
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COOK_CONVERTER", str(checkout))
    monkeypatch.setenv("COOK_CONVERTER_PYTHON", sys.executable)
    found = find_converter(outtype="f16")
    assert found is not None
    return found


@pytest.fixture
def make_model(tmp_path: Path, tiny_model: Path) -> Make:
    """A safetensors model of as many parameters as the GGUF that the stand-in writes."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        count = sum(t.elements for t in read_gguf(tiny_model).tensors)
        safetensors(folder / "model.safetensors", count)
        (folder / "config.json").write_text("{}")
        (folder / "modeling_evil.py").write_text("raise SystemExit")
        return folder

    return make


def test_a_model_is_converted_once(
    converter: Converter, make_model: Make, tiny_model: Path
) -> None:
    folder = make_model("ok_model")
    with pytest.raises(PrerequisiteError, match="not converted yet"):
        locate(folder, converter=converter, plan_only=True)
    found = locate(folder, converter=converter)
    assert found.path.read_bytes() == tiny_model.read_bytes()
    converter.script.with_name("ok.txt").unlink()  # it could not run again
    again = replace(converter)
    assert locate(folder, converter=again) == found
    assert locate(folder, converter=again, plan_only=True) == found


def test_it_sees_the_model_and_nothing_else(
    converter: Converter, make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "secretsecretsecret")
    locate(make_model("echo_model"), converter=converter)
    seen = json.loads(converter.script.with_name("seen.json").read_text())
    assert seen["files"] == ["config.json", "model.safetensors"]
    assert "secretsecret" not in json.dumps(seen["env"])
    assert seen["env"]["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("behaviour", "kind", "words", "hint"),
    [
        ("unsupported", StepError, "MadeUpForCausalLM is not supported", "newer llama.cpp"),
        ("unknown-tokenizer", StepError, "pre-tokenizer was not recognized", "newer llama.cpp"),
        ("remote-code", StepError, "custom code", "convert this one yourself"),
        ("no-torch", PrerequisiteError, "has no torch", "COOK_CONVERTER_PYTHON"),
        ("truncated", StepError, "mmap length is greater", None),
        ("noweights", StepError, "0 of 1[0-9]+ parameters", None),
        ("silent", StepError, "never said", None),
    ],
)
def test_its_failures_are_errors_and_leave_nothing(
    converter: Converter,
    make_model: Make,
    tmp_path: Path,
    behaviour: str,
    kind: type[CookError],
    words: str,
    hint: str | None,
) -> None:
    with pytest.raises(kind, match=words) as caught:
        locate(make_model(f"{behaviour}_model"), converter=converter)
    assert (hint or "") in (caught.value.hint or "")
    home = tmp_path / "home"
    assert not list(home.rglob("*.gguf"))
    assert not list(home.glob("convert-*"))


def test_another_type_than_asked_for_is_no_success(converter: Converter, make_model: Make) -> None:
    bf16 = replace(converter, outtype="bf16")
    with pytest.raises(StepError, match="asked for bf16, and it wrote f16"):
        locate(make_model("ok_model"), converter=bf16)


def test_a_model_from_the_hub_is_fetched_and_converted(
    hub: Any, converter: Converter, make_model: Make, tiny_model: Path
) -> None:
    files = {p.name: p.read_bytes() for p in make_model("ok_Model-1B").iterdir()}
    commit = hub.add("org/ok_Model-1B", {**files, "original/consolidated.safetensors": b"x"})
    found = locate(HubRef.parse("hf://org/ok_Model-1B"), converter=converter)
    assert found.path.read_bytes() == tiny_model.read_bytes()
    assert found.origin.commit == commit
    assert {path for path, _ in found.origin.files} == {"model.safetensors", "config.json"}
    assert not hub.count("modeling_evil")
    assert locate(HubRef.parse("hf://org/ok_Model-1B"), converter=converter, plan_only=True)


def test_weights_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    safetensors(tmp_path / "model-00001-of-00002.safetensors", 10)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"two.safetensors: missing \(1 of 2"):
        require_whole(model_files(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InputError, match="not an index"):
        require_whole(model_files(tmp_path))


def test_where_the_converter_is_found(
    tmp_path: Path, converter: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COOK_CONVERTER")
    checkout = converter.script.parent
    tools = checkout / "build" / "bin"
    tools.mkdir(parents=True)
    assert find_converter(tools, "f16") == converter
    assert find_converter(tmp_path / "elsewhere") is None
    assert find_converter() is None
    monkeypatch.delenv("COOK_CONVERTER_PYTHON")
    own = checkout / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    found = find_converter(tools)
    assert found.python == own
    monkeypatch.setenv("COOK_CONVERTER", str(tmp_path / "nowhere.py"))
    with pytest.raises(InputError, match=r"nowhere.py: no such file"):
        find_converter(tools)


def test_headers_of_safetensors(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a.safetensors", 21)
    assert parameters(path) == 21
    whole = path.read_bytes()
    cut = (b"", whole[:7], whole[:20], whole[:-1])
    none = (struct.pack("<Q", 4) + b"[[]]", struct.pack("<Q", 2) + b'"a')
    for broken in (*cut, *none, struct.pack("<Q", 1 << 40) + whole[8:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"a\.safetensors"):
            parameters(path)
