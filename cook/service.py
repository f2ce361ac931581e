"""The server of a record's pick: its command, a systemd unit, or the running thing.

The command line is built again by the engine's own adapter from what the record says of the
candidate, so that it fits the engine at hand, whatever flags that one has by now.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cook.engines.arguments import LOOPBACK
from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.discover import discover, named
from cook.engines.environment import user_settings
from cook.engines.options import UNSAFE_FLAG, other_machines, read_flags
from cook.engines.process.outcome import ProcessResult
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server, free_port
from cook.errors import InputError
from cook.files import digest
from cook.formats.heads import SPLICED, HeadKind, head_of
from cook.formats.naming import shards_of
from cook.graph.store import MEND, recorded_sha256
from cook.paths import cook_home
from cook.record.record import Candidate, Draft, Record
from cook.report.commands import by_option, deployed

MAX_KEY_BYTES = 4096
_OWN_ENVIRONMENT = ("LD_LIBRARY_PATH", "LLAMA_ARG_REPACK", "GLIBC_TUNABLES")


@dataclass(frozen=True)
class Service:
    """A server that could be started. ``notes`` are what its user should know."""

    engine: Engine
    job: ServerJob
    candidate: str
    host: str
    port: int
    key_file: Path
    notes: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def argv(self, port: int, key_file: Path) -> tuple[str, ...]:
        """The engine's command line, at this service's address, without what only measures."""
        words = list(deployed(self.engine.server_command(self.job, port, key_file)))
        words[words.index("--host") + 1] = self.host
        return tuple(words)

    @property
    def command(self) -> tuple[str, ...]:
        """The command line for the user's own hands."""
        return self.argv(self.port, self.key_file)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the engine needs and a user's shell need not have."""
        env = self.engine.environment()
        return {
            name: env[name]
            for name in _OWN_ENVIRONMENT
            if name in env and env[name] != os.environ.get(name)
        }


def service_of(
    record: Record,
    *,
    candidate: str | None = None,
    engine: str | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    context: int | None = None,
    key_file: Path | None = None,
    unsafe_args: bool = False,
) -> Service:
    """The server of ``record``'s pick, or of ``candidate``; ``port`` None takes a free one.

    A record that picked no draft gives the target alone. ``unsafe_args`` lets raw flags of the
    record through that a recipe could not say. InputError for such flags otherwise, for a record
    that has no server to offer, and for a model file that is gone or is not the one scored.
    """
    chosen, notes = _chosen(record, candidate)
    if chosen.serving is None:
        raise InputError(
            f"the record does not say how the server of {chosen.name} runs",
            hint="make it again with this cook: `cook build RECIPE`",
        )
    target = _model("target", record.target, record.target_bytes)
    draft = _draft(record, chosen)
    if draft is not None and _is_spliced(draft):
        target = draft
    found = discover(engine) if engine else named(chosen.engine)
    for role, args in (
        ("target", chosen.serving.target_args),
        ("draft", chosen.serving.draft_args if draft is not None else None),
    ):
        notes += _checked_flags(found, role, args, unsafe_args) if args is not None else ()
    known = record.engines.get(chosen.engine)
    if known is not None and known.digest != found.identity.digest:
        notes.append(
            f"scored on {chosen.engine} {known.build}, served by {found.name} "
            f"{found.identity.build}: its speed may differ"
        )
    tokens = context or chosen.serving.context
    notes += _context_notes(tokens, chosen.serving.context, target, draft)
    job = ServerJob(
        target=target,
        target_args=chosen.serving.target_args,
        context=tokens,
        draft=draft,
        draft_args=chosen.serving.draft_args,
        settings=chosen.settings if draft is not None else None,
        ngram=chosen.ngram,
        draft_context=chosen.serving.draft_context,
        head=_head_kind(record, chosen, draft) if draft is not None else None,
    )
    return Service(
        engine=found,
        job=job,
        candidate=chosen.name,
        host=host,
        port=port or free_port(),
        key_file=(key_file or cook_home() / "serve.key").expanduser().absolute(),
        notes=tuple(notes),
    )


