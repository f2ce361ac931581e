"""From what a user names as target to a target that can be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cook.engines.base import Engine, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.remote import Remote, checked_url, is_loopback, is_url
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import InputError
from cook.trace.session import RecordingTarget


@dataclass(frozen=True)
class Opening:
    """How to reach a target. ``target`` is a GGUF or an address.

    ``tokenizer``: a GGUF with the target's tokenizer, for an address. ``raw``: prompts go without a
    chat template.
    """

    target: str
    context: int
    args: ModelArgs = field(default_factory=ModelArgs)
    tokenizer: Path | None = None
    raw: bool = False
    key: str | None = field(default=None, repr=False)


@contextmanager
def opened(
    how: Opening, engine: Engine | None, supervisor: Supervisor
) -> Iterator[RecordingTarget]:
    """The target, for the time of the block.

    ``engine`` runs a file, and tokenizes for an address; None where none is at hand, which an
    address does without. Errors: InputError for a target that cannot be recorded, StepError
    for an address that does not answer.
    """
    with ExitStack() as stack:
        if is_url(how.target):
            yield _remote(how, engine, supervisor, stack)
        else:
            yield _local(how, engine, supervisor, stack)


def _local(
    how: Opening, engine: Engine | None, supervisor: Supervisor, stack: ExitStack
) -> RecordingTarget:
    from cook.formats.file_kind import no_model
    from cook.formats.gguf import read_gguf
    from cook.graph.step import source
    from cook.trace.worker_target import WorkerTarget

    if engine is None:
        raise InputError(f"{how.target}: no engine to run it")
    file = read_gguf(Path(how.target))
    if (found := no_model(file)) is not None:
        raise InputError(f"{how.target}: this is {found.what}, no model", hint=found.mend)
    chat = not how.raw and bool(file.string("tokenizer.chat_template"))
    workers = stack.enter_context(KeptWorkers(supervisor.log_dir))
    return stack.enter_context(
        WorkerTarget(engine, source(file.shards), how.args, how.context, chat, supervisor, workers)
    )


def _remote(
    how: Opening, engine: Engine | None, supervisor: Supervisor, stack: ExitStack
) -> RecordingTarget:
    from cook.trace.server_target import ServerTarget, server_facts
    from cook.trace.tokenizer import Tokenizer

    url = checked_url(how.target).removesuffix("/v1")
    remote = stack.enter_context(Remote(url, how.key))
    facts = server_facts(remote)
    if facts is None:
        raise InputError(
            f"{url} is no llama-server, and others tell text without token ids",
            hint="serve it with llama-server of llama.cpp or ik_llama.cpp, or record its file",
        )
    path = how.tokenizer or _own_file(url, facts.model_path)
    tokenizer = None
    if path is not None and engine is not None:
        tokenizer = stack.enter_context(Tokenizer(engine, path, supervisor))
    return ServerTarget(remote, facts, tokenizer, how.raw)


def _own_file(url: str, model_path: str | None) -> Path | None:
    """The file of a server on this machine, where its path is that of a GGUF that is there."""
    from cook.formats.gguf import is_gguf

    if model_path is None or not is_loopback(url):
        return None
    path = Path(model_path)
    try:
        return path if path.is_absolute() and path.is_file() and is_gguf(path) else None
    except (OSError, ValueError):
        return None
