"""``cook trace``: a target, a prompt set and a file in; a trace out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from cook import units
from cook.engines.base import Engine, ModelArgs
from cook.engines.discover import discover
from cook.engines.process.supervisor import Supervisor
from cook.engines.server_api import Remote, checked_url, is_loopback, is_url, read_key
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.gguf import is_gguf, read_gguf
from cook.formats.heads import require_model
from cook.formats.sampling import Sampling
from cook.formats.strict_json import MAX_PARTS
from cook.graph.locks import machine_lock
from cook.graph.step import source
from cook.output import Output
from cook.paths import cook_home
from cook.prompts.prompt_set import BUNDLED, load_prompts, select
from cook.trace.server_target import ServerTarget, Tokenizer, server_facts
from cook.trace.session import EXTRA, RecordingTarget, TracePlan, TraceTotals, record
from cook.trace.worker_target import WorkerTarget


@dataclass(frozen=True)
class TraceRequest:
    """What the command line asks for; see ``cook trace --help``."""

    target: str
    output: Path
    prompts: str = "default"
    limit: int | None = None
    max_tokens: int = 128
    context: int = 8192
    batch_width: int = 1
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 1
    top: int = 64
    args: ModelArgs = field(default_factory=ModelArgs)
    model: str | None = None
    tokenizer: Path | None = None
    key_file: Path | None = None
    raw: bool = False
    engine: str | None = None


def record_trace(asked: TraceRequest, output: Output) -> TraceTotals:
    """Record, or go on recording. StepError when not one prompt gave a usable reply."""
    if asked.max_tokens >= asked.context:
        raise InputError(f"{asked.max_tokens} tokens leave no room in a context of {asked.context}")
    if asked.output.is_dir():
        raise InputError(f"{asked.output} is a folder")
    remote = is_url(asked.target)
    name = checked_url(asked.target) if remote else asked.target
    if asked.model is not None and not remote:
        raise InputError(
            f"--model chooses one of a router's models, and {asked.target} is a file",
            hint="leave it out, or give the router's address as --target",
        )
    if remote and asked.batch_width > 1:
        raise InputError(
            f"{name} computes one token at a time, whatever is asked of it",
            hint="leave --batch-width out, or record the target's file",
        )
    prompts = asked.prompts if asked.prompts in BUNDLED else Path(asked.prompts)
    sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.min_p, seed=asked.seed)
    plan = TracePlan(
        select(load_prompts(prompts), asked.limit).prompts,
        asked.max_tokens,
        asked.context,
        sampling.applied("server" if remote else "worker"),
        asked.top,
        batch_width=asked.batch_width,
    )
    most = MAX_PARTS // (2 * plan.top + 3)  # lists and objects in which a server says one token
    if remote and plan.max_tokens > most:
        raise InputError(
            f"--max-tokens {plan.max_tokens:,}: of a server's answer, which has {plan.top} tokens "
            f"with probabilities for each, {most:,} can be read"
        )
    key = read_key(asked.key_file) if remote else None
    if key is not None and asked.target.startswith("http://") and not is_loopback(asked.target):
        output.warn("the key travels unencrypted to this address", hint="use https:// if it can")
    engine = None
    try:
        engine = discover(asked.engine)
    except PrerequisiteError as error:
        # An address whose tokenizer is not asked for does without one.
        if not remote or asked.engine is not None or asked.tokenizer is not None:
            raise
        output.warn(f"recording without a tokenizer at hand: {error.message}", hint=error.hint)
    supervisor = Supervisor(cook_home() / "logs" / "trace")

    def waiting() -> None:
        output.say("waiting, another cook is timing on this machine")

    with (
        nullcontext() if remote else machine_lock(alone=False, waiting=waiting),
        output.progress(len(plan.prompts), f"trace of {name}") as progress,
        open_target(asked, engine, supervisor, key) as target,
    ):
        found = record(target, plan, asked.output, progress.to)
    for dropped in found.dropped:
        output.warn(f"prompt {dropped.id} is left out: {dropped.reason}")
    if not found.replies:
        raise StepError(f"{asked.target}: no prompt gave a usable reply")
    return found


@contextmanager
def open_target(
    asked: TraceRequest, engine: Engine | None, supervisor: Supervisor, key: str | None = None
) -> Iterator[RecordingTarget]:
    """The target, for the time of the block.

    ``engine`` runs a file, and tokenizes for an address; None where none is at hand, which an
    address does without. Errors: InputError for a target that cannot be recorded, StepError
    for an address that does not answer.
    """
    with ExitStack() as stack:
        if is_url(asked.target):
            url = checked_url(asked.target).removesuffix("/v1")
            remote = stack.enter_context(Remote(url, key, model=asked.model))
            facts = server_facts(remote)
            if facts is None:
                raise InputError(
                    f"{url} is no llama-server, and others send text without token ids",
                    hint="serve it with llama-server of llama.cpp or ik_llama.cpp, or record its "
                    "file",
                )
            own, tokenizer = asked.tokenizer or _own_file(url, facts.model_path), None
            if own is not None and engine is not None:
                tokenizer = stack.enter_context(Tokenizer(engine, own, supervisor))
            yield ServerTarget(remote, facts, tokenizer, asked.raw)
            return
        path = Path(asked.target).expanduser()
        if engine is None:
            raise InputError(f"{path}: no engine to run it")
        file = read_gguf(path)
        require_model(file)
        chat = not asked.raw and bool(file.string("tokenizer.chat_template"))
        workers = stack.enter_context(KeptWorkers(supervisor.log_dir))
        model = source(file.shards)
        yield stack.enter_context(
            WorkerTarget(engine, model, asked.args, asked.context, chat, supervisor, workers)
        )


def _own_file(url: str, model_path: str | None) -> Path | None:
    """The file of a server on this machine, where its path is that of a GGUF that is there."""
    if model_path is None or not is_loopback(url):
        return None
    path = Path(model_path)
    try:
        return path if path.is_absolute() and path.is_file() and is_gguf(path) else None
    except (OSError, ValueError, InputError):
        return None


def show_recording(found: TraceTotals, output: Output) -> None:
    """What was recorded."""
    per_token = found.file_bytes / found.tokens
    output.emit(
        {
            "trace": found.path,
            "replies": found.replies,
            "asked": found.asked,
            "tokens": found.tokens,
            "ended_by_themselves": found.ended,
            "prompt_tokens": found.prompt_tokens,
            "holes": found.holes,
            "extra_tokens_asked": EXTRA,
            "file_bytes": found.file_bytes,
            "bytes_per_token": round(per_token, 1),
            "dropped": found.dropped,
        }
    )
    earlier = found.replies - found.asked
    output.say(
        f"{found.replies} {'reply' if found.replies == 1 else 'replies'}"
        f"{f', {earlier} of them recorded earlier' if earlier else ''}: {found.tokens} tokens, "
        f"{units.size(found.file_bytes)}, {per_token:.0f} bytes a token"
    )
    if found.holes:
        output.say(f"{found.holes} tokens have no probabilities (holes)")
    output.data(str(found.path))
