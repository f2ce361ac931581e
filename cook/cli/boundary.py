"""From any exception to what the user sees and the exit status; the only place that does it."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import asdict
from pathlib import Path

import typer

from cook.cli.options import current_output
from cook.errors import CookError, Interrupted, PrerequisiteError, RecipeError, StepError
from cook.output import Mode, Output, silence
from cook.removed import removed_option
from cook.units import plural

# Failures of the machine rather than of cook: they get a message, not a bug report. What mends
# them, of a file below COOK_HOME and of any other.
ENVIRONMENT = {
    errno.ENOSPC: (
        "free some space, or set COOK_HOME to a larger disk (`cook store gc` helps)",
        "free some space there, or write elsewhere",
    ),
    errno.EFBIG: (
        "raise the limit of file sizes (ulimit -f), or set COOK_HOME to another disk",
        "raise the limit of file sizes (ulimit -f), or write elsewhere",
    ),
    errno.EDQUOT: (
        "free some space, or set COOK_HOME to another disk (`cook store gc` helps)",
        "free some space there, or write elsewhere",
    ),
    errno.EROFS: (
        "set COOK_HOME to a directory that can be written",
        "that file system cannot be written: name a place elsewhere",
    ),
    errno.EACCES: (
        "check the permissions, or set COOK_HOME to a directory of your own",
        "check the permissions of that file and its folder, or name another",
    ),
    errno.EPERM: (
        "check the permissions, or set COOK_HOME to a directory of your own",
        "check the permissions of that file and its folder, or name another",
    ),
    errno.ENOTDIR: (
        "a file stands where a directory is needed: is COOK_HOME one?",
        "a file stands where a directory is needed",
    ),
    errno.EMFILE: ("raise the limit of open files (ulimit -n)",) * 2,
    errno.ENOMEM: ("close other programs, or use a smaller model or context",) * 2,
}
RESUMED = {"build", "run", "score", "demo", "trace", "sweep", "predict", "publish", "search"}
"""Commands that go on where they stopped."""
USAGE_EXIT = 2
BUG_EXIT = 3


def report(error: BaseException, arguments: list[str]) -> int:
    """Say ``error`` on stderr (and as JSON on stdout in json mode); the exit status."""
    output = current_output(arguments)
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.TyperException):
        command = getattr(getattr(error, "ctx", None), "command_path", "cook")
        message = error.format_message()
        if not message or type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=output.stderr)
            return USAGE_EXIT
        removed = removed_option(command.partition(" ")[2], getattr(error, "option_name", ""))
        usage_hint = removed or f"{command} --help"
        output.error(message, usage_hint)
        _emit(output, "UsageError", message, usage_hint, USAGE_EXIT)
        return USAGE_EXIT
    if (known := _as_cook_error(error, arguments)) is not None:
        details: dict[str, object] = {}
        if isinstance(known, RecipeError):
            details["problems"] = [asdict(problem) for problem in known.problems]
            for problem in known.problems:
                output.say(str(problem))
            count = sum(problem.severity == "error" for problem in known.problems)
            output.error(f"{plural(count, 'error')} in the {known.what}", known.hint)
        else:
            output.error(known.message, known.hint)
        if isinstance(known, StepError) and known.log is not None:
            details["log"] = str(known.log)
            output.say(f"log: {known.log}")
        # Of its classes that of ``cook.errors``, which are what a program may rely on.
        classes = (c for c in type(known).__mro__ if c.__module__ == CookError.__module__)
        _emit(output, next(classes).__name__, known.message, known.hint, known.exit_code, **details)
        return known.exit_code
    log = _write_traceback(error, arguments)
    message = f"this is a bug of cook: {type(error).__name__}: {error}"
    hint = f"please report it with {log}" if log else "please report it"
    output.error(message, hint)
    _emit(output, "Bug", message, hint, BUG_EXIT, log=str(log) if log else None)
    return BUG_EXIT


def _as_cook_error(error: BaseException, arguments: list[str]) -> CookError | None:
    if isinstance(error, CookError):
        return error if error.exit_code != BUG_EXIT else None
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        hint = None
        if arguments[:1] and arguments[0] in RESUMED:
            asked = [one for one in ("--fresh", "--remeasure") if one in arguments]
            without = f" without {' and '.join(asked)}" if asked else ""
            hint = f"the same command again{without} goes on where it stopped"
        return Interrupted("interrupted", hint=hint)
    if isinstance(error, OSError) and error.errno in ENVIRONMENT:
        from cook.paths import cook_home

        at_home, elsewhere = ENVIRONMENT[error.errno or 0]
        hint = f"where output goes: {elsewhere}; where cook works: {at_home}"
        if isinstance(error.filename, (str, bytes)):
            home = cook_home().absolute()
            path = Path(os.fsdecode(error.filename)).absolute()
            # A home that cannot be made fails at one of its parents.
            below = path.is_relative_to(home) or home.is_relative_to(path)
            hint = at_home if below else elsewhere
        return PrerequisiteError(str(error), hint=hint)
    if isinstance(error, MemoryError):
        return PrerequisiteError("out of memory", hint=ENVIRONMENT[errno.ENOMEM][0])
    return None


def _emit(
    output: Output, kind: str, message: str, hint: str | None, exit_code: int, **details: object
) -> None:
    # A command that failed after its document (a sweep with failed steps) has said it all there.
    if output.mode is Mode.JSON and not output.emitted:
        body = {"kind": kind, "message": message, "hint": hint, "exit_code": exit_code}
        output.emit({"error": {**body, **details}})


def _write_traceback(error: BaseException, arguments: list[str]) -> Path | None:
    """Write the traceback where it can be found; None when nothing can be written."""
    import platform
    import tempfile
    import time
    import traceback

    from cook import __version__
    from cook.paths import cook_home

    text = "\n".join(
        [
            f"cook {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {arguments}",
            "".join(traceback.format_exception(error)),
        ]
    )
    name = f"bug-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.txt"
    for directory in (cook_home() / "logs", Path(tempfile.gettempdir())):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = directory / name
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as sink:
                sink.write(text)
        except OSError:
            continue
        return file
    return None
