"""Tensors from a publisher's shards, over loopback: whole builds, and all that may be wrong."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
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


def recipe(folder: Path, model: Path, *, here: bool = False, **asked: str) -> Path:
    """A recipe of one quant of published tensors; with ``here`` also the same made here."""
    tensors_from = json.dumps({"publisher": "Thireus", "model": "tiny", **asked})
    path = folder / "r.yaml"
    path.write_text(
        f"version: 1\nname: r\nmodel: {{source: {json.dumps(str(model))}}}\nquants:\n"
        + ("  - {name: here, type: Q8_0, mixture: pure}\n" if here else "")
        + f"  - {{name: theirs, type: Q8_0, mixture: pure, tensors_from: {tensors_from}}}\n"
    )
    return path


def prepared(path: Path, *, plan_only: bool = False) -> Prepared:
    return prepare(path, engines=["bundled"], plan_only=plan_only)


def made(path: Path) -> dict[str, Path]:
    record = build(prepared(path), Output(Mode.QUIET)).record
    return {draft.quant: Path(draft.path or "") for draft in record.drafts}


def stored_tensors() -> list[Any]:
    return [a for a in Store(cook_home() / "store").entries() if a.kind == "tensor"]


@pytest.mark.engine
def test_the_file_is_the_one_that_would_have_been_made_here(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path, quantized: Path
) -> None:
    commit = hub.add(REPO, files)
    path = recipe(tmp_path, tiny_model, here=True)
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
    by_maker: dict[bool, list[Any]] = {True: [], False: []}
    for artifact in stored_tensors():
        params = artifact.key_parts["params"]
        by_maker[params["quantizer"].startswith("published:Thireus/tiny:sha256:")].append(params)
    assert len(by_maker[True]) == len(by_maker[False]) == changed
    assert {p["importance"] for p in by_maker[True]} == {"ab" * 32}
    assert {p["importance"] for p in by_maker[False]} == {None}
    # Nothing is left to fetch, and nothing to make.
    again = prepared(path, plan_only=True)
    assert again.left_bytes == 0


@pytest.mark.engine
def test_offline_what_was_fetched_will_do(
    hub: Any,
    files: dict[str, bytes],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.add(REPO, files)
    path = recipe(tmp_path, tiny_model)
    prepared(path)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.seen)
    assert made(path)["theirs"].is_file()
    assert len(hub.seen) == asked


@pytest.mark.engine
def test_offline_what_was_not_is_told(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path, monkeypatch: Any
) -> None:
    hub.add(REPO, files)
    path = recipe(tmp_path, tiny_model)
    prepared(path, plan_only=True)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="is in the map and not on this disk") as raised:
        prepared(path)
    assert raised.value.hint.startswith("connect")


@pytest.mark.engine
def test_a_broken_transfer_goes_on_where_it_stopped(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path
) -> None:
    hub.add(REPO, files)
    hub.fault("GET /blob/", "cut", times=2)
    hub.fault("SPECIAL_TENSOR", "503", times=2)
    assert made(recipe(tmp_path, tiny_model))["theirs"].is_file()
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
    tmp_path: Path,
    tiny_model: Path,
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
    refused(recipe(tmp_path, tiny_model), error, message)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        prepared(recipe(tmp_path, tiny_model))


def changed_map(files: dict[str, bytes], tensor: str, old: str, new: str) -> dict[str, bytes]:
    line = line_of(files, tensor)
    assert old in line
    text = files["tensors.map"].decode().replace(line, line.replace(old, new))
    return {**files, "tensors.map": text.encode()}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape=(256, 320)", "shape=(320, 256)", r"has the shape \(320, 256\), in the source \(25"),
        ("shape=(256, 320)", "shape=(256, 321)", r"map:3: 81920 elements, and the shape"),
        (":token_embd.weight:", ":token_embd.other:", "has no token_embd.weight"),
        ("dtype=q8_0", "dtype=q5_0", "bytes, and q5_0 of this shape has"),
    ],
)
def test_a_map_that_lies_is_refused_before_anything_is_fetched(
    hub: Any,
    files: dict[str, bytes],
    tmp_path: Path,
    tiny_model: Path,
    old: str,
    new: str,
    message: str,
) -> None:
    hub.add(REPO, changed_map(files, LARGE, old, new))
    refused(recipe(tmp_path, tiny_model), InputError, message)
    assert hub.count("SPECIAL_TENSOR") == 0


@pytest.mark.engine
def test_a_shard_that_holds_another_tensor_is_refused_though_its_hash_is_right(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path
) -> None:
    """The map and the hash agree; only the shard's own header tells."""
    name, other = shard_of(files, LARGE), files[shard_of(files, "output.weight")]
    swapped = changed_map(
        files,
        LARGE,
        hashlib.sha256(files[name]).hexdigest(),
        hashlib.sha256(other).hexdigest(),
    )
    hub.add(REPO, {**swapped, name: other})
    message = r"holds output\.weight \(256, 320\) q8_0, and its map says token_embd\.weight"
    refused(recipe(tmp_path, tiny_model), StepError, message)


