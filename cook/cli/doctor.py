"""``cook doctor``."""

from __future__ import annotations

from cook.cli.options import JsonOption, QuietOption, open_output


def command(json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Check this machine; say what mends each fault.

    Exits 5 when the bundled engine, or another thing the main job needs, is unusable.

    Examples:
      cook doctor
      cook doctor --json | jq '.checks[] | select(.status != "ok")'
    """
    from cook import __version__
    from cook.doctor import Status, examine
    from cook.errors import PrerequisiteError

    out = open_output(json, quiet)
    checks = tuple(examine())
    blocking = [check for check in checks if check.blocking]
    out.emit({"cook": __version__, "usable": not blocking, "checks": checks})
    out.table([(c.status, c.name, c.detail) for c in checks], ["status", "check", "finding"])
    for check in checks:
        if check.hint and check.status is not Status.OK:
            out.say(f"hint: {check.name}: {check.hint}")
    if blocking:
        names = ", ".join(check.name for check in blocking)
        hint = next((check.hint for check in reversed(blocking) if check.hint), None)
        raise PrerequisiteError(f"not usable: {names}", hint=hint)
