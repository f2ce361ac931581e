"""Where a recipe's sources are on this disk; hub references are fetched by huggingface-hub.

The client resumes partial downloads, verifies them, honours ``HF_HUB_OFFLINE`` and keeps the
user's token to itself; cook only chooses the files.
"""

from __future__ import annotations

from pathlib import Path

from cook.errors import InputError, PrerequisiteError
from cook.recipe.sources import HubRef


def local_path(source: Path | HubRef, *, fetch: bool = True) -> Path:
    """The local file of ``source``; a hub reference is downloaded unless ``fetch`` is False.

    Errors: InputError when a local file is absent or a reference names no GGUF;
    PrerequisiteError when the hub cannot be reached or refuses.
    """
    if isinstance(source, Path):
        if not source.is_file():
            raise InputError(f"{source}: no such file")
        return source
    return _from_hub(source, fetch)


def _from_hub(ref: HubRef, fetch: bool) -> Path:
    import os

    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [f"{ref.path}", f"{ref.path}*", f"{ref.path}/*"] if ref.path else ["*.gguf"]
    try:
        snapshot = Path(
            snapshot_download(
                ref.repo,
                revision=ref.revision,
                repo_type="dataset" if ref.dataset else "model",
                allow_patterns=patterns,
                local_files_only=not fetch,
            )
        )
    except LocalEntryNotFoundError:
        raise PrerequisiteError(
            f"{ref}: not downloaded, and the hub cannot be reached",
            hint="connect, or put the file on disk and name its path in the recipe",
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{ref}: the hub refused: {type(error).__name__}",
            hint="check the name and revision; for a gated model run `hf auth login`",
        ) from None
    return _choose(ref, snapshot)


def _choose(ref: HubRef, snapshot: Path) -> Path:
    """The one model below the snapshot: its only GGUF, or shard 1 of its only split one."""
    if ref.path and (snapshot / ref.path).is_file():
        return snapshot / ref.path
    below = snapshot / ref.path if ref.path and (snapshot / ref.path).is_dir() else snapshot
    found = sorted(p for p in below.rglob("*.gguf") if ref.path is None or ref.path in str(p))
    heads = [p for p in found if "-of-" not in p.name or "-00001-of-" in p.name]
    if len(heads) == 1:
        return heads[0]
    if not heads:
        raise InputError(
            f"{ref}: holds no GGUF",
            hint="convert it with the convert_hf_to_gguf.py of your llama.cpp checkout",
        )
    listed = ", ".join(str(p.relative_to(snapshot)) for p in heads[:5])
    raise InputError(f"{ref}: holds several models: {listed}", hint="add the file's path to it")