@pytest.mark.engine
def test_a_type_that_fell_back_is_told(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path
) -> None:
    impure = changed_map(files, LARGE, "dtype=q8_0", "dtype=q4_1")
    hub.add(REPO, changed_map(impure, LARGE, "bytes=87040", "bytes=51200"))
    message = r"tensors\.map:3: token_embd\.weight: is q4_1 in the repository of q8_0"
    refused(recipe(tmp_path, tiny_model), InputError, message)


@pytest.mark.engine
def test_packed_shards_are_told(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path
) -> None:
    name = shard_of(files, LARGE)
    packed = {key: data for key, data in files.items() if key != name}
    hub.add(REPO, {**packed, f"{name}.zbst": b"(packed)"})
    refused(recipe(tmp_path, tiny_model), InputError, "is there packed only")


@pytest.mark.engine
def test_a_repository_that_is_not_there(hub: Any, tmp_path: Path, tiny_model: Path) -> None:
    refused(recipe(tmp_path, tiny_model), CookError, "no such repository")
    hub.add(REPO, {"README.md": b"nothing"})
    refused(recipe(tmp_path, tiny_model), InputError, "no tensors.map in the repository")


# --- signatures


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
def test_who_signed_is_told_and_can_be_asked_for(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path, keyring: str
) -> None:
    hub.add(REPO, signed(files, tmp_path))
    found = prepared(recipe(tmp_path, tiny_model, key=keyring.lower()), plan_only=True)
    assert found.warnings == ()
    assert found.origins[0].signature == f"signed by {keyring}"
    with pytest.raises(InputError, match=f"is signed by {keyring}, not by the key 0000"):
        prepared(recipe(tmp_path, tiny_model, key="0" * 40), plan_only=True)


@pytest.mark.engine
def test_a_signature_of_other_bytes_is_refused(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path, keyring: str
) -> None:
    with_signature = signed(files, tmp_path)
    hub.add(REPO, {**with_signature, "tensors.map": files["tensors.map"] + b"\n"})
    refused(recipe(tmp_path, tiny_model), InputError, "its signature is of other bytes")


@pytest.mark.engine
@pytest.mark.parametrize("without", ["key", "gpg"])
def test_a_signature_that_cannot_be_checked_is_told(
    hub: Any,
    files: dict[str, bytes],
    tmp_path: Path,
    tiny_model: Path,
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
    found = prepared(recipe(tmp_path, tiny_model), plan_only=True)
    assert found.origins[0].signature is not None
    assert f"{NOT_CHECKED}: " in found.warnings[0]
    assert reason in found.warnings[0] or "the key " in found.warnings[0]
    with pytest.raises(PrerequisiteError, match="signature not checked"):
        prepared(recipe(tmp_path, tiny_model, key=keyring), plan_only=True)


@pytest.mark.engine
def test_an_unsigned_map_where_a_key_is_asked_for(
    hub: Any, files: dict[str, bytes], tmp_path: Path, tiny_model: Path
) -> None:
    hub.add(REPO, files)
    with pytest.raises(InputError, match="is not signed, and the key"):
        prepared(recipe(tmp_path, tiny_model, key="A" * 40), plan_only=True)