def serve(
    service: Service,
    supervisor: Supervisor,
    on_output: Callable[[str, bytes], None],
    on_ready: Callable[[], None],
) -> ProcessResult:
    """Run ``service`` until it ends, or until the user stops it (Ctrl-C, SIGTERM).

    ``on_ready`` is called once it answers and, with a draft, drafts. InputError for a port that
    is taken and a key file that is none; else raises as :class:`cook.engines.server.Server`.
    """
    family = socket.AF_INET6 if ":" in service.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As llama-server binds: a port that waits out its last connection is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((service.host, service.port))
        except OSError as error:
            message = f"{service.host}:{service.port}: {error.strerror or error}"
            raise InputError(message, hint="another --port; 0 is any") from None
    key = read_or_make_key(service.key_file)
    server = Server(
        service.engine,
        service.job,
        supervisor,
        argv=service.argv,
        host=service.host,
        port=service.port,
        key=key,
        on_output=on_output,
    )
    with server:
        on_ready()
        try:
            return server.wait()
        except KeyboardInterrupt:
            return server.stop()


def read_or_make_key(path: Path) -> str:
    """The key in ``path``; a new one, readable by its owner only, where there is no such file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_key(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    key = secrets.token_hex(24)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    return key


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.open("rb").read(MAX_KEY_BYTES + 1).decode("utf-8", "replace").strip()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if not text or len(text) > MAX_KEY_BYTES or not text.isascii() or not text.isprintable():
        raise InputError(f"{path}: holds no key", hint="one line with the key and nothing else")
    if mode & 0o077:
        raise InputError(f"{path}: others may read this key", hint=f"chmod 600 {path}")
    return text


def shell_text(service: Service) -> str:
    """The command for a shell: quoted, one flag with its values a line."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in service.environment.items()]
    return _CONTINUED.join([*variables, *by_option(service.command)])


def systemd_unit(service: Service) -> str:
    """A unit that starts the server; for ``systemctl --user`` or a system unit."""
    job = service.job
    models = job.target.name + (f" with draft {job.draft.name}" if job.draft else ", no draft")
    # It inherits nothing of this shell.
    given = service.engine.environment()
    own = {name: given[name] for name in _OWN_ENVIRONMENT if name in given}
    variables = own | user_settings()
    environment = [f"Environment={_unit_word(f'{k}={v}')}" for k, v in variables.items()]
    command = _CONTINUED.join(by_option(service.command, _unit_word))
    lines = [
        "[Unit]",
        f"Description=llama-server: {models.replace('%', '%%')}",
        "After=network.target",
        "",
        "[Service]",
        *environment,
        f"ExecStart={command}",
        "Restart=on-failure",
        "RestartSec=5",
        # ik writes llama.log where it stands.
        "RuntimeDirectory=cook-serve",
        "WorkingDirectory=%t/cook-serve",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines)


def _chosen(record: Record, named: str | None) -> tuple[Candidate, list[str]]:
    if not record.candidates or not record.target:
        raise InputError(
            f"the record of {record.recipe} scored nothing: it has no target to serve",
            hint="a recipe with `score:` has one",
        )
    if named is not None:
        found = record.candidate(named)
        if found is None:
            names = ", ".join(c.name for c in record.candidates[:8])
            raise InputError(f"no candidate {named!r} in the record", hint=f"it has {names}")
        return found, []
    picked = record.candidate(record.pick.candidate) if record.pick.candidate else None
    if picked is not None and picked.draft is not None:
        return picked, []
    alone = picked or next((c for c in record.candidates if c.draft is None), None)
    if alone is None:
        raise InputError(f"nothing was picked: {record.pick.sentence}", hint="--candidate NAME")
    why = "no draft was picked" if picked else f"nothing was picked ({record.pick.sentence})"
    return alone, [f"{why}: the target is served alone"]


