"""``cook serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cook.cli import options as opt
from cook.output import Output

if TYPE_CHECKING:
    from cook.service import Service


def command(
    out: Output,
    record: str | None = opt.RECORD,
    candidate: str | None = opt.option(
        "--candidate", "Serve this one instead of the pick.", metavar="NAME"
    ),
    engine: str | None = opt.ENGINE,
    host: str = opt.option(
        "--host", "Address to listen on.", metavar="ADDRESS", default="127.0.0.1"
    ),
    port: int = opt.option(
        "--port", "Port to listen on; 0 is a free one.", min=0, max=65535, default=8080
    ),
    context: int | None = opt.option(
        "--context", "Context to serve; absent: as scored.", metavar="TOKENS", min=128
    ),
    api_key_file: Path | None = opt.option(
        "--api-key-file",
        "Key that clients must send; absent: COOK_HOME/serve.key, made at first use.",
        metavar="FILE",
    ),
    print_: bool = opt.flag("--print", "Print the command only."),
    systemd: bool = opt.flag("--systemd", "Print a systemd unit only."),
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
) -> None:
    """Serve the target with the picked draft.

    Starts the real llama-server with the draft and the settings that a record picked, shows that
    it drafts, and runs until Ctrl-C. The server's own output goes to stderr, its address to
    stdout. What was only said so that it could be measured (no prompt cache, a log without times)
    is left out. Refused: model files that are gone or have another size than when they were scored,
    and flags in the record that a recipe could not say.

    Examples:

      cook serve
      cook serve ling-flash-iq1kt --port 9000 --context 32768
      cook serve ling-flash-iq1kt@2026-11-21
      cook serve --print > start-server.sh
      cook serve record.json --systemd > ~/.config/systemd/user/llama-server.service
      curl -H "Authorization: Bearer $(cat ~/.local/share/cook/serve.key)" localhost:8080/props
    """
    from cook.record.find import changed_meaning, find_record
    from cook.record.record import read_record
    from cook.service import read_or_make_key, service_of, shell_text, systemd_unit

    path = find_record(record)
    found = read_record(path)
    service = service_of(
        found,
        candidate=candidate,
        engine=engine,
        host=host,
        port=port,
        context=context,
        key_file=api_key_file,
        unsafe_args=allow_unsafe_args,
    )
    changed = changed_meaning(path, found)
    notes = (*service.notes, *([changed] if changed else []))
    for note in notes:
        out.warn(note)
    out.emit(
        {
            "record": path,
            "candidate": service.candidate,
            "engine": service.engine.name,
            "build": service.engine.identity.build,
            "url": service.url,
            "api_key_file": service.key_file,
            "environment": service.environment,
            "command": service.command,
            "notes": notes,
        }
    )
    if print_ or systemd:
        read_or_make_key(service.key_file)  # what is printed must work
        out.block(systemd_unit(service) if systemd else shell_text(service))
    else:
        raise typer.Exit(_run(service, out))


def _run(service: Service, out: Output) -> int:
    """Run the server; the exit status is its own, 128 and the signal's number after a crash."""
    from cook.engines.process.outcome import clean
    from cook.engines.process.supervisor import Supervisor
    from cook.paths import cook_home
    from cook.service import serve

    def show(stream: str, chunk: bytes) -> None:
        out.relay(clean(chunk.decode("utf-8", "replace")))

    def ready() -> None:
        out.say(
            f"ready: {service.candidate}, {'drafting' if service.job.draft else 'no draft'}; "
            f"key in {service.key_file}; Ctrl-C ends it"
        )
        out.data(service.url)

    ended = serve(service, Supervisor(cook_home() / "logs"), show, ready)
    out.say(f"llama-server ended with status {ended.returncode}; log: {ended.stderr}")
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
