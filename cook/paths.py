"""Where cook keeps things: COOK_HOME (or the XDG data directory), and its packaged data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def cook_home() -> Path:
    """Root of the store, logs and caches: ``$COOK_HOME``, else ``$XDG_DATA_HOME/cook``."""
    if home := os.environ.get("COOK_HOME"):
        return Path(home).expanduser().resolve()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(data).expanduser() / "cook").resolve()


def config_file() -> Path:
    """The user's configuration file (see ``cook.config``); it need not exist."""
    if stated := os.environ.get("COOK_CONFIG"):
        return Path(stated).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "cook" / "config.toml"


def package_dir() -> Path:
    """The directory of the installed ``cook`` package."""
    return Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Directory of the shipped ``recipes``, ``imatrix`` or ``pipelines``.

    In a checkout they stand at the top level; in a wheel they are packaged under ``_data``.
    """
    packaged = package_dir() / "_data" / name
    return packaged if packaged.is_dir() else package_dir().parent / name


def demo_dir() -> Path:
    """The demo models, their texts and prompts."""
    return package_dir() / "demo"


def free_bytes(path: Path) -> int:
    """Free bytes on the disk that holds ``path`` or its nearest existing parent."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    return shutil.disk_usage(existing).free
