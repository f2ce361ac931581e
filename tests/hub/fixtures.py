"""The stand-in Hub, and a client that talks to nothing else and never waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.hub import hub_server


class _Clock:
    """The ``time`` module, but for waits, which are noted."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running stand-in that the client in this process talks to, with an empty cache.

    ``hub.waits`` are the seconds that the client and cook would have slept.
    """
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    import cook.hub.client

    with closing(hub_server.HubServer()) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # The client writes 10 MB at a time, and an end in between loses what it had of it: small
        # steps for small files.
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)
        # Xet is a protocol of its own with a binary client; what is tested here is HTTP.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        clock = _Clock()
        for module in (file_download, _http, cook.hub.client):
            monkeypatch.setattr(module, "time", clock)
        server.waits = clock.waits
        yield server
        _http.close_session()


def environment(hub: hub_server.HubServer, home: Path) -> dict[str, str]:
    """Of a program that talks to ``hub``."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "COOK_HOME": str(home / "home"),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> str:
    """A token in the environment, as ``HF_TOKEN``."""
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    return hub_server.TOKEN
