"""A stranger's recipe against the user's own model, with a real server to download from."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.engines.environment import engine_environment
from cook.engines.server import free_port
from cook.paths import demo_dir
from tests.http_server import Fake, Status, serving

FLAG = "--model-url URL"
SPELLINGS = (
    *(FLAG, "-mu URL", "--model_url URL", "--model-url=URL", f"--numa isolate {FLAG}"),
    *(f"--numa {FLAG}", f"--numa isolate --numa {FLAG}"),
)
PLACES = ("imatrix", "evaluate", "target", "baseline", "draft")
RECIPE = """\
version: 1
name: gift
engine: bundled
model: {source: demo://draft-f16.gguf}
imatrix: {corpus: demo://data/calibration.txt, chunks: 1IMATRIX}
evaluate: {corpus: demo://data/evaluation.txt, context: 256, chunks: 2EVALUATE}
quants: [{name: Q4_0, type: Q4_0}]
score:
  method: live
  target: {source: mine.ggufTARGET}
  baseline: {args: {threads: 1BASELINE}}
  prompts: demo
  categories: [docstring, literal]
  limit: 4
  max_tokens: 8
  context: 2048
  draft: {n_max: [4]DRAFT}
  live_budget: {minutes: 0.05}
pick: {maximize: decode_speed}
"""


@pytest.fixture
def site() -> Iterator[Fake]:
    """Where the attacker's file lies; ``asked`` has every request that reached it."""
    with serving({}) as server:
        evil = Status(200, (demo_dir() / "draft-f16.gguf").read_bytes(), {"ETag": '"1"'})
        server.answers["/evil.gguf"] = evil
        server.url += "/evil.gguf"
        yield server


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's model, next to the recipe; cook runs here."""
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "cook-home"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.gguf"
    shutil.copy(demo_dir() / "target-q8_0.gguf", path)
    path.chmod(0o644)
    return path


def recipe(folder: Path, place: str = "", words: str = "", url: str = "") -> Path:
    text = RECIPE
    for name in PLACES:
        extra = f"extra: {words.replace('URL', url).split()}"
        said = f", {extra}" if name == "baseline" else f", args: {{{extra}}}"
        text = text.replace(name.upper(), said if name == place else "")
    path = folder / "gift.yaml"
    path.write_text(text)
    return path


@pytest.mark.engine
def test_the_attack_is_a_real_one(site: Fake, mine: Path, bundled: Any, tmp_path: Path) -> None:
    """What the guard is for: this engine, started so, overwrites the file that it was to load."""
    before = mine.read_bytes()
    argv = [str(bundled.tool("server")), "-m", str(mine), "--port", str(free_port())]
    argv += ["--host", "127.0.0.1", "--model-url", site.url]
    environment = engine_environment(tuple(map(Path, bundled.facts.library_path)), repack=False)
    with subprocess.Popen(argv, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 60
        while mine.read_bytes() == before and time.monotonic() < deadline and server.poll() is None:
            time.sleep(0.2)
        server.kill()
    assert site.asked
    assert mine.read_bytes() != before


@pytest.mark.parametrize(
    ("place", "words"),
    [*((place, FLAG) for place in PLACES), *(("target", words) for words in SPELLINGS[1:])],
)
def test_no_spelling_in_no_place_reaches_the_model(
    site: Fake, mine: Path, place: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mine.read_bytes()
    path = recipe(mine.parent, place, words, site.url)
    assert main(["build", str(path)]) == 2
    said = capsys.readouterr().err
    row = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if site.url in line)
    assert f"gift.yaml:{row}:" in said
    assert "it downloads, and writes over files" in said
    assert site.asked == []
    assert mine.read_bytes() == before
    assert not (mine.parent / "cook-home" / "store").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "gift.yaml"],
        ["build", "gift.yaml", "--demo"],
        ["score", "--recipe", "gift.yaml"],
        ["score", "--recipe", "gift.yaml", "--target", "mine.gguf"],
        ["recipes", "check", "gift.yaml"],
        ["sweep", "night.yaml"],
        ["sweep", "night.yaml", "--plan"],
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_recipe(
    site: Fake, mine: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = mine.read_bytes()
    recipe(mine.parent, "target", FLAG, site.url)
    (mine.parent / "night.yaml").write_text("version: 1\nname: n\nrecipes: [gift.yaml]\n")
    assert main(command) == 2
    assert "it downloads, and writes over files" in capsys.readouterr().err
    assert (site.asked, mine.read_bytes()) == ([], before)


def test_what_runs_nothing_shows_a_recipe_whatever_its_flags(
    site: Fake, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(mine.parent, "target", FLAG, site.url)
    assert main(["recipes", "show", str(path), "--resolved"]) == 0
    assert "--model-url" in capsys.readouterr().out


def test_a_recipe_next_to_its_own_programs(
    mine: Path, standin_engine: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which directory's programs run is for the user to say, not for a recipe."""
    folder = standin_engine(name="own").facts.bin_dir
    path = recipe(mine.parent)
    path.write_text(path.read_text().replace("bundled", f"x={folder}"))
    assert main(["plan", str(path)]) == 2
    assert "no name of an engine" in capsys.readouterr().err


@pytest.mark.engine
def test_the_user_s_own_word_passes_flags_but_nothing_is_fetched(
    site: Fake, mine: Path, bundled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag reaches the tool, as the user says; the engine's offline mode still holds."""
    before = mine.read_bytes()
    path = recipe(mine.parent, "target", FLAG, site.url)
    assert main(["plan", str(path), "--allow-unsafe-args"]) == 0
    assert "let through by --allow-unsafe-args" in capsys.readouterr().err
    main(["build", str(path), "--allow-unsafe-args", "--threads", "1"])
    logs = (mine.parent / "cook-home" / "logs").rglob("*")
    assert any(site.url in file.read_text(errors="replace") for file in logs if file.is_file())
    assert site.asked == []
    assert mine.read_bytes() == before


@pytest.mark.engine
def test_a_shell_s_variables_reach_no_tool(
    site: Fake, mine: Path, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mine.read_bytes()
    for name in ("LLAMA_ARG_MODEL_URL", "HF_ENDPOINT", "MODEL_ENDPOINT"):
        monkeypatch.setenv(name, site.url)
    monkeypatch.setenv("LLAMA_ARG_HF_REPO", "a/b")
    monkeypatch.setenv("LLAMA_ARG_MODEL", "/nowhere.gguf")
    assert main(["build", str(recipe(mine.parent)), "--threads", "1"]) == 0
    assert site.asked == []
    assert mine.read_bytes() == before


@pytest.mark.engine
def test_every_tool_that_could_fetch_is_offline(bundled: Any) -> None:
    for tool in ("server", "imatrix", "perplexity"):
        assert bundled.has_flag(tool, "--offline")
    for tool in ("imatrix", "perplexity"):
        assert "--offline" in bundled.text_flags(tool)
