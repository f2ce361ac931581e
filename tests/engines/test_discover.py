"""Finding engines, and what is known of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook import files
from cook.engines import facts
from cook.engines.discover import configured, discover, discover_all, engine_at, named
from cook.engines.facts import find_bin_dir
from cook.errors import ConfigError, InputError, PrerequisiteError
from cook.formats.quant_types import Flavour

Make = Callable[..., Any]
RECORDED = Path(__file__).parent / "standins" / "recorded"


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for key in [key for key in os.environ if key.startswith("COOK_ENGINE_")]:
        monkeypatch.delenv(key)


@pytest.mark.engine
def test_bundled(bundled: Any) -> None:
    assert bundled.name == "bundled"
    assert bundled.flavour is Flavour.LLAMA_CPP
    assert bundled.identity.commit is not None
    assert len(bundled.identity.digest) == 64
    assert {"q4_K", "iq1_s", "bf16", "tq1_0"} <= bundled.facts.types.keys()
    assert not {"q8_1", "q8_K", "i32", "iq1_kt"} & bundled.facts.types.keys()
    assert {"Q4_K_M", "IQ1_S", "COPY", "F32"} <= set(bundled.facts.ftypes)
    assert bundled.has_flag("server", "--spec-type")
    assert not bundled.has_flag("server", "--draft-max")  # listed only as removed
    names = {name.removesuffix(".0") for name in bundled.facts.files}
    assert {"libllama.so", "llama-server"} <= names
    directory = Path(bundled.facts.bin_dir)
    engine_at("again", directory)
    again: Any = engine_at("again", directory)
    assert again.identity == bundled.identity
    assert again.facts == bundled.facts, "what is known is read back"


@pytest.mark.ik
def test_ik(ik_engine: Any) -> None:
    assert ik_engine.flavour is Flavour.IK_LLAMA_CPP
    have = ik_engine.facts.types.keys()
    assert {"iq1_kt", "iq2_kl", "iq6_k", "q6_0", "q4_k_r4", "q8_KV"} <= have
    assert not {"q8_0_x4", "q8_K64", "q8_KR8", "i2_s", "nvfp4"} & have
    assert {"IQ1_KT", "IQ2_KL", "Q4_K_R4"} <= set(ik_engine.facts.ftypes)


def test_a_standin_is_what_its_binaries_say(standin_engine: Make) -> None:
    mainline = standin_engine("silent", name="ik")  # the name says nothing
    assert mainline.flavour is Flavour.LLAMA_CPP
    assert mainline.identity.build == "0.5.0-dev b1 (0c1e570)"
    ik = standin_engine("silent", flavour="ik_llama.cpp", name="mainline")
    assert ik.flavour is Flavour.IK_LLAMA_CPP
    assert ik.identity.commit is None
    assert "iq1_kt" in ik.facts.types


def test_identity_follows_the_bytes_and_damaged_memory_is_gathered_again(
    standin_engine: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = Path(standin_engine("silent").facts.bin_dir)
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "SETTLED_S", -1.0)
    before = engine_at("a", directory).identity
    (cache,) = (tmp_path / "home" / "cache" / "engines").glob("*.json")
    for damage in ('{"format": 3}', cache.read_text().replace("flavour", "x")):
        cache.write_text(damage)
        assert engine_at("a", directory).identity == before
    moved = tmp_path / "elsewhere"
    shutil.copytree(directory, moved)
    assert engine_at("b", moved).identity == before
    with (directory / "llama-quantize").open("a") as file:
        file.write("# another build\n")
    assert engine_at("a", directory).identity.digest != before.digest


def test_a_tool_that_is_absent(standin_engine: Make) -> None:
    engine = standin_engine("silent")
    (Path(engine.facts.bin_dir) / "llama-perplexity").unlink()
    with pytest.raises(PrerequisiteError, match=r"has no llama-perplexity") as caught:
        engine.tool("perplexity")
    assert caught.value.hint


def test_directories_that_are_no_engine(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="does not exist"):
        find_bin_dir(tmp_path / "no")
    with pytest.raises(PrerequisiteError, match=r"holds no llama.cpp tools"):
        find_bin_dir(tmp_path)
    tool = tmp_path / "build" / "bin" / "llama-quantize"
    tool.parent.mkdir(parents=True)
    tool.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(100))
    assert find_bin_dir(tmp_path) == tool.parent
    with pytest.raises(PrerequisiteError, match="executable"):
        engine_at("x", tmp_path)
    tool.chmod(0o755)
    with pytest.raises(PrerequisiteError, match=r"cannot be run|cannot start"):
        engine_at("x", tmp_path)


def test_a_program_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name in ("quantize", "server"):
        tool = tmp_path / f"llama-{name}"
        tool.write_text("#!/bin/sh\necho 'version: 1 (abcdef0)'\n")
        tool.chmod(0o755)
    with pytest.raises(PrerequisiteError, match=r"neither of llama.cpp nor of ik_llama.cpp"):
        engine_at("x", tmp_path)


def test_names(standin_engine: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = standin_engine("silent", flavour="ik_llama.cpp").facts.bin_dir
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert discover(f"mine={directory}").name == "mine"
    assert discover(directory).flavour is Flavour.IK_LLAMA_CPP
    with pytest.raises(PrerequisiteError, match="no engine is called 'ik'") as caught:
        discover("ik")
    assert "COOK_ENGINE_IK=DIR" in (caught.value.hint or "")
    with pytest.raises(PrerequisiteError, match=r"no ik_llama.cpp engine"):
        discover("ik_llama.cpp")
    monkeypatch.setenv("COOK_ENGINE_IK", directory)
    assert discover("ik").name == "ik"
    assert discover("ik_llama.cpp").name == "ik"
    (tmp_path / "ik_llama.cpp").mkdir()  # a checkout next to the recipe, whose programs none chose
    monkeypatch.chdir(tmp_path)
    assert named("ik_llama.cpp").name == "ik"
    with pytest.raises(PrerequisiteError, match="holds no"):
        discover("./ik_llama.cpp")
    with pytest.raises(InputError):
        discover(f"../x={directory}")
    assert "ik" in [engine.name for engine in discover_all()]


def test_configuration_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "cook"
    folder.mkdir(parents=True)
    config = folder / "config.toml"
    config.write_text('[engines]\nik = "~/ik/build"\nnear = "builds/x"\n')
    assert configured()["ik"] == Path.home() / "ik" / "build"
    assert configured()["near"] == folder / "builds" / "x"
    monkeypatch.setenv("COOK_ENGINE_IK", "/elsewhere")
    assert configured()["ik"] == Path("/elsewhere")
    for broken in ("engines = 1", "[engines]\nik = 3", "a = [", "[engines]\n'../x' = 'y'"):
        config.write_text(broken)
        with pytest.raises(ConfigError, match=r"config\.toml:\d+:\d+: error"):
            configured()


def test_amx(standin_engine: Make, tmp_path: Path) -> None:
    """Where it is refused nothing is repacked; its instructions are tried in a child."""
    engine = standin_engine("silent")
    refused = type(engine)("x", replace(engine.facts, repack=False))
    assert refused.environment()["LLAMA_ARG_REPACK"] == "0"
    # Wherever this runs, the probe answers and this process lives.
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"x" + bytes.fromhex("c4e27849") + b"x")
    assert facts.amx_refused(library) in (True, False)
    assert facts.amx_refused(None) is False


@pytest.mark.parametrize(
    ("text", "build", "commit"),
    [
        ("version: 0.5.0-dev (build 1, commit 0c1e570)", "0.5.0-dev b1 (0c1e570)", "0c1e570"),
        ("version: 3970 (8337e4cd)\nbuilt with cc", "b3970 (8337e4cd)", "8337e4cd"),
        ("version: 0 (unknown)", "b0 (unknown)", None),
    ],
)
def test_builds(text: str, build: str, commit: str | None) -> None:
    assert facts.parse_build(text) == (build, commit)


def test_recorded_help_texts() -> None:
    mainline, ik = (
        facts.parse_flags((RECORDED / flavour / "server.txt").read_text()) for flavour in Flavour
    )
    assert {"-md", "--spec-draft-n-max", "-ngld", "--api-key-file", "--fit"} <= mainline
    assert "--spec-ngram-map-k4v-min-hits" in mainline
    assert not {"--draft-max", "--draft-min"} & mainline
    assert {"-md", "--spec-type", "--draft-params", "--no-escape", "--api-key-file"} <= ik
    ftypes = facts.parse_ftypes((RECORDED / "ik_llama.cpp" / "quantize.txt").read_text())
    assert {"IQ1_KT", "Q8_KV", "IQ2_XXS_R4", "BF16"} <= ftypes


def test_garbage_is_no_type() -> None:
    rows = "q4_K\t12\t256\t144\t1\nNONE\t43\t1\t1\t0\nq9\tx\t1\t1\t1\n\x00\nq4_Z\t50\t77\t3\t1\n"
    assert facts.parse_types(rows) == {"q4_K": 12}


def test_a_file_names_no_directory_of_programs(
    standin_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe or a record would bring its own programs; only the user's word may."""
    engine = standin_engine(name="near")
    folder = Path(engine.facts.bin_dir)
    monkeypatch.chdir(folder.parent)
    for spec in (str(folder), f"x={folder}", "./bin", "../near/bin"):
        assert discover(spec).name
        with pytest.raises(InputError, match="no name of an engine"):
            named(spec)
    assert discover("bin").name == "bin"  # a directory here, when the user says so
    with pytest.raises(PrerequisiteError, match="no engine is called 'bin'"):
        named("bin")
    monkeypatch.setenv("COOK_ENGINE_BIN", str(folder))
    assert named("bin").name == "bin"
