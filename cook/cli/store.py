"""``cook store``: what cook keeps; list it, verify it, clear it.

The store is COOK_HOME/store; nothing in it is needed that a build would not make again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cook import units
from cook.cli import options as opt
from cook.output import Output, right

if TYPE_CHECKING:
    from cook.graph.store import Artifact, Store
    from cook.job.one_step import UsedArtifacts

MAX_NAMED = 8
"""Models named in a line at most."""
RECORD = "record"
"""The kind of what is kept next to the store."""
MOST_DAYS = 36_500


def ls(
    out: Output,
    kind: str | None = opt.option("--kind", "Only artifacts of KIND.", metavar="KIND"),
) -> None:
    """List the artifacts, what they are and their size.

    Tensors, of which models are put together, are one line; --kind tensor lists each, and which
    models it is part of.

    Examples:
      cook store ls
      cook store ls --kind tensor
      cook store ls --json | jq '[.artifacts[].size_bytes] | add'
    """
    from cook.steps.quantize import TENSOR_KIND

    store = _store()
    users = store.users()
    artifacts = sorted(
        (a for a in store.entries() if kind in (None, a.kind)),
        key=lambda a: (a.kind, a.label, a.key),
    )
    total = sum(a.size_bytes for a in artifacts)
    fields = ("kind", "key", "label", "size_bytes", "seconds", "created", "directory")
    out.emit(
        {
            "root": store.root,
            "size_bytes": total,
            "artifacts": [
                {name: getattr(a, name) for name in fields}
                | {"part_of": [user.key for user in users.get(a.key, ())]}
                for a in artifacts
            ],
        }
    )
    tensors = [a for a in artifacts if a.kind == TENSOR_KIND and kind is None]
    rows = []
    for a in artifacts:
        if a not in tensors:
            of = "; ".join(sorted({user.label for user in users.get(a.key, ())}))
            label = f"{a.label}, of {of}" if of else a.label
            rows.append((a.kind, a.key[:12], units.size(a.size_bytes), a.created, label))
    if tensors:
        size, newest = sum(a.size_bytes for a in tensors), max(a.created for a in tensors)
        unused = sum(a.key not in users for a in tensors)
        label = units.plural(len(tensors), "tensor") + (f", {unused} of no model" if unused else "")
        rows.append((TENSOR_KIND, "", units.size(size), newest, label))
    out.table(rows, ("kind", "key", *right("size"), "made", "label"))
    out.say(f"{units.plural(len(artifacts), 'artifact')}, {units.size(total)} in {store.root}")


def verify(
    out: Output,
    mend: bool = opt.flag("--mend", "Remove what is damaged, and all that was made from it."),
) -> None:
    """Hash every file again, sources as well, and compare with what was recorded.

    Exits 1 when one differs, unless --mend removes it; the next build makes it again. A source
    is never removed.

    Examples:
      cook store verify
      cook store verify --mend
    """
    from cook.errors import StepError

    store = _store()
    faults = tuple(store.verify())
    spoilt = store.mend(faults) if mend else store.made_from(faults)
    count = len(list(store.entries()))
    out.emit(
        {
            "root": store.root,
            "artifacts": count,
            "faults": [{"path": f.path, "message": f.message} for f in faults],
            "made_from_faults": [a.directory for a in spoilt],
            "mended": mend,
        }
    )
    for fault in faults:
        out.data(f"{fault.path}: {fault.message}")
    for artifact in spoilt:
        out.data(f"{artifact.directory}: was made from it ({artifact.label})")
    found = f"{units.plural(len(faults), 'fault')}{' mended' if mend else ''} in {store.root}"
    if not faults:
        out.say(f"{units.plural(count, 'artifact')} in {store.root}: all as recorded")
    elif mend:
        out.say(
            f"{found}: the artifacts and {len(spoilt)} made from them are removed; the next build "
            "makes them again"
        )
    else:
        raise StepError(
            found,
            hint="`cook store verify --mend` removes what is damaged and what was made from it; "
            "the next build makes it again",
        )


def gc(
    out: Output,
    kind: str | None = opt.option("--kind", "Remove every artifact of KIND.", metavar="KIND"),
    everything: bool = opt.flag("--all", "Remove every artifact."),
    older: float | None = opt.option("--older", "Only artifacts older than DAYS.", metavar="DAYS"),
    named: bool = opt.flag(
        "--named", "Also models that a kept record names, and tensors of models that stay."
    ),
    recipe: list[Path] | None = opt.option(
        "--recipe", "Keep what a build of RECIPE would use; may be repeated.", metavar="RECIPE"
    ),
    engine: list[str] | None = opt.ENGINES,
    threads: int | None = opt.THREADS,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
    dry_run: bool = opt.flag("--dry-run", "Only print what would be removed."),
) -> None:
    """Remove leftovers, and the artifacts you name.

    Without options only what died while being made goes. Nothing here is lost for good: a build
    makes again what it needs. Models that a record names stay, for `cook serve` and `cook
    publish`, and tensors that are part of a model that stays, unless --named is given. A build
    that did not end yet has no record: --recipe keeps what it left, with the --engine and --threads
    that it was given. --kind record removes earlier records of a recipe, never the one that its
    name means.

    Examples:
      cook store gc
      cook store gc --kind quantize --older 30 --dry-run
      cook store gc --all --older 7 --recipe recipes/ling-flash-iq1kt.yaml
      cook store gc --kind record --older 90
    """
    import time

    from cook.errors import InputError
    from cook.recipe.rules import some

    if older is not None and not (kind or everything):
        raise InputError("--older needs --kind or --all", hint="cook store gc --all --older 30")
    before = "9"
    if older is not None:
        if not 0 <= older <= MOST_DAYS:
            raise InputError(f"--older {older:g}: days are 0 to {MOST_DAYS:,}")
        before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86400 * older))
    if kind == RECORD:
        _remove_records(out, before, dry_run=dry_run)
        return
    store = _store()
    artifacts = list(store.entries())
    if kind and kind not in {a.kind for a in artifacts}:
        known = ", ".join(sorted({a.kind for a in artifacts})) or "none"
        raise InputError(f"no artifact of kind {kind!r} (kinds there: {known})")
    chosen = [a for a in artifacts if (everything or a.kind == kind) and a.created < before]
    used = None
    if recipe:
        from cook.job.one_step import RecipeArgs, used_artifacts

        options = (tuple(engine or ()), False, threads, allow_unsafe_args)
        used = used_artifacts([RecipeArgs(one, *options) for one in recipe], artifacts, out)
    spared = _wanted(out, chosen, used, named=named)
    going = {a.directory for a in chosen if a not in spared}
    users = {} if named else store.users()
    parts = {
        a.key: staying
        for a in chosen
        if (staying := [u for u in users.get(a.key, ()) if u.directory not in going])
    }
    spared += [a for a in chosen if a.key in parts and a not in spared]
    doomed = [a for a in chosen if a not in spared]
    freed = sum(a.size_bytes for a in doomed)
    if not dry_run:
        freed += store.sweep_workspaces()
        for artifact in doomed:
            store.remove(artifact.directory)
    out.emit(
        {
            "root": store.root,
            "dry_run": dry_run,
            "freed_bytes": freed,
            "removed": len(doomed),
            "named_by_records": len(spared),
            "part_of": {key: [user.key for user in staying] for key, staying in parts.items()},
        }
    )
    _show_freed(out, freed, f"{units.plural(len(doomed), 'artifact')} in {store.root}", dry_run)
    if spared:
        out.say(
            f"{units.plural(len(spared), 'artifact')} kept, named by records "
            "(`cook report --list`), part of models that stay (--named removes both), or used by a "
            "--recipe"
        )
    if parts:
        of = sorted({user.label for staying in parts.values() for user in staying})
        out.say(f"{units.plural(len(parts), 'tensor')} of {some(of, MAX_NAMED)}")


def _wanted(
    out: Output, chosen: Sequence[Artifact], used: UsedArtifacts | None, *, named: bool
) -> list[Artifact]:
    """Those of ``chosen`` that a kept record names (unless ``named``) or a recipe would use."""
    from cook.recipe.rules import some
    from cook.record.find import files_named

    files, unreadable = files_named() if chosen and not named else (frozenset(), ())
    if unreadable:
        out.warn(
            f"{some(unreadable, MAX_NAMED)} cannot be read, so models that only such a record "
            "names do not stay"
        )
    return [
        a
        for a in chosen
        if (used is not None and used.covers(a))
        or any(path.is_relative_to(a.directory) for path in files)
    ]


def _remove_records(out: Output, before: str, *, dry_run: bool) -> None:
    """Remove records made before ``before`` that no recipe's name means."""
    from cook.record.find import date_in_names, kept_records

    date = date_in_names(before)
    doomed = [k for k in kept_records() if not k.newest and k.date < date]
    freed = sum(k.path.stat().st_size for k in doomed)
    for kept in doomed:
        if not dry_run:
            kept.path.unlink(missing_ok=True)
    out.emit({"dry_run": dry_run, "freed_bytes": freed, "removed": len(doomed)})
    _show_freed(out, freed, units.plural(len(doomed), "record"), dry_run)


def _show_freed(out: Output, size_bytes: int, removed: str, dry_run: bool) -> None:
    out.data(f"{'would free' if dry_run else 'freed'} {units.size(size_bytes)}: {removed}")


def _store() -> Store:
    from cook.graph.store import Store
    from cook.paths import cook_home

    return Store(cook_home() / "store")
