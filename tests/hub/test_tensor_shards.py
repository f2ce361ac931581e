"""Tensors from a publisher's shards, over loopback: whole builds, and all that may be wrong."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cook.engines.process.supervisor import ask
from cook.errors import CookError, InputError, PrerequisiteError, StepError
from cook.formats.gguf import read_gguf
from cook.graph.store import Store
from cook.hub.tensor_shards import MAP, MAP_SIGNATURE, NOT_CHECKED, UNSIGNED
from cook.job.prepare import Prepared, prepare
from cook.job.run import build
from cook.output import Mode, Output
from cook.paths import cook_home
from tests.hub import hub_server
from tests.hub.shards import NAMES, line_of, repository, shard_of

Recipe = Callable[..., Path]
LARGE = "token_embd.weight"
REPO = NAMES.repository("q8_0")


@pytest.fixture(scope="module")
def quantized(bundled: Any, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as llama-quantize itself writes it, every matrix q8_0."""
    path = tmp_path_factory.mktemp("published") / "tiny-Q8_0.gguf"
    program = next(f for f in bundled.files if f.name == "llama-quantize")
    argv = (str(program), "--pure", str(tiny_model), str(path), "Q8_0")
    ask(*argv, env=bundled.environment()).check()
    return path


@pytest.fixture
def files(quantized: Path, tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "shards"
    folder.mkdir()
    return repository(folder, quantized, "q8_0", imatrix="ab" * 32)


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path) -> Recipe:
    """Writes a recipe of one quant of published tensors; with ``here`` also the same made here."""

    def write(*, here: bool = False, **asked: str) -> Path:
        tensors_from = json.dumps({"publisher": "Thireus", "model": "tiny", **asked})
        path = tmp_path / "r.yaml"
        path.write_text(
            f"version: 1\nname: r\nmodel: {{source: {json.dumps(str(tiny_model))}}}\nquants:\n"
            + ("  - {name: here, type: Q8_0, mixture: pure}\n" if here else "")
            + f"  - {{name: theirs, type: Q8_0, mixture: pure, tensors_from: {tensors_from}}}\n"
        )
        return path

    return write


def prepared(path: Path, *, plan_only: bool = False) -> Prepared:
    return prepare(path, engines=["bundled"], plan_only=plan_only)


def made(path: Path) -> dict[str, Path]:
    record = build(prepared(path), Output(Mode.QUIET)).record
    return {draft.quant: Path(draft.path or "") for draft in record.drafts}


def stored_tensors() -> list[Any]:
    return [a for a in Store(cook_home() / "store").entries() if a.kind == "tensor"]


@pytest.mark.engine
def test_the_file_is_the_one_that_would_have_been_made_here(
    hub: Any, files: dict[str, bytes], recipe: Recipe, quantized: Path
) -> None:
    commit = hub.add(REPO, files)
    path = recipe(here=True)
    planned = prepared(path, plan_only=True)
    assert hub.count("SPECIAL_TENSOR") == 0, "a plan reads the map alone"
    assert planned.left_bytes > 1_000_000
    assert planned.warnings[0].startswith(f"hf://{REPO}: {MAP}: {UNSIGNED}")
    built = build(prepared(path), Output(Mode.QUIET)).record
    drafts = {d.quant: Path(d.path or "") for d in built.drafts}
    theirs, here, tool = (read_gguf(p) for p in (drafts["theirs"], drafts["here"], quantized))
    assert theirs.find(LARGE) is not None
    for tensor in tool.tensors:
        data = tool.read_tensor_bytes(tensor.name)
        assert theirs.read_tensor_bytes(tensor.name) == data, tensor.name
        assert here.read_tensor_bytes(tensor.name) == data, tensor.name
    # Said in the file, in the record, and in what each stored tensor is called.
    changed = sum(t.type_name == "q8_0" for t in tool.tensors)
    assert theirs.string("cook.published") == f"Thireus/tiny: {changed} tensors"
    assert here.string("cook.published") is None
    (origin,) = built.sources
    assert (origin.commit, origin.signature) == (commit, UNSIGNED)
    assert origin.role == "tensors as q8_0"
    assert f":{dict(origin.files)[shard_of(files, LARGE)]}:" in line_of(files, LARGE)
    stored = [artifact.key_parts["params"] for artifact in stored_tensors()]
    published = [p for p in stored if p["quantizer"].startswith("published:Thireus/tiny:sha256:")]
    assert len(stored) == 2 * len(published) == 2 * changed
    assert {p["importance"] for p in published} == {"ab" * 32}
    assert {p["importance"] for p in stored if p not in published} == {None}
    assert prepared(path, plan_only=True).left_bytes == 0


