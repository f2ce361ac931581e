"""``cook store``: what cook keeps; list it, verify it, clear it.

The store is COOK_HOME/store; nothing in it is needed that a build would not make again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cook.graph.store import Artifact, Store
    from cook.output import Output

TOLD = 8
"""Models named in a line at most."""
RECORD = "record"
"""The kind of what is kept beside the store."""


def ls(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only artifacts of KIND.")
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the artifacts, what they are and their size.

    Tensors, of which models are put together, are one line; --kind tensor lists each, and which
    models it is part of.

    Examples:
      cook store ls
      cook store ls --kind tensor
      cook store ls --json | jq '[.artifacts[].size_bytes] | add'
    """
    from cook import units
    from cook.output import Column
    from cook.steps.tensors import KIND

    out = open_output(json, quiet)
    store = _store()
    users = store.users()
    artifacts = sorted(
        (a for a in store.entries() if kind in (None, a.kind)),
        key=lambda a: (a.kind, a.label, a.key),
    )
    total = sum(a.size_bytes for a in artifacts)
    out.emit(
        {
            "root": store.root,
            "size_bytes": total,
            "artifacts": [
                {
                    "kind": a.kind,
                    "key": a.key,
                    "label": a.label,
                    "size_bytes": a.size_bytes,
                    "seconds": a.seconds,
                    "created": a.created,
                    "directory": a.directory,
                    "part_of": [u.key for u in users.get(a.key, ())],
                }
                for a in artifacts
            ],
        }
    )
    folded = [a for a in artifacts if a.kind == KIND and kind is None]
    rows = [
        (a.kind, a.key[:12], units.size(a.size_bytes), a.created, _labels(a, users.get(a.key, ())))
        for a in artifacts
        if a not in folded
    ]
    if folded:
        size_bytes, newest = sum(a.size_bytes for a in folded), max(a.created for a in folded)
        unused = sum(a.key not in users for a in folded)
        told = units.plural(len(folded), "tensor") + (f", {unused} of no model" if unused else "")
        rows.append((KIND, "", units.size(size_bytes), newest, told))
    out.table(rows, ("kind", "key", Column("size", "right"), "made", "label"))
    out.say(f"{units.plural(len(artifacts), 'artifact')}, {units.size(total)} in {store.root}")


