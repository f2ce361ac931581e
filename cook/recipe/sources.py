"""Where a model, a text or an imatrix comes from: a local file, or a place on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cook.paths import data_dir, demo_dir

OWN_HEAD: Literal["target"] = "target"
"""Source of a draft that is the head inside of the target's own file."""
_HUB = re.compile(
    r"hf://(?P<dataset>datasets/)?"
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[\w.-]{1,64}|[\w.-]{1,128}))?"
    r"(?:/(?P<path>.{1,1024}))?",
    re.ASCII,
)
_PATH_PART = re.compile(r"[\w .()+,=@~-]{1,255}")


@dataclass(frozen=True)
class HubRef:
    """``hf://[datasets/]org/name[@revision][/path]``: ``path`` is a file, a folder, or a stem.

    ``revision`` is a branch, a tag or a commit; ``None`` is the default branch. Fetching is
    :mod:`cook.hub`'s.
    """

    repo: str
    revision: str | None = None
    path: str | None = None
    dataset: bool = False

    @classmethod
    def parse(cls, text: str) -> HubRef:
        """ValueError, in the user's words, for anything that is not such a reference."""
        match = _HUB.fullmatch(text)
        if not match:
            raise ValueError(
                f"not a hub reference: {text!r}; write hf://org/name[@revision][/path]"
            )
        repo, path = match["repo"], match["path"]
        if ".." in repo or "--" in repo or repo.endswith((".git", ".", "-")):
            raise ValueError(f"the hub allows no repository named {repo!r}")
        if path is not None:
            for part in path.split("/"):
                if part in ("", ".", "..") or not _PATH_PART.fullmatch(part):
                    raise ValueError(f"bad path inside a hub repository: {path!r}")
        return cls(repo, match["revision"], path, match["dataset"] is not None)

    def __str__(self) -> str:
        kind = "datasets/" if self.dataset else ""
        revision = f"@{self.revision}" if self.revision else ""
        path = f"/{self.path}" if self.path else ""
        return f"hf://{kind}{self.repo}{revision}{path}"


SourceRef = Path | HubRef


def parse_source(text: str, base: Path) -> SourceRef:
    """What ``text`` in a recipe in the directory ``base`` points at; the file need not exist.

    ``hf://`` is the hub and ``demo://`` the shipped demo; anything else is a path from
    ``base`` or, when nothing is there, below the shipped ``imatrix/`` folder.
    """
    if not text or any(ord(c) < 32 for c in text):
        raise ValueError("must name a file or an hf:// reference")
    if text.startswith("hf://"):
        return HubRef.parse(text)
    if text.startswith("demo://"):
        inside = Path(text.removeprefix("demo://"))
        if inside.is_absolute() or ".." in inside.parts or not inside.parts:
            raise ValueError(f"no such place in the demo: {text!r}")
        return demo_dir() / inside
    if "://" in text:
        raise ValueError(f"unknown scheme in {text!r}; use a path, hf:// or demo://")
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    local = base / path
    if not path.is_absolute() and path.parts[:1] == ("imatrix",) and not local.exists():
        shipped = data_dir("imatrix").joinpath(*path.parts[1:])
        if shipped.exists():
            return shipped
    return local