@pytest.mark.engine
def test_offline_what_was_fetched_will_do(
    hub: Any, files: dict[str, bytes], recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.add(REPO, files)
    path = recipe()
    prepared(path, plan_only=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="is in the map and not on this disk") as raised:
        prepared(path)
    assert raised.value.hint.startswith("connect")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    prepared(path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.seen)
    assert made(path)["theirs"].is_file()
    assert len(hub.seen) == asked


@pytest.mark.engine
def test_a_broken_transfer_goes_on_where_it_stopped(
    hub: Any, files: dict[str, bytes], recipe: Recipe
) -> None:
    hub.add(REPO, files)
    hub.fault("GET /blob/", "cut", times=2)
    hub.fault("SPECIAL_TENSOR", "503", times=2)
    assert made(recipe())["theirs"].is_file()
    assert len(hub.injected) == 4


def refused(path: Path, error: type[CookError], message: str) -> None:
    """Neither a plan nor a build takes anything; a build says why."""
    with pytest.raises(error, match=message):
        made(path)
    assert stored_tensors() == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("large", "error", "message"),
    [
        # The Hub itself says what hash a large file has: nothing is fetched.
        (1, InputError, r"the Hub has other bytes than .*tensors\.map:3 says"),
        (1 << 30, StepError, r"hashes to [0-9a-f]{64}, and .*tensors\.map says"),
    ],
)
def test_a_shard_with_a_wrong_hash_is_refused_by_name(
    hub: Any,
    files: dict[str, bytes],
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    large: int,
    error: type[CookError],
    message: str,
) -> None:
    monkeypatch.setattr(hub_server, "LARGE_BYTES", large)
    name = shard_of(files, LARGE)
    data = bytearray(files[name])
    data[-1] ^= 1
    hub.add(REPO, {**files, name: bytes(data)})
    refused(recipe(), error, message)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        prepared(recipe())


def changed_map(files: dict[str, bytes], tensor: str, changes: dict[str, str]) -> dict[str, bytes]:
    line = changed = line_of(files, tensor)
    for old, new in changes.items():
        assert old in changed
        changed = changed.replace(old, new)
    return {**files, MAP: files[MAP].replace(line.encode(), changed.encode())}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"(256, 320)": "(320, 256)"}, r"has the shape \(320, 256\), in the source \(25"),
        ({"(256, 320)": "(256, 321)"}, r"map:3: 81920 elements, and the shape"),
        ({":token_embd.weight:": ":token_embd.other:"}, "has no token_embd.weight"),
        ({"=q8_0": "=q5_0"}, "bytes, and q5_0 of this shape has"),
        ({"=q8_0": "=q4_1", "=87040": "=51200"}, r"map:3: .*: is q4_1 in the repository of q8_0"),
    ],
)
def test_a_map_that_lies_is_refused_before_anything_is_fetched(
    hub: Any, files: dict[str, bytes], recipe: Recipe, changes: dict[str, str], message: str
) -> None:
    hub.add(REPO, changed_map(files, LARGE, changes))
    refused(recipe(), InputError, message)
    assert hub.count("SPECIAL_TENSOR") == 0


@pytest.mark.engine
def test_a_shard_that_holds_another_tensor_is_refused_though_its_hash_is_right(
    hub: Any, files: dict[str, bytes], recipe: Recipe
) -> None:
    """The map and the hash agree; only the shard's own header tells."""
    name, other = shard_of(files, LARGE), files[shard_of(files, "output.weight")]
    old, new = (hashlib.sha256(data).hexdigest() for data in (files[name], other))
    hub.add(REPO, {**changed_map(files, LARGE, {old: new}), name: other})
    message = r"holds output\.weight \(256, 320\) q8_0, and its map says token_embd\.weight"
    refused(recipe(), StepError, message)


