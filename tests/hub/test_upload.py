"""Uploads through the real client, over loopback, with faults in their way."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError, PrerequisiteError, StepError
from cook.hub.client import scrubbed
from cook.hub.upload import Package, Published, PublishRequest, pack, publish, repository
from cook.output import Mode, Output
from cook.provenance import HubOrigin
from cook.record.record import Record, StepRecord, read_record, write_record
from tests.hub.fixtures import environment
from tests.hub.hub_server import TOKEN
from tests.report import records

# The client's own way of sending a file is deprecated by the library below it.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SIZES = {"Q8_0": 400_000, "Q4_K_M": 250_000, "IQ1_S": 120_000}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A record whose quants are on disk."""
    whole = records.record(lengths=(4,))
    drafts, steps = [], []
    for index, draft in enumerate(whole.drafts):
        path = tmp_path / "store" / f"{index}" / "model.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(random.Random(index).randbytes(SIZES[draft.quant]))
        drafts.append(replace(draft, path=str(path), file_bytes=SIZES[draft.quant]))
        argv = ("/b/llama-quantize", "/m/src.gguf", str(path), draft.quant, "2")
        steps.append(StepRecord(f"quantize {draft.quant}", "quantize", draft.key, "ran", 1.0, argv))
    return replace(whole, drafts=tuple(drafts), steps=tuple(steps))


def package(record: Record, **wanted: Any) -> Package:
    return pack(record, PublishRequest(repo="me/Tiny-GGUF", license="mit", **wanted))


def send(sent: Package, **options: bool) -> Published:
    return publish(sent, Output(Mode.QUIET, io.StringIO(), io.StringIO()), **options)


def on_the_hub(hub: Any) -> dict[str, bytes]:
    files: dict[str, bytes] = hub.repos["me/Tiny-GGUF"].commits[-1][1]
    return files


def check(hub: Any, sent: Package) -> None:
    """Every file of the package is on the Hub, byte for byte, in one commit."""
    there = on_the_hub(hub)
    for item in sent.items:
        content = item.content if isinstance(item.content, bytes) else item.content.read_bytes()
        assert there[item.path] == content, item.path


def test_all_goes_up_in_one_commit(hub: Any, login: str, record: Record) -> None:
    sent = package(record)
    done = send(sent)
    check(hub, sent)
    assert set(on_the_hub(hub)) == {
        *(f"Tiny-{q}.gguf" for q in SIZES),
        *("README.md", "recipe.yaml", "record.json", ".gitattributes"),
    }
    assert len(hub.repos["me/Tiny-GGUF"].commits) == 2  # the Hub's own, and ours
    assert hub.repos["me/Tiny-GGUF"].private
    assert done.private
    assert done.commit == hub.repos["me/Tiny-GGUF"].commits[-1][0]
    again = send(sent)
    assert again.sent == ()
    assert len(hub.repos["me/Tiny-GGUF"].commits) == 2
    assert hub.count("PUT /blob/") == len(SIZES)


FAULTS = ["reset", "503", "429", "500", "html", "lost"]
PLACES = [
    "POST /api/repos/create",
    "GET /api/models/.*/revision",
    "GET /api/models/.*/tree",
    "POST /api/.*/preupload",
    "POST /me/.*batch",
    "PUT /blob/",
    "POST /lfs/verify",
    "POST /api/validate-yaml",
    "POST /api/.*/commit",
]


@pytest.mark.parametrize("where", PLACES)
def test_faults_in_a_row_cost_nothing(hub: Any, login: str, record: Record, where: str) -> None:
    sent = package(record, quants=("IQ1_S",))
    for kind in FAULTS:
        hub.fault(where, kind)
    send(sent)
    # Answers that are lost after the work was done leave less to ask for again.
    assert len(hub.injected) >= len(FAULTS) - 1
    check(hub, sent)
    assert len(hub.repos["me/Tiny-GGUF"].commits) == 2


