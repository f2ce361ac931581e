"""Serving a record's pick: the command, the unit, the refusals, and the real server."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.speculation import NgramSettings, NgramType
from cook.errors import InputError
from cook.formats.quant_types import Flavour
from cook.graph.store import Store
from cook.record.record import Candidate, Record, write_record
from cook.report.commands import MEASURING, deployed
from cook.service import Service, read_or_make_key, serve, service_of, shell_text, systemd_unit
from tests.attacks.builds import wait_until
from tests.clusters import children
from tests.served_records import ALONE, DRAFT, PICKED, TARGET, record
from tests.stored import stored


@pytest.fixture
def ml(standin_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A mainline engine called ``ml``, known to discovery, and an empty home."""
    engine = standin_engine(name="ml")
    monkeypatch.setenv("COOK_ENGINE_ML", str(engine.facts.bin_dir))
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return engine


def value(service: Service, option: str) -> str:
    """What the command says after ``option``."""
    return service.command[service.command.index(option) + 1]


def test_the_command_is_the_engine_s_own(ml: Any, tmp_path: Path) -> None:
    service = service_of(record("ml"), port=18080)
    words = service.command
    measured = ml.server_command(service.job, 18080, tmp_path / "home" / "serve.key")
    assert words == deployed(measured)
    only_measuring = {word for words in MEASURING for word in words} - {"0", "4"}
    assert set(measured) - set(words) == only_measuring
    assert len(measured) - len(words) == sum(map(len, MEASURING))
    assert str(DRAFT) in words
    assert (value(service, "--spec-draft-n-max"), value(service, "--ctx-size")) == ("4", "512")
    assert "an" not in words
    assert any("another digest" not in n and "speed may differ" in n for n in service.notes)


def with_flags(role: str, *words: str) -> Record:
    """A record whose pick is served with raw flags of a stranger's choice."""
    flags: dict[str, Any] = {f"{role}_args": ModelArgs(threads=1, extra=words)}
    return changed(record("ml"), lambda c: replace(c, serving=replace(c.serving, **flags)))


def changed(scored: Record, how: Callable[[Any], Candidate]) -> Record:
    """``scored`` with each of its candidates changed."""
    return replace(scored, candidates=tuple(map(how, scored.candidates)))


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("target", "--model-url http://x/y.gguf"),
        ("draft", "--model_url=http://x/y.gguf"),
        ("target", "--poll --lora x.gguf"),
        ("target", "--host 0.0.0.0"),
        ("draft", "x.gguf"),
    ],
)
def test_a_stranger_s_record_says_nothing_that_a_recipe_could_not(
    ml: Any, role: str, words: str
) -> None:
    with pytest.raises(InputError, match="the record's flags of the " + role):
        service_of(with_flags(role, *words.split()))


def test_the_record_s_own_command_is_never_run(ml: Any) -> None:
    hostile = ("/bin/sh", "-c", "touch /tmp/x", "--model-url", "http://x/y.gguf")
    scored = record("ml")
    altered = changed(scored, lambda candidate: replace(candidate, command=hostile))
    assert service_of(altered, port=18080).command == service_of(scored, port=18080).command


def test_harmless_flags_are_served_and_others_by_the_user_s_own_word(ml: Any) -> None:
    words = service_of(with_flags("target", "--numa", "isolate"), port=18080).command
    assert words[-2:] == ("--numa", "isolate")
    hostile = with_flags("target", "--lora", "x.gguf")
    service = service_of(hostile, port=18080, unsafe_args=True)
    assert service.command[-2:] == ("--lora", "x.gguf")
    assert any("--lora" in note and "--allow-unsafe-args" in note for note in service.notes)
    with pytest.raises(InputError):
        service_of(with_flags("target", "--host", "0.0.0.0"), unsafe_args=True)


def test_a_record_brings_no_engine_of_its_own(ml: Any) -> None:
    for engine in (f"x={ml.facts.bin_dir}", str(ml.facts.bin_dir)):
        with pytest.raises(InputError, match="no name of an engine"):
            service_of(record(engine))