def verify(
    mend: Annotated[
        bool,
        typer.Option(
            "--mend",
            help="Remove what is damaged, and all that was made from it.",
            show_default=False,
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Hash every file again, sources as well, and compare with what was recorded.

    Exits 1 when one differs, unless --mend removes it; the next build makes it again. A source
    is never removed.

    Examples:
      cook store verify
      cook store verify --mend
    """
    from cook import units
    from cook.errors import StepError

    out = open_output(json, quiet)
    store = _store()
    faults = tuple(store.verify())
    spoilt = store.mend(faults) if mend else store.made_from(faults)
    entries = list(store.entries())
    out.emit(
        {
            "root": store.root,
            "artifacts": len(entries),
            "faults": [{"path": f.path, "message": f.message} for f in faults],
            "made_from_faults": [a.directory for a in spoilt],
            "mended": mend,
        }
    )
    for fault in faults:
        out.data(f"{fault.path}: {fault.message}")
    for artifact in spoilt:
        out.data(f"{artifact.directory}: was made from it ({artifact.label})")
    if not faults:
        out.say(f"{units.plural(len(entries), 'artifact')} in {store.root}: all as recorded")
    elif mend:
        out.say(
            f"{units.plural(len(faults), 'fault')} mended in {store.root}: the artifacts and "
            f"{len(spoilt)} made from them are removed; the next build makes them again"
        )
    else:
        raise StepError(
            f"{units.plural(len(faults), 'fault')} in {store.root}",
            hint="`cook store verify --mend` removes what is damaged and what was made from it; "
            "the next build makes it again",
        )


def gc(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Remove every artifact of KIND.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove every artifact.", show_default=False)
    ] = False,
    older: Annotated[
        float | None,
        typer.Option("--older", metavar="DAYS", help="Only artifacts made before that."),
    ] = None,
    named: Annotated[
        bool,
        typer.Option(
            "--named",
            help="Also models that a kept record names, and tensors of models that stay.",
            show_default=False,
        ),
    ] = False,
    recipe: Annotated[
        list[Path] | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Keep what a build of RECIPE would use; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go.", show_default=False)
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove leftovers, and the artifacts you name.

    Without options only what died while being made goes. Nothing here is lost for good: a build
    makes again what it needs. Models that a record names stay, for `cook serve` and `cook
    publish`, and tensors that are part of a model that stays, unless --named is given. A build
    that did not end yet has no record: --recipe keeps what it left. --kind record removes earlier
    records of a recipe, never the one that its name means.

    Examples:
      cook store gc
      cook store gc --kind quantize --older 30 --dry-run
      cook store gc --all --older 7 --recipe recipes/ling-flash-iq1kt.yaml
      cook store gc --kind record --older 90
    """
    import time

    from cook import units
    from cook.errors import InputError
    from cook.recipe.rules import some
    from cook.record.find import files_named

    out = open_output(json, quiet)
    if older is not None and not (kind or everything):
        raise InputError("--older needs --kind or --all", hint="cook store gc --all --older 30")
    before = "9" if older is None else _utc(time.time() - 86400 * older)
    if kind == RECORD:
        _drop_records(out, before, dry_run=dry_run)
        return
    store = _store()
    artifacts = list(store.entries())
    if kind and kind not in {a.kind for a in artifacts}:
        known = ", ".join(sorted({a.kind for a in artifacts})) or "none"
        raise InputError(f"no artifact of kind {kind!r} (kinds there: {known})")
    chosen = [a for a in artifacts if (everything or a.kind == kind) and a.created < before]
    needed, unreadable = files_named() if chosen and not named else (frozenset(), ())
    if unreadable:
        out.warn(
            f"{some(unreadable, TOLD)} cannot be read, so models that only such a record names do "
            "not stay"
        )
    used = None
    if recipe:
        from cook.build.used import used_by

        used = used_by(recipe, out)
    spared = [
        a
        for a in chosen
        if (used is not None and used.covers(a))
        or any(path.is_relative_to(a.directory) for path in needed)
    ]
    parts: dict[str, list[Artifact]] = {}
    if not named:
        going = {a.directory for a in chosen if a not in spared}
        users = store.users()
        parts = {
            a.key: stay
            for a in chosen
            if (stay := [u for u in users.get(a.key, ()) if u.directory not in going])
        }
        spared += [a for a in chosen if a.key in parts and a not in spared]
    doomed = [a for a in chosen if a not in spared]
    freed = 0 if dry_run else store.sweep_workspaces()
    for artifact in doomed:
        if not dry_run:
            store.remove(artifact)
        freed += artifact.size_bytes
    out.emit(
        {
            "root": store.root,
            "dry_run": dry_run,
            "freed_bytes": freed,
            "removed": len(doomed),
            "named_by_records": len(spared),
            "part_of": {key: [user.key for user in stay] for key, stay in parts.items()},
        }
    )
    verb = "would free" if dry_run else "freed"
    out.data(f"{verb} {units.size(freed)}: {units.plural(len(doomed), 'artifact')} in {store.root}")
    if spared:
        out.say(
            f"{units.plural(len(spared), 'artifact')} kept, named by records "
            "(`cook report --list`), part of models that stay (--named removes both), or used by a "
            "--recipe"
        )
    if parts:
        of = sorted({user.label for stay in parts.values() for user in stay})
        out.say(f"{units.plural(len(parts), 'tensor')} of {some(of, TOLD)}")


def _drop_records(out: Output, before: str, *, dry_run: bool) -> None:
    """Remove records made before ``before`` that no recipe's name means."""
    from cook import units
    from cook.record.find import kept_records

    doomed = [k for k in kept_records() if not k.newest and k.date < before]
    freed = sum(k.path.stat().st_size for k in doomed)
    for kept in doomed:
        if not dry_run:
            kept.path.unlink(missing_ok=True)
    out.emit({"dry_run": dry_run, "freed_bytes": freed, "removed": len(doomed)})
    verb = "would free" if dry_run else "freed"
    out.data(f"{verb} {units.size(freed)}: {units.plural(len(doomed), 'record')}")


def _labels(artifact: Artifact, users: Sequence[Artifact]) -> str:
    """What an artifact is called, and which it is part of."""
    of = sorted({user.label for user in users})
    return artifact.label + (f", of {'; '.join(of)}" if of else "")


def _store() -> Store:
    from cook.graph.store import Store
    from cook.paths import cook_home

    return Store(cook_home() / "store")


def _utc(seconds: float) -> str:
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
