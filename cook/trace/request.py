"""``cook trace``: a target, a prompt set and a file in; a trace out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cook import units
from cook.engines.base import Engine, ModelArgs
from cook.errors import InputError, PrerequisiteError, StepError
from cook.formats.sampling import Sampling
from cook.output import Output
from cook.trace.session import EXTRA, Recorded, TraceRequest, record


@dataclass(frozen=True)
class Recording:
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
    tokenizer: Path | None = None
    key_file: Path | None = None
    raw: bool = False
    engine: str | None = None


def trace(asked: Recording, output: Output) -> Recorded:
    """Record, or go on recording. StepError when not one prompt gave a usable reply."""
    from cook.engines.process.supervisor import Supervisor
    from cook.engines.remote import checked_url, is_url, read_key
    from cook.paths import cook_home
    from cook.prompts.prompt_set import load_prompts, select
    from cook.trace.targets import Opening, opened

    if asked.max_tokens >= asked.context:
        raise InputError(f"{asked.max_tokens} tokens leave no room in a context of {asked.context}")
    if asked.output.is_dir():
        raise InputError(f"{asked.output} is a folder")
    remote = is_url(asked.target)
    name = checked_url(asked.target) if remote else asked.target
    if remote and asked.batch_width > 1:
        raise InputError(
            f"{name} computes one token at a time, whatever is asked of it",
            hint="leave --batch-width out, or record the target's file",
        )
    chosen = select(load_prompts(_prompt_source(asked.prompts)), asked.limit)
    plan = TraceRequest(
        chosen.prompts,
        asked.max_tokens,
        asked.context,
        _sampler(asked, remote),
        asked.top,
        batch_width=asked.batch_width,
    )
    how = Opening(
        target=asked.target if remote else str(Path(asked.target).expanduser()),
        context=asked.context,
        args=asked.args,
        tokenizer=asked.tokenizer,
        raw=asked.raw,
        key=read_key(asked.key_file) if remote else None,
    )
    _warn_of_open_key(how.target, how.key, output)
    supervisor = Supervisor(cook_home() / "logs" / "trace")
    with (
        output.progress(len(plan.prompts), f"trace of {name}") as progress,
        opened(how, _engine(asked, remote, output), supervisor) as target,
    ):
        found = record(target, plan, asked.output, progress.to)
    for dropped in found.dropped:
        output.warn(f"prompt {dropped.id} is left out: {dropped.reason}")
    if not found.replies:
        raise StepError(f"{asked.target}: no prompt gave a usable reply")
    return found


def _engine(asked: Recording, remote: bool, output: Output) -> Engine | None:
    """The engine; an address whose tokenizer is not asked for does without one."""
    from cook.engines.discover import discover

    try:
        return discover(asked.engine)
    except PrerequisiteError as error:
        if not remote or asked.engine is not None or asked.tokenizer is not None:
            raise
        output.warn(f"recording without a tokenizer at hand: {error.message}", hint=error.hint)
        return None


def _sampler(asked: Recording, remote: bool) -> Sampling:
    sampling = Sampling(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=asked.seed,
    )
    return sampling.applied("server" if remote else "worker")


def _prompt_source(prompts: str) -> str | Path:
    from cook.prompts.prompt_set import BUNDLED

    return prompts if prompts in BUNDLED else Path(prompts)


def _warn_of_open_key(target: str, key: str | None, output: Output) -> None:
    from cook.engines.remote import is_loopback

    if key is not None and target.startswith("http://") and not is_loopback(target):
        output.warn("the key travels unencrypted to this address", hint="use https:// if it can")


def show(found: Recorded, output: Output) -> None:
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