@pytest.mark.parametrize("kind", ["corrupt", "reset-upload", "cut", "truncate"])
@pytest.mark.parametrize("multipart", [False, True])
def test_bytes_damaged_on_the_way(
    hub: Any, login: str, record: Record, kind: str, multipart: bool
) -> None:
    hub.part_bytes = 50_000 if multipart else None
    hub.fault("PUT /(blob|part)/", kind, times=2)
    sent = package(record)
    send(sent)
    assert hub.injected
    check(hub, sent)


def test_an_interrupted_upload_goes_on(hub: Any, login: str, record: Record) -> None:
    sent = package(record)
    hub.fault("PUT /blob/" + sent.items[1].sha256, "503", times=10_000)
    with pytest.raises(StepError, match=r"Tiny-Q4_K_M.gguf: the Hub answered 503"):
        send(sent)
    assert set(on_the_hub(hub)) == {".gitattributes"}, "nothing is shown half"
    hub.faults.clear()
    before = len(hub.seen)
    send(sent)
    check(hub, sent)
    puts = [s.path for s in hub.seen[before:] if s.method == "PUT"]
    assert len(puts) == 2, "the first one was there already"


def test_what_arrives_is_compared(
    hub: Any, login: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub._commit

    def wrong(name: str, files: dict[str, bytes]) -> Any:
        damaged = {p: d[::-1] if p == "record.json" else d for p, d in files.items()}
        return commit(name, damaged)

    monkeypatch.setattr(hub, "_commit", wrong)
    with pytest.raises(StepError, match=r"record.json: not on the Hub as it was sent"):
        send(package(record))


def test_a_card_of_someone_else_stays(hub: Any, login: str, record: Record) -> None:
    hub.add("me/Tiny-GGUF", {"README.md": b"# My own words"})
    with pytest.raises(InputError, match="a card that cook did not write") as caught:
        send(package(record))
    assert "--replace-card" in (caught.value.hint or "")
    assert on_the_hub(hub) == {"README.md": b"# My own words"}
    send(package(record), replace_card=True)
    other = replace(record, created="2026-11-22T18:00:00Z")
    send(package(other))  # its own card it may replace
    check(hub, package(other))


def test_refusals(hub: Any, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    for repo, token, words in (
        ("others/Tiny-GGUF", TOKEN, "this login may not do that: You don't have"),
        ("me/Tiny-GGUF", "hf_" + "wrongWrongWrong", "did not accept the login"),
        ("me/Tiny-GGUF", "", "no login"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(PrerequisiteError, match=words) as caught:
            send(replace(package(record), repo=repo))
        assert caught.value.hint
        assert not token or token not in str(caught.value) + str(caught.value.hint)


def test_what_the_server_says_is_scrubbed(hub: Any, login: str) -> None:
    said = f"bad {login} at https://u:p@host/x?X-Sig=s1gned \x1b[31m and hf_{'a' * 34}\nnext"
    assert scrubbed(said) == "bad <token> at <url> and <token> next"


def test_a_login_in_the_recipe_is_not_published(hub: Any, record: Record) -> None:
    leaky = replace(record, recipe_text=f"# {'hf_' + 'x' * 34}\nname: demo\n")
    with pytest.raises(InputError, match=r"recipe.yaml: holds a login"):
        package(leaky)


def in_two(record: Record) -> Record:
    """``record``, its first quant in two files."""
    first, *others = record.drafts
    whole = Path(str(first.path))
    data = whole.read_bytes()
    paths = [whole.with_name(f"model-0000{n}-of-00002.gguf") for n in (1, 2)]
    paths[0].write_bytes(data[:1000])
    paths[1].write_bytes(data[1000:])
    whole.unlink()
    return replace(record, drafts=(replace(first, path=str(paths[0])), *others))


def test_a_split_quant_goes_up_in_all_its_files_and_public_when_asked_for(
    hub: Any, login: str, record: Record
) -> None:
    split = in_two(record)
    name = record.drafts[0].quant
    sent = package(split, quants=(name,))
    assert not send(sent, public=True).private
    assert not hub.repos["me/Tiny-GGUF"].private
    check(hub, sent)
    names = [f"Tiny-{name}-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert [i.path for i in sent.items if i.path.endswith(".gguf")] == names
    assert f"`{names[0]}` (the first of 2; give it to the engine)" in sent.card
    assert f"Tiny-{name}.gguf" in sent.card, "what llama-quantize writes is whole"
    document = json.loads(on_the_hub(hub)["record.json"])
    assert document["drafts"][0]["path"] == names[0]


def test_a_file_that_is_gone_or_cut_is_named(record: Record) -> None:
    split = in_two(record)
    second = Path(str(split.drafts[0].path)).with_name("model-00002-of-00002.gguf")
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(InputError, match="has 399999 bytes, and the record says 400000"):
        package(split)
    second.unlink()
    with pytest.raises(InputError, match=r"Q8_0: its file is not there any more: .*00002\.gguf"):
        package(split)


def test_what_a_package_holds(record: Record, tmp_path: Path) -> None:
    sent = package(record, quants=("IQ1_S",), title="Other")
    assert [i.path for i in sent.items] == [
        *("Other-IQ1_S.gguf", "recipe.yaml", "record.json", "README.md")
    ]
    document = next(i for i in sent.items if i.path == "record.json").content
    assert isinstance(document, bytes)
    (tmp_path / "back.json").write_bytes(document)
    assert read_record(tmp_path / "back.json").recipe == record.recipe
    with pytest.raises(InputError, match="no such quant") as caught:
        package(record, quants=("IQ9",))
    assert caught.value.hint == "it has Q8_0, Q4_K_M, IQ1_S"


def test_the_base_model_comes_from_the_source(record: Record) -> None:
    assert any("base model is not known" in w for w in package(record).warnings)
    text = "model: {source: 'hf://inclusionAI/Ling@main'}\n"
    assert "base_model: inclusionAI/Ling\n" in package(replace(record, recipe_text=text)).card
    origin = HubOrigin("model", "hf://org/Base@v1/BF16", "0" * 40, (), 0)
    assert "base_model: org/Base\n" in package(replace(record, sources=(origin,))).card
    assert "base_model: me/Mine\n" in package(record, base_model="me/Mine").card


@pytest.mark.parametrize("text", ["name", "a/b/c", "a/b@main", "datasets/a/b", "a b/c"])
def test_names_that_are_no_repository(text: str) -> None:
    with pytest.raises(InputError):
        repository(text)


def test_the_command_line(hub: Any, login: str, record: Record, tmp_path: Path) -> None:
    """The program itself, as a process: its output, and what others can see of it."""
    path = tmp_path / "record.json"
    write_record(record, path)
    env = environment(hub, tmp_path) | {"HF_TOKEN": login, "HF_DEBUG": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "cook", "publish", str(path), "me/Tiny-GGUF", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)

    dry = run("--dry-run", "--license", "mit")
    assert dry.returncode == 0, dry.stderr
    assert re.search(r"^Tiny-Q8_0.gguf +390.62 KiB +\w{12}$", dry.stdout, flags=re.M)
    assert "base_model_relation" not in dry.stdout
    assert "license: mit" in dry.stdout
    assert not hub.seen
    document = json.loads(run("--dry-run", "--json").stdout)
    assert [f["path"] for f in document["files"]][-1] == "README.md"
    hub.fault("PUT /", "503")
    hub.fault("PUT /", "reset")
    seen: list[str] = []
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(seen, stop), daemon=True)
    watcher.start()
    real = run("--json")
    stop.set()
    watcher.join()
    assert real.returncode == 0, real.stderr
    assert json.loads(real.stdout)["private"] is True
    assert set(on_the_hub(hub)) >= {"Tiny-Q8_0.gguf", "README.md"}
    assert any("publish" in line for line in seen)
    everything = "".join([*seen, dry.stdout, dry.stderr, real.stdout, real.stderr])
    assert login not in everything
    assert "s1gned" not in everything
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert login.encode() not in file.read_bytes(), file


def _watch(seen: list[str], stop: threading.Event) -> None:
    """Command lines of all processes, as ``ps`` shows them, until it is to stop."""
    while not stop.is_set():
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        time.sleep(0.05)
