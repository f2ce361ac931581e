"""Fixtures shared by all tests: a home of their own, engines (real and misbehaving), models."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.tiny_model import write_tiny_model

pytest_plugins = ["tests.hub.fixtures"]

# A shell's `make test &` ignores it, and all that tests start and interrupt would, too: for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
STANDINS = HERE / "engines" / "standins"
TOOLS = ("server", "quantize", "imatrix", "perplexity", "bench", "batched-bench")

# As a static build has them in its executables, where discovery reads them.
STANDIN_TYPES = {
    "llama.cpp": "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq1_s iq1_m "
    "iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs q1_0 q2_0 tq1_0 tq2_0 mxfp4 nvfp4",
    "ik_llama.cpp": "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q6_0 q8_0 q2_K q3_K q4_K q5_K q6_K iq1_s "
    "iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs iq1_kt iq2_kt iq3_kt iq4_kt iq2_k "
    "iq2_ks iq2_kl iq3_k iq3_ks iq4_k iq4_ks iq4_kss iq5_k iq5_ks iq6_k q8_KV q4_k_r4",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file runs first, so that none of those side by side is left with it alone."""
    items.sort(key=lambda item: item.path.name != "test_tutorial.py")


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP works in the test and in what it starts; `nohup make test` ignores it elsewhere."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COOK_HOME of the session's engines, so that each is discovered once."""
    return tmp_path_factory.mktemp("engine-home")


@pytest.fixture(scope="session", autouse=True)
def _side_by_side() -> Iterator[None]:
    """Of tests that run next to others (``pytest -n``) no build waits for another's timed steps, no
    engine's idle threads keep a core from another's, and no request is crowded."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    from cook.steps import deal

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setattr(deal, "default_threads", lambda: 99)
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


@pytest.fixture(autouse=True)
def _no_home_of_the_user(monkeypatch: pytest.MonkeyPatch, engine_home: Path) -> None:
    """No test touches the user's store; one that needs an empty COOK_HOME sets its own."""
    monkeypatch.setenv("COOK_HOME", str(engine_home))


@pytest.fixture(scope="session", autouse=True)
def _the_demos_target_is_written_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Each COOK_HOME of a test has a link to one file in place of 239 MB of its own."""
    from cook.demo import unpack

    kept, write = tmp_path_factory.mktemp("demo-target") / unpack.UNPACKED, unpack.unpack

    def link(model: Any, path: Path, head: Any) -> None:
        if not kept.exists():
            write(model, kept, head)
        path.hardlink_to(kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpack, "unpack", link)
        yield


@pytest.fixture(scope="session")
def bundled(engine_home: Path) -> Any:
    """The real bundled engine; skips where ``make setup`` has not built its tools."""
    return _discover_or_skip("bundled", engine_home, "run `make setup`")


@pytest.fixture(scope="session")
def ik_engine(engine_home: Path) -> Any:
    """A real ik_llama.cpp; skips where COOK_ENGINE_IK names no build."""
    directory = os.environ.get("COOK_ENGINE_IK")
    if not directory:
        pytest.skip("SKIPPED LOUDLY: COOK_ENGINE_IK names no ik_llama.cpp build directory")
    return _discover_or_skip(f"ik={directory}", engine_home, "COOK_ENGINE_IK is broken")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("bundled", marks=pytest.mark.engine),
        pytest.param("ik_engine", marks=pytest.mark.ik),
    ],
)
def engine(request: pytest.FixtureRequest) -> Any:
    """Each of the two, for tests that say the same of both."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def supervisor(tmp_path: Path) -> Any:
    from cook.engines.process.supervisor import Supervisor

    return Supervisor(tmp_path / "logs")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random f16 llama of 1.5 M parameters, 320 tokens, 21 tensors."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random llama over the same vocabulary, one block."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "draft.gguf", layers=1, seed=2)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of a few thousand tokens for the tiny models."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    words = ("tea", "root", "stone", "linen", "oar", "sand", "iron", "\\n", "hinterland")
    text = " ".join(words[i * i % 11 % len(words)] + str(i % 7) for i in range(500))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def make_tiny_model() -> Callable[..., Path]:
    """``write_tiny_model`` of tests/engines/tiny_model.py, for other shapes."""
    return write_tiny_model


@pytest.fixture(scope="session")
def standin_facts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What discovery finds out about stand-ins of a flavour (a second's work, done once)."""
    known: dict[str, Any] = {}

    def facts(flavour: str) -> Any:
        if flavour not in known:
            from cook.engines.facts import facts_of

            directory = tmp_path_factory.mktemp("standin") / "bin"
            _write_standins(directory, flavour, {"faults": [], "real": None, "other_model": ""})
            known[flavour] = facts_of(directory)
        return known[flavour]

    return facts


@pytest.fixture
def standin_engine(
    tmp_path: Path, tiny_draft: Path, standin_facts: Callable[[str], Any]
) -> Callable[..., Any]:
    """``standin_engine(fault, tool, when="", flavour="llama.cpp", real=DIR|None)`` -> Engine.

    Its tools are stand-ins: calls of ``tool`` whose arguments contain ``when`` show ``fault``
    (one of tests/engines/standins/standin.py, or ``server-<kind>``); all other calls
    become the real tools in ``real``. More faults: ``faults=[{tool, fault, when}, ...]``. Files
    are written under temporary names that keep the stem of the wanted one: let ``when`` be that.
    The directory (``engine.facts.bin_dir``) also works as ``--engine name=DIR``.
    """

    def make(
        fault: str | None = None,
        tool: str = "*",
        when: str = "",
        *,
        flavour: str = "llama.cpp",
        real: str | Path | None = None,
        faults: list[dict[str, str]] | None = None,
        name: str = "standin",
    ) -> Any:
        import dataclasses

        from cook.engines.ik_llama_cpp import IkLlamaCpp
        from cook.engines.llama_cpp import LlamaCpp

        planned = [] if fault is None else [{"tool": tool, "fault": fault, "when": when}]
        plan = {
            "real": str(real) if real is not None else None,
            "other_model": str(tiny_draft),
            "faults": [*(faults or ()), *planned],
        }
        directory = tmp_path / name / "bin"
        _write_standins(directory, flavour, plan)
        facts = dataclasses.replace(standin_facts(flavour), bin_dir=str(directory))
        return (LlamaCpp if flavour == "llama.cpp" else IkLlamaCpp)(name, facts)

    return make


def _write_standins(directory: Path, flavour: str, plan: dict[str, Any]) -> None:
    directory.mkdir(parents=True)
    source = (STANDINS / "standin.py").read_text(encoding="utf-8")
    script = f"#!{sys.executable} -IS\n# {STANDIN_TYPES[flavour]}\n{source}"
    for tool in TOOLS:
        path = directory / f"llama-{tool}"
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
    recorded = {"recorded": str(STANDINS / "recorded" / flavour)}
    (directory / "standin.json").write_text(json.dumps(plan | recorded), encoding="utf-8")


def _discover_or_skip(spec: str, home: Path, mend: str) -> Any:
    from cook.engines.discover import discover
    from cook.errors import PrerequisiteError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        try:
            return discover(spec)
        except PrerequisiteError as error:
            pytest.skip(f"SKIPPED LOUDLY: {error.message}: {mend}")
