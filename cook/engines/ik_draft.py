"""The draft's own arguments on ik_llama.cpp, which starts from a copy of the target's.

``common_speculative_load_draft_model`` copies every setting of the target, then applies
``--draft-params "..."`` to the copy. So what a recipe does not say for the draft, but says for
the target, has to be taken back in so many words; and one thing cannot be: overrides of tensors
are a list that the target's command line has already closed, so that the draft's come after its
end and are never read (``gpt_params_parse_ex`` of ``common/common.cpp`` at 8337e4cd).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from cook.engines.base import ServerJob
from cook.engines.server_args import Arguments, refuse
from cook.engines.tools import Tools
from cook.errors import InputError

# Names for which a pattern that means "all routed experts" must be true, and must not be.
_EXPERTS = tuple(
    f"blk.{layer}.ffn_{part}_exps.weight"
    for layer in (0, 7, 61, 100)
    for part in ("up", "gate", "down", "gate_up")
)
_OTHERS = (
    *("token_embd.weight", "output.weight", "output_norm.weight", "blk.3.attn_q.weight"),
    *("blk.3.attn_qkv.weight", "blk.0.ffn_up.weight", "blk.7.ffn_gate_inp.weight"),
    *("blk.7.ffn_up_shexp.weight", "blk.7.exp_probs_b.bias", "blk.7.ffn_norm.weight"),
)


def without_inherited_overrides(job: ServerJob, cpu_only: bool) -> ServerJob:
    """``job`` with the target's overrides said so that the draft need not take them over.

    Routed experts in CPU memory are said by ``--cpu-moe``, which the draft can take back. Other
    overrides are the target's alone only where they change nothing (``cpu_only``: an engine
    without a GPU drops them all); otherwise InputError.
    """
    target, draft = job.target_args, job.draft_args
    overrides = target.override_tensor
    if job.draft is None or not overrides or overrides == draft.override_tensor:
        return job
    if _are_experts_on_cpu(overrides):
        return replace(job, target_args=replace(target, override_tensor=(), cpu_moe=True))
    if cpu_only and all(o.endswith("=CPU") for o in (*overrides, *draft.override_tensor)):
        return job
    raise InputError(
        "ik_llama.cpp: draft args: override_tensor cannot differ from the target's: the draft"
        f" takes over {overrides[0]!r}",
        hint="say cpu_moe or n_cpu_moe for the target, or give both the same override_tensor",
    )


def _are_experts_on_cpu(overrides: Sequence[str]) -> bool:
    for override in overrides:
        pattern, _, where = override.rpartition("=")
        try:
            found = re.compile(pattern)
        except re.error:
            return False
        if where != "CPU" or any(found.search(name) for name in _OTHERS):
            return False
    patterns = [re.compile(o.rpartition("=")[0]) for o in overrides]
    return all(any(p.search(name) for p in patterns) for name in _EXPERTS)


def add_draft_args(engine: Tools, args: Arguments, job: ServerJob) -> None:
    """Everything that the recipe says of the draft, and what it must not take over.

    PrerequisiteError for a setting that this build has no way to say.
    """
    given, target = job.draft_args, job.target_args
    args.add_first(("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"), given.n_gpu_layers)
    args.add_first(("--device-draft", "-devd"), ",".join(given.devices) or None)
    for half in ("k", "v"):
        wanted = getattr(given, f"cache_type_{half}")
        if wanted is None and getattr(target, f"cache_type_{half}") is not None:
            wanted = "f16"  # the engines' default, not the target's
        args.add_cache_type(
            (f"--cache-type-{half}-draft", f"-ct{half}d"), wanted, f"draft's cache_type_{half}"
        )
    words = _Words(engine, args)
    if given.override_tensor and given.override_tensor != target.override_tensor:
        for override in given.override_tensor:
            words.add("-ot", override, ("--override-tensor-draft", "-otd"))
    if given.cpu_moe:
        words.add("-cmoe", None, ("--cpu-moe-draft", "-cmoed"))
    elif given.n_cpu_moe is not None:
        words.add("-ncmoe", given.n_cpu_moe, ("--n-cpu-moe-draft", "-ncmoed"))
    elif target.cpu_moe or target.n_cpu_moe:
        words.add("-ncmoe", 0, ("--n-cpu-moe-draft", "-ncmoed"))
    words.add("-t", given.threads, ("--threads-draft", "-td"))
    # Without a number of its own a batch uses the draft's threads, not the target's for batches.
    inherits = given.threads is not None and target.threads_batch is not None
    batch_threads = given.threads_batch or (given.threads if inherits else None)
    words.add("-tb", batch_threads, ("--threads-batch-draft", "-tbd"))
    words.add("-b", given.batch)
    words.add("-ub", given.ubatch)
    if given.flash_attention is not None:
        words.add("-fa", "on" if given.flash_attention else "off")
    if given.rpc != target.rpc:
        words.add("--rpc", ",".join(given.rpc) or None)
    words.finish(given.extra)


class _Words:
    """Flags for ``--draft-params``; on a build without it, flags of the draft's own."""

    def __init__(self, engine: Tools, args: Arguments) -> None:
        self._engine, self._args = engine, args
        self._inside = [
            flag for flag in ("--draft-params", "-draft") if engine.has_flag("server", flag)
        ]
        self._words: list[str] = []

    def add(self, flag: str, value: str | int | None, own: tuple[str, ...] = ()) -> None:
        """``flag value`` (``-cmoe`` has no value); nothing for a value of None otherwise."""
        if value is None and flag != "-cmoe":
            return
        # A flag of its own for placement is how other versions say it; -td and its like are
        # read by this version and then not used.
        placed = flag in ("-ot", "-cmoe", "-ncmoe")
        for name in own:
            if self._engine.has_flag("server", name) and (placed or not self._inside):
                self._args.add_flag(name, True) if value is None else self._args.add(name, value)
                return
        if not self._inside:
            field = {"-b": "batch", "-ub": "ubatch", "-fa": "flash_attention", "--rpc": "rpc"}
            refuse(self._engine, "draft", field.get(flag, flag), "this build has no --draft-params")
        self._words += [flag] if value is None else [flag, str(value)]

    def finish(self, extra: Sequence[str]) -> None:
        """Write them all as one argument, ``extra`` last."""
        if extra and not self._inside:
            refuse(self._engine, "draft", "extra", "this build has no --draft-params")
        self._words += extra
        if self._words:
            self._args.add(self._inside[0], " ".join(map(self._quoted, self._words)))

    def _quoted(self, word: str) -> str:
        # The engine splits it at blanks and knows double quotes only, with no way to escape one.
        if '"' in word or not word:
            refuse(self._engine, "draft", word or "an empty word", "--draft-params cannot quote it")
        return f'"{word}"' if " " in word else word
