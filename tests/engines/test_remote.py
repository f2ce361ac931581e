"""Addresses and keys: checked before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.engines.remote import KEY_VARIABLE, checked_url, is_loopback, is_url, read_key
from cook.errors import InputError


def test_addresses() -> None:
    assert checked_url("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    assert checked_url("https://host/v1") == "https://host/v1"
    assert is_url("https://host")
    assert not is_url("model.gguf")


def test_loopback_is_known_by_the_host() -> None:
    for url in (
        "http://127.0.0.1:8080",
        "http://localhost",
        "http://[::1]:1/v1",
        "http://127.9.9.9",
    ):
        assert is_loopback(url)
    for url in ("http://127.0.0.1.example", "http://localhost.example", "https://10.0.0.1"):
        assert not is_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://host",
        "http://user:secret@host",
        "http://host?key=secret",
        "http://host:0",
        "http://host:99999",
        "http://[::1",
    ],
)
def test_other_addresses_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_url(url)
    assert "secret" not in caught.value.message


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, " abc ")
    assert read_key(None) == "abc"
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    assert read_key(file) == "sk-1"
    for bad in ("", "two words", "a\nb", "sk-\u00e9", "x" * 20_000):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match="holds no key"):
            read_key(file)
    monkeypatch.setenv(KEY_VARIABLE, "sk\r\nX-Evil: 1")
    with pytest.raises(InputError) as caught:
        read_key(None)
    assert "Evil" not in caught.value.message
    with pytest.raises(InputError, match="cannot be read"):
        read_key(tmp_path / "absent")