def _checked_flags(
    engine: Engine, role: str, args: ModelArgs, unsafe_args: bool
) -> tuple[str, ...]:
    """Warnings about the record's raw flags; InputError where one may not pass."""
    offered = engine.facts.flags.get("server", ())
    tool = f"llama-server of {engine.name}"
    refusals = read_flags(args.extra, [engine.flavour], offered, tool).refusals
    stopped = [r for r in refusals if r.ours or not unsafe_args]
    if stopped:
        message = "; ".join(refusal.message for refusal in stopped)
        raise InputError(f"the record's flags of the {role}: {message}", hint=stopped[0].hint)
    if (others := other_machines(args.rpc)) and not unsafe_args:
        raise InputError(
            f"the record's {role} uses {others[0]}, another machine, which would get its weights "
            "and the prompts",
            hint=f"if it is yours, say so: {UNSAFE_FLAG}",
        )
    words = ", ".join(args.extra[refusal.index] for refusal in refusals)
    return (f"the record's flags of the {role}: {words} passed ({UNSAFE_FLAG})",) if words else ()


def _context_notes(tokens: int, scored: int, target: Path, draft: Path | None) -> Iterator[str]:
    """Where ``tokens`` is more than a model was trained on, or than was scored with."""
    from cook.formats.gguf import read_gguf

    for role, path in (("target", target), ("draft", draft)):
        if path is None:
            continue
        try:
            file = read_gguf(path)
            trained = file.number("context_length")
        except InputError:
            continue  # the server will say what is wrong with it
        if trained is not None and tokens > trained:
            yield (
                f"a context of {tokens} tokens is beyond what the {role} was trained on, "
                f"{trained}: what it says further on may be worth nothing"
            )
    if tokens > scored:
        yield (
            f"scored with a context of {scored} tokens: {tokens} need more memory, and how fast "
            "long requests are was not measured"
        )


def _head_kind(record: Record, candidate: Candidate, draft: Path) -> HeadKind | None:
    """What kind of head ``draft`` is, or holds where it is the target; None for a model."""
    from cook.formats.gguf import header_if_there

    file, known = header_if_there(draft), record.draft(candidate.draft or "")
    head = head_of(file) if file is not None else None
    own = known is not None and _is_own_head(record, known)
    return head.kind if head and (head.alone or own or _is_spliced(draft)) else None


def _is_spliced(draft: Path) -> bool:
    """Whether it is the target's file with another head than its own."""
    from cook.formats.gguf import header_if_there

    return (file := header_if_there(draft)) is not None and SPLICED in file.metadata


def _is_own_head(record: Record, draft: Draft) -> bool:
    """Whether it is the head in the target's file: its size is that of its tensors."""
    return draft.path == record.target and draft.file_bytes != record.target_bytes


def _draft(record: Record, candidate: Candidate) -> Path | None:
    if candidate.draft is None or not candidate.key.is_file:
        return None
    draft = record.draft(candidate.draft)
    if draft is None or draft.path is None:
        raise InputError(f"the record names no file for draft {candidate.draft}", hint=_AGAIN)
    if _is_own_head(record, draft):
        return Path(draft.path)
    return _model("draft", draft.path, draft.file_bytes)


_CONTINUED = " \\\n  "
_AGAIN = "`cook build RECIPE` (or the same `cook score`) makes what is missing and a new record"


def _model(role: str, path_text: str, expected_bytes: int | None) -> Path:
    """The file if it is there and as large as it was when it was scored; a stored one whole."""
    path = Path(path_text)
    shards = shards_of(path)
    try:
        found_bytes = sum(shard.stat().st_size for shard in shards)
    except OSError as error:
        gone = error.filename or path
        raise InputError(f"{role} {gone}: {error.strerror or error}", hint=_AGAIN) from None
    if not all(shard.is_file() for shard in shards):
        raise InputError(f"{role} {path}: not a regular file", hint=_AGAIN)
    if expected_bytes is not None and found_bytes != expected_bytes:
        raise InputError(
            f"{role} {path}: {found_bytes} bytes, and what was scored had {expected_bytes}: "
            "it is another file",
            hint=_AGAIN,
        )
    for shard in shards:
        recorded = recorded_sha256(shard)
        if recorded is not None and digest(shard) != f"sha256:{recorded}":
            raise InputError(f"{role} {shard}: has other content than was scored", hint=MEND)
    return path


def _unit_word(word: str) -> str:
    """``word`` as systemd.service(5) quotes it: specifiers and variables are not expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n")
    plain = escaped == word and not set(word) & set(" \t'\";") and word != ""
    return word if plain else f'"{escaped}"'
