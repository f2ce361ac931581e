"""Broken input: one clear error with its place, the right status, no traceback, no leftovers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.cli.main import main

BROKEN = Path(__file__).parent.parent / "data" / "broken_recipes"
RECIPES = sorted(p.name for p in BROKEN.glob("*.yaml"))
EXPECTED = json.loads((BROKEN / "expected.json").read_text())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def leftovers(home: Path) -> list[str]:
    """Files that a failed command left, but for what it remembers of engines."""
    if not home.exists():
        return []
    kept = ("cache", "locks", "empty-home")
    return [
        str(p) for p in home.rglob("*") if p.is_file() and p.relative_to(home).parts[0] not in kept
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_broken_recipes(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(BROKEN / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    first = EXPECTED[name][0].splitlines()[0]
    assert f"{name}:{first}" in captured.err
    assert leftovers(home) == []


def header(tensors: int = 0, metadata: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def tensor(name: str, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    fixed = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
    return fixed + dims + struct.pack("<IQ", kind, offset)


HOSTILE_GGUF: dict[str, bytes] = {
    "empty": b"",
    "wrong-magic": b"GGML" + b"\0" * 60,
    "version-9": header(version=9) + b"\0" * 32,
    "cut-in-the-magic": b"GG",
    "cut-in-the-counts": header()[:20],
    "a-trillion-tensors": header(tensors=1 << 40),
    "a-trillion-keys": header(metadata=1 << 40),
    "string-of-an-exabyte": header(metadata=1) + struct.pack("<Q", 1 << 60) + b"x",
    "array-of-an-exabyte": header(metadata=1) + key("k", 9, struct.pack("<IQ", 4, 1 << 60)),
    "unknown-value-type": header(metadata=1) + key("k", 99, b"\0" * 8),
    "nested-arrays": header(metadata=1) + key("k", 9, struct.pack("<IQ", 9, 1) * 200),
    "five-dimensions": header(tensors=1) + tensor("t", 1, 1, 1, 1, 1) + b"\0" * 64,
    "overflowing-shape": header(tensors=1) + tensor("t", 1 << 40, 1 << 40) + b"\0" * 64,
    "offset-beyond-the-file": header(tensors=1) + tensor("t", 32, offset=1 << 40) + b"\0" * 200,
    "two-tensors-of-one-name": header(tensors=2) + tensor("t", 8) + tensor("t", 8) + b"\0" * 200,
    "data-cut-short": header(tensors=1) + tensor("t", 4096) + b"\0" * 64,
}


@pytest.mark.parametrize("name", HOSTILE_GGUF)
def test_broken_ggufs(
    name: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(HOSTILE_GGUF[name])
    _refused(["inspect", str(path)], path, home, capsys)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"version: 1\nname: broken\nmodel: {{source: {json.dumps(str(path))}}}\n"
        "quants: [{name: Q8_0, type: Q8_0}]\n"
    )
    _refused(["build", str(recipe)], path, home, capsys)


def _dat(entries: int, *parts: bytes) -> bytes:
    return struct.pack("<i", entries) + b"".join(parts)


HOSTILE_IMATRIX: dict[str, bytes] = {
    "no-entries": _dat(0),
    "negative-entries": _dat(-5) + b"\0" * 64,
    "two-billion-entries": _dat(0x7FFFFFFF) + b"\0" * 64,
    "name-of-a-gigabyte": _dat(1, struct.pack("<i", 1 << 30), b"x"),
    "values-of-eight-gigabytes": _dat(
        1, struct.pack("<i", 1), b"a", struct.pack("<ii", 1, 0x7FFFFFFF)
    ),
    "cut-in-the-values": _dat(1, struct.pack("<i", 1), b"a", struct.pack("<ii", 1, 8), b"\0" * 12),
    "not-a-number": _dat(
        1, struct.pack("<i", 1), b"a", struct.pack("<ii", 1, 1), struct.pack("<f", float("nan"))
    ),
}


@pytest.mark.parametrize("name", HOSTILE_IMATRIX)
def test_broken_imatrix_files(
    name: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{name}.dat"
    path.write_bytes(HOSTILE_IMATRIX[name])
    _refused(["inspect", str(path)], path, home, capsys)


def _refused(
    arguments: list[str], path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert path.name in captured.err
    assert captured.err.count("error:") <= 2
    assert leftovers(home) == []


def test_there_are_forty_of_them() -> None:
    assert len(RECIPES) + len(HOSTILE_GGUF) + len(HOSTILE_IMATRIX) >= 40


def test_an_engine_without_the_type_exits_5_and_names_the_other(
    standin_engine: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = standin_engine(flavour="llama.cpp")
    spec = f"standin={engine.facts.bin_dir}"  # type: ignore[attr-defined]
    assert main(["build", "ling-flash-iq1kt", "--demo", "--engine", spec]) == 5
    captured = capsys.readouterr()
    assert "iq1_kt" in captured.err
    assert "ik_llama.cpp" in captured.err
    assert captured.out == ""