@pytest.mark.engine
def test_packed_shards_are_refused(hub: Any, files: dict[str, bytes], recipe: Recipe) -> None:
    name = shard_of(files, LARGE)
    packed = {key: data for key, data in files.items() if key != name}
    hub.add(REPO, {**packed, f"{name}.zbst": b"(packed)"})
    refused(recipe(), InputError, "is there packed only")


@pytest.mark.engine
def test_a_repository_that_is_not_there(hub: Any, recipe: Recipe) -> None:
    refused(recipe(), CookError, "no such repository")
    hub.add(REPO, {"README.md": b"nothing"})
    refused(recipe(), InputError, "no tensors.map in the repository")


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A keyring of this test's own with one key, by its fingerprint."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    try:
        gpg("--passphrase", "", "--quick-generate-key", "publisher@example.org", "rsa2048", "sign")
    except FileNotFoundError:
        pytest.skip("gpg is not installed")
    listed = gpg("--with-colons", "--list-keys").stdout
    yield next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))
    subprocess.run(["gpgconf", "--kill", "all"], check=False)


def gpg(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["gpg", "--batch", "--yes", *arguments], check=True, capture_output=True, text=True
    )


def signed(files: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    (folder / "tensors.map").write_bytes(files["tensors.map"])
    gpg("--detach-sign", str(folder / "tensors.map"))
    return {**files, MAP_SIGNATURE: (folder / MAP_SIGNATURE).read_bytes()}


@pytest.mark.engine
def test_who_signed_is_said_and_can_be_asked_for(
    hub: Any, files: dict[str, bytes], tmp_path: Path, recipe: Recipe, keyring: str
) -> None:
    hub.add(REPO, signed(files, tmp_path))
    found = prepared(recipe(key=keyring.lower()), plan_only=True)
    assert found.warnings == ()
    assert found.origins[0].signature == f"signed by {keyring}"
    with pytest.raises(InputError, match=f"is signed by {keyring}, not by the key 0000"):
        prepared(recipe(key="0" * 40), plan_only=True)


@pytest.mark.engine
def test_a_signature_of_other_bytes_is_refused(
    hub: Any, files: dict[str, bytes], tmp_path: Path, recipe: Recipe, keyring: str
) -> None:
    with_signature = signed(files, tmp_path)
    hub.add(REPO, {**with_signature, "tensors.map": files["tensors.map"] + b"\n"})
    refused(recipe(), InputError, "its signature is of other bytes")


@pytest.mark.engine
@pytest.mark.parametrize("without", ["key", "gpg"])
def test_a_signature_that_cannot_be_checked_is_a_warning(
    hub: Any,
    files: dict[str, bytes],
    tmp_path: Path,
    recipe: Recipe,
    keyring: str,
    monkeypatch: pytest.MonkeyPatch,
    without: str,
) -> None:
    hub.add(REPO, signed(files, tmp_path))
    if without == "key":
        empty = tmp_path / "empty"
        empty.mkdir(mode=0o700)
        monkeypatch.setenv("GNUPGHOME", str(empty))
        reason = f"the key {keyring} is not in this user's keyring"
    else:
        monkeypatch.setattr("shutil.which", lambda _: None)
        reason = "gpg is not installed"
    found = prepared(recipe(), plan_only=True)
    assert found.origins[0].signature is not None
    assert f"{NOT_CHECKED}: " in found.warnings[0]
    assert reason in found.warnings[0] or "the key " in found.warnings[0]
    with pytest.raises(PrerequisiteError, match="signature not checked"):
        prepared(recipe(key=keyring), plan_only=True)


@pytest.mark.engine
def test_an_unsigned_map_where_a_key_is_asked_for(
    hub: Any, files: dict[str, bytes], recipe: Recipe
) -> None:
    hub.add(REPO, files)
    with pytest.raises(InputError, match="is not signed, and the key"):
        prepared(recipe(key="A" * 40), plan_only=True)