def test_the_same_record_on_the_other_engine(
    ml: Any, standin_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = standin_engine(name="ik", flavour="ik_llama.cpp")
    monkeypatch.setenv("COOK_ENGINE_IK", str(engine.facts.bin_dir))
    service = service_of(record("ml"), engine="ik", port=18080)
    assert value(service, "--spec-type") == "draft:n_max=4,n_min=0,p_min=0"


def test_a_shell_runs_what_is_printed(ml: Any, tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a $HOME "target".gguf'
    odd.symlink_to(TARGET)
    service = service_of(record("ml", target=odd), port=18080)
    text = shell_text(service)
    assert "\n  --port 18080 \\\n" in text
    printed = subprocess.run(
        ["sh", "-c", "printf '%s\\0' " + text], capture_output=True, check=True, text=True
    )
    words = printed.stdout.split("\0")[:-1]
    assert tuple(words[len(service.environment) :]) == service.command


def test_the_unit_has_what_no_shell_gives_it(ml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda/lib64")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    service = service_of(record("ml"), port=18080)
    assert "LD_LIBRARY_PATH" not in service.environment, "the shell has it"
    unit = systemd_unit(service)
    for word in ("LD_LIBRARY_PATH=", "CUDA_VISIBLE_DEVICES=", "GLIBC_TUNABLES="):
        assert f"Environment={word}" in unit.replace('"', "")


def test_the_unit(ml: Any, tmp_path: Path) -> None:
    odd = tmp_path / '50% $HOME "target".gguf'
    odd.symlink_to(TARGET)
    unit = systemd_unit(service_of(record("ml", target=odd), port=18080))
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    start = parser["Service"]["ExecStart"].replace("\\\n", " ")
    assert '50%% $$HOME \\"target\\".gguf"' in start
    assert parser["Install"]["WantedBy"] == "default.target"
    words = shlex.split(start.replace("\\", "\\\\").replace('\\\\"', '\\"'))
    assert words[words.index("--port") + 1] == "18080"


@pytest.mark.parametrize("picked", [ALONE, None])
def test_no_draft_was_picked(ml: Any, picked: str | None) -> None:
    service = service_of(record("ml", picked=picked), port=18080)
    assert service.job.draft is None
    assert "the target is served alone" in service.notes[0]
    assert str(DRAFT) not in service.command


def test_another_candidate_and_another_address(ml: Any) -> None:
    asked: dict[str, Any] = {"candidate": PICKED, "context": 1024, "host": "::1", "port": 0}
    service = service_of(record("ml", picked=ALONE), **asked)
    assert service.job.draft == DRAFT
    assert service.job.context == 1024
    assert service.url == f"http://[::1]:{service.port}"
    assert value(service, "--host") == "::1"
    with pytest.raises(InputError, match="no candidate 'x'"):
        service_of(record("ml"), candidate="x")


def test_a_rival_is_served_without_a_file(ml: Any) -> None:
    made = record("ml", picked=ALONE)
    rival = NgramSettings(NgramType.MAP_K, size_n=8).of(Flavour.LLAMA_CPP)
    of_rival: dict[str, Any] = {"draft": "ngram-map-k size_n=8", "ngram": rival}
    service = service_of(
        changed(made, lambda c: replace(c, **(of_rival if c.name == ALONE else {})))
    )
    assert (service.job.draft, service.job.ngram) == (None, rival)
    assert value(service, "--spec-type") == "ngram-map-k"
    assert value(service, "--spec-ngram-map-k-size-n") == "8"
    assert not service.notes or "served alone" not in service.notes[0]


def test_files_that_moved_or_changed(ml: Any, tmp_path: Path) -> None:
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(DRAFT.read_bytes())
    made = record("ml", draft=draft)
    draft.write_bytes(DRAFT.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"draft .* it is another file"):
        service_of(made)
    draft.unlink()
    with pytest.raises(InputError, match=r"draft .*draft\.gguf: No such file"):
        service_of(made)
    split = replace(record("ml"), target=str(tmp_path / "t-00001-of-00002.gguf"))
    (tmp_path / "t-00001-of-00002.gguf").write_bytes(b"x")
    with pytest.raises(InputError, match=r"target .*t-00002-of-00002\.gguf: No such file"):
        service_of(split)


@pytest.mark.parametrize("names", [("model",), ("model-00001-of-00002", "model-00002-of-00002")])
def test_a_stored_draft_that_is_rotten(ml: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    data = DRAFT.read_bytes()
    cut = len(data) if len(names) == 1 else len(data) - 1000
    parts = zip((f"{name}.gguf" for name in names), (data[:cut], data[cut:]), strict=False)
    kept = stored(Store(tmp_path / "store"), dict(parts))
    first, last = (kept.file(f"{name}.gguf") for name in (names[0], names[-1]))
    made = record("ml", draft=first)
    made = replace(made, drafts=(replace(made.drafts[0], file_bytes=len(data)), *made.drafts[1:]))
    assert service_of(made).job.draft == first
    with last.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match="has other content than was scored") as caught:
        service_of(made)
    assert "verify --mend" in (caught.value.hint or "")


def test_records_with_nothing_to_serve(ml: Any) -> None:
    scored = record("ml")
    with pytest.raises(InputError, match="scored nothing"):
        service_of(replace(scored, candidates=()))
    with pytest.raises(InputError, match="does not say how"):
        service_of(changed(scored, lambda candidate: replace(candidate, serving=None)))
    with pytest.raises(InputError, match="names no file"):
        service_of(replace(scored, drafts=(replace(scored.drafts[0], path=None),)))


def test_the_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "a" / "serve.key"
    key = read_or_make_key(path)
    assert len(key) == 48
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_make_key(path) == key
    path.chmod(0o644)
    with pytest.raises(InputError, match="others may read"):
        read_or_make_key(path)
    path.chmod(0o600)
    path.write_text("two\nlines")
    with pytest.raises(InputError, match="holds no key"):
        read_or_make_key(path)


def test_a_port_that_is_taken(ml: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = service_of(record("ml"), port=taken.getsockname()[1])
        with pytest.raises(InputError, match="in use"):
            serve(service, Supervisor(tmp_path), lambda *_: None, lambda: None)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("number", "host"), [(signal.SIGINT, "127.0.0.1"), (signal.SIGTERM, "127.0.0.2")]
)
def test_the_real_server_serves_drafts_and_stops(
    bundled: Any, tmp_path: Path, number: signal.Signals, host: str
) -> None:
    said = check_serving("bundled", tmp_path, number, host)
    assert re.search(r"^\d+\.\d{2}\.\d{3}\.\d{3} I ", said, re.MULTILINE), "its log has times"


@pytest.mark.ik
def test_ik_serves_drafts_and_stops(ik_engine: Any, tmp_path: Path) -> None:
    check_serving("ik", tmp_path, signal.SIGINT)


def check_serving(
    engine: str, tmp_path: Path, number: signal.Signals, host: str = "127.0.0.1"
) -> str:
    """Serve, ask, and end by ``number``; what went to stderr."""
    import httpx

    home, argv, env = kept(record(engine), tmp_path)
    with (tmp_path / "stderr").open("wb") as stderr:
        argv += ["--host", host]
        cook = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        url = cook.stdout.readline().strip()
        assert url.startswith(f"http://{host}:"), (tmp_path / "stderr").read_text()
        key = (home / "serve.key").read_text().strip()
        texts = ("def add(a, b):\n    return a + b\n" * 12, "import os\nimport sys\n" * 20)

        def ask(prompt: str, **head: str) -> Any:
            body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "ignore_eos": True}
            return httpx.post(f"{url}/completion", json=body, headers=head, timeout=60)

        open_, known = ask("import os"), {"Authorization": f"Bearer {key}"}
        answer = ask("import os", **known).json()
        read = [ask(t, **known).json()["timings"]["prompt_n"] for t in (*texts, texts[0])]
        servers = children(cook.pid)
    finally:
        cook.send_signal(number)
        status = cook.wait(30)
    assert open_.status_code == 401
    assert answer["timings"]["draft_n"] > 0
    if engine == "bundled":  # another prompt came between: the prompt cache has the first
        assert read[0] > 100 > read[2]
    assert status == 0
    assert servers
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers), 2, "one runs on")
    said = (tmp_path / "stderr").read_text()
    assert f"ready: {PICKED}, drafting" in said
    assert key not in said
    return said


def kept(made: Record, folder: Path) -> tuple[Path, list[str], dict[str, str]]:
    """A home that has ``made`` alone; a command that serves it, and its environment."""
    home = folder / "home"
    write_record(made, home / "records" / "r.json")
    argv = [sys.executable, "-m", "cook", "serve", "r", "--port", "0"]
    return home, argv, {**os.environ, "COOK_HOME": str(home)}


@pytest.mark.engine
def test_a_server_that_fails_passes_its_story_on(bundled: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    _, argv, env = kept(record("bundled", target=broken, picked=ALONE), tmp_path)
    argv.append("--json")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "before it was ready" in done.stderr
    assert json.loads(done.stdout)["candidate"] == ALONE
