"""Downloads through the real client, over loopback, with faults in their way."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cook.errors import CookError, InputError, PrerequisiteError, StepError
from cook.hub.download import fetch, left_bytes, missing, place, stand_in
from cook.hub.listing import Listing, cached_listing, choose, listing
from cook.recipe.sources import HubRef
from tests.hub.fixtures import environment

FILE = "model-Q8_0.gguf"
PARSED = HubRef.parse("hf://org/tiny/" + FILE)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def published(hub: Any, size: int = 100_000, **flags: bool) -> bytes:
    """The bytes of :data:`FILE`, which the Hub has now."""
    data = noise(size)
    hub.add("org/tiny", {FILE: data}, **flags)
    return data


def ranges(hub: Any, start: int = 0) -> list[str | None]:
    """Of the requests for bytes, from the ``start``-th request on."""
    return [s.headers.get("range") for s in hub.seen[start:] if s.path.startswith("/blob/")]


def fetched(ref: str = f"hf://org/tiny/{FILE}") -> list[Path]:
    chosen = choose(listing(HubRef.parse(ref)))
    return list(fetch(chosen.listing, chosen.files))


def broken_off(data: bytes, part: bytes) -> Listing:
    """The listing, with ``part`` in the cache where a fetch of ``data`` would go on."""
    found = listing(PARSED)
    blobs = place(found, found.files[0]).parents[2] / "blobs"
    blobs.mkdir(parents=True)
    oid = hashlib.sha256(data).hexdigest()
    (blobs / f"{oid}.cook.incomplete").write_bytes(part)
    return found


def test_a_file_arrives_whole_and_is_found_again_offline(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = published(hub)
    (path,) = fetched()
    assert path.read_bytes() == data
    assert hub.repos["org/tiny"].commits[0][0] in path.parts
    assert path.resolve().name == hashlib.sha256(data).hexdigest()
    # Any other program of the Hub's client finds it as well.
    from huggingface_hub import constants, hf_hub_download

    asked = len(hub.seen)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Path(hf_hub_download("org/tiny", FILE)) == path
    assert fetched() == [path]
    assert len(hub.seen) == asked
    with pytest.raises(PrerequisiteError, match="HF_HUB_OFFLINE"):
        fetched("hf://org/other")
    assert len(hub.seen) == asked


def test_the_login_stays_at_the_hub(hub: Any, login: str) -> None:
    published(hub, private=True)
    fetched()
    at_hub = [s for s in hub.seen if s.path.startswith(("/api/", "/org/"))]
    at_storage = [s for s in hub.seen if s.path.startswith("/blob/")]
    assert at_storage
    assert all(login in s.headers["authorization"] for s in at_hub)
    assert not any(login in str(s.headers) for s in at_storage)


FAULTS = ["reset", "503", "429", "500", "html", "truncate", "cut", "corrupt"]


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("where", ["GET /blob/", "GET /org/tiny/resolve", "GET /api/.*/tree"])
def test_one_fault_costs_nothing(hub: Any, kind: str, where: str) -> None:
    if "tree" in where:  # which has no checksum of its own
        kind = kind.replace("corrupt", "reset")
    data = published(hub)
    hub.fault(where, kind)
    (path,) = fetched()
    assert path.read_bytes() == data
    assert hub.injected
    assert not list(path.parents[2].rglob("*.incomplete"))


def test_a_download_goes_on_where_it_was_killed(hub: Any) -> None:
    data = published(hub, 1_000_000)
    found = broken_off(data, data[:700_000])
    assert left_bytes(found, found.files) == 300_000
    gained: list[int] = []
    (path,) = fetch(found, found.files, gained=gained.append)
    assert path.read_bytes() == data
    assert gained[-1] == 300_000
    assert ranges(hub) == ["bytes=700000-"]


def test_a_download_goes_on_after_kill_9(hub: Any, tmp_path: Path) -> None:
    data = published(hub, 2_000_000)
    hub.fault("GET /blob/", "stall")
    code = (
        "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 1 << 14\n"
        "from cook.job.locate import local_path; from cook.recipe.sources import HubRef\n"
        f"print(local_path(HubRef.parse('hf://org/tiny/{FILE}')))"
    )
    env = environment(hub, tmp_path)
    first = subprocess.Popen([sys.executable, "-c", code], env=env)
    found = listing(PARSED)
    deadline = time.monotonic() + 60
    while left_bytes(found, found.files) > 1_100_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.wait()
    left = left_bytes(found, found.files)
    assert 0 < left <= 1_100_000
    before = len(hub.seen)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert Path(done.stdout.strip()).read_bytes() == data, done.stderr
    assert ranges(hub, before) == [f"bytes={len(data) - left}-"]


def test_two_at_once_fetch_once(hub: Any) -> None:
    data = published(hub, 600_000)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetched()[0], range(4)))
    assert {p.read_bytes() for p in paths} == {data}
    assert hub.count("GET /blob/") == 1


def test_a_cache_that_may_not_be_written(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    published(hub)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "/hf/blobs")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StepError, match=r"Permission denied \(/hf/blobs\)") as caught:
        fetched()
    assert "HF_HOME" in (caught.value.hint or "")


def test_a_partial_file_of_wrong_bytes_is_started_again(hub: Any) -> None:
    data = published(hub, 500_000)
    found = broken_off(data, noise(300_000, seed=9))
    (path,) = fetch(found, found.files)
    assert path.read_bytes() == data


def test_a_server_that_ignores_ranges_is_no_corruption(hub: Any) -> None:
    data = published(hub, 900_000)
    hub.ranges = False
    hub.fault("GET /blob/", "cut", times=2)
    (path,) = fetched()
    assert path.read_bytes() == data


def test_it_gives_up_and_keeps_what_arrived(hub: Any) -> None:
    data = published(hub, 400_000)
    hub.fault("GET /blob/", "truncate", times=1)
    hub.fault("GET /blob/", "503", times=1000)
    with pytest.raises(StepError, match=r"answered 503.*goes on"):
        fetched()
    assert hub.count("GET /blob/") < 40
    hub.faults.clear()
    before = len(hub.seen)
    (path,) = fetched()
    assert path.read_bytes() == data
    assert ranges(hub, before) == [f"bytes={200_000 // 2**14 * 2**14}-"]  # whole client's steps


def test_bytes_that_stay_wrong_never_get_the_name(hub: Any) -> None:
    published(hub)
    hub.fault("GET /blob/", "corrupt", times=1000)
    with pytest.raises(StepError):
        fetched()
    found = listing(PARSED)
    assert missing(found, found.files) == found.files
    assert cached_listing(PARSED) is None


def test_a_cached_file_with_other_bytes_is_reported(hub: Any) -> None:
    published(hub)
    (path,) = fetched()
    path.resolve().write_bytes(noise(100_000, seed=7))
    with pytest.raises(StepError, match="holds other bytes") as caught:
        fetched()
    assert "rm " in (caught.value.hint or "")


def test_a_hub_out_of_reach_leaves_what_is_on_disk(hub: Any) -> None:
    published(hub)
    paths = fetched()
    hub.fault(".", "reset", times=1000)
    assert fetched() == paths
    with pytest.raises(PrerequisiteError, match="cannot be reached"):
        fetched("hf://org/other")
    assert sum(hub.waits) < 60


def test_a_small_disk_is_reported_before_anything_is_fetched(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(hub)
    usage = shutil.disk_usage("/")._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(PrerequisiteError, match=r"97\.66 KiB to download.*48\.83 KiB free"):
        fetched()
    assert not hub.count("GET /blob/")


@pytest.mark.parametrize(
    ("ref", "flags", "kind", "words"),
    [
        ("hf://org/absent", {}, InputError, "no such repository"),
        ("hf://org/tiny@v9", {}, InputError, "no such revision"),
        ("hf://org/tiny/nothing.gguf", {}, InputError, "holds no GGUF"),
        (f"hf://org/tiny/{FILE}", {"gated": True}, PrerequisiteError, "is gated"),
        (f"hf://org/tiny/{FILE}", {"private": True}, InputError, "or a private one"),
    ],
)
def test_refusals_say_what_mends_them(
    hub: Any, ref: str, flags: dict[str, bool], kind: type[CookError], words: str
) -> None:
    published(hub, **flags)
    with pytest.raises(kind, match=words) as caught:
        fetched(ref)
    assert caught.value.hint
    assert "http" not in str(caught.value)


def test_what_a_broken_off_download_has_whole_stands_in_for_itself(hub: Any) -> None:
    """One of several files, which get their names at the end: a plan reads it meanwhile."""
    data = published(hub)
    found = broken_off(data, b"")
    blobs = place(found, found.files[0]).parents[2] / "blobs"
    (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
    assert missing(found, found.files) == ()
    assert stand_in(found, found.files).read_bytes() == data
