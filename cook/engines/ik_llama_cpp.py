"""ik_llama.cpp: its command lines (docs/internals/engines.md has their traps).

The largest of them: a draft starts from a copy of the target's settings.
``common_speculative_load_draft_model`` copies every one, then applies ``--draft-params "..."`` to
the copy. So what a recipe sets for the target alone has to be taken back for the draft; and one
thing cannot be: overrides of tensors are a list that the target's command line has already closed,
so that the draft's come after its end and are never read (``gpt_params_parse_ex`` of
``common/common.cpp`` at 8337e4cd).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cook.engines.arguments import Arguments, common_server_args, refuse
from cook.engines.base import BATCH, Engine, ModelArgs, QuantizeJob, ServerJob
from cook.engines.speculation import ik_stage
from cook.errors import InputError, PrerequisiteError
from cook.formats.quant_types import Flavour

# A build without a GPU backend takes these and leaves them out of its help.
_UNLISTED = frozenset({"--n-gpu-layers", "--device", "--n-gpu-layers-draft", "--device-draft"})
# Linux limits one argument to 128 KiB; --custom-q may be repeated.
_CUSTOM_Q_BYTES = 60_000


class IkLlamaCpp(Engine):
    """A build of ik_llama.cpp."""

    flavour = Flavour.IK_LLAMA_CPP

    def has_flag(self, tool: str, flag: str) -> bool:
        """See Engine.has_flag."""
        common_parser = tool in self.facts.flags and tool != "quantize"
        return (common_parser and flag in _UNLISTED) or super().has_flag(tool, flag)

    def rule_flags(self, job: QuantizeJob) -> tuple[str, ...]:
        """``--custom-q P=T,P=T``; the first rule that matches wins."""
        if job.rules and job.pure:
            raise InputError("ik_llama.cpp ignores every rule under --pure")
        exact = {name.lower(): name for name in self.facts.types}
        flags: list[str] = []
        group: list[str] = []
        for rule in job.rules:
            if "=" in rule.pattern or "," in rule.pattern or not rule.pattern:
                raise InputError(
                    f"ik_llama.cpp cannot say the pattern {rule.pattern!r}",
                    hint="it splits rules at ',' and '=' with no way to escape them",
                )
            if sum(map(len, group)) > _CUSTOM_Q_BYTES:
                flags += ["--custom-q", ",".join(group)]
                group = []
            # Types are case-sensitive here: q4_K, but q4_k_r4.
            group.append(f"{rule.pattern}={exact.get(rule.type.lower(), rule.type)}")
        return (*flags, "--custom-q", ",".join(group)) if group else tuple(flags)

    def text_flags(self, tool: str) -> tuple[str, ...]:
        # Without it ik rewrites backslash sequences of the corpus, and perplexity differs.
        if not self.has_flag(tool, "--no-escape"):
            raise PrerequisiteError(
                f"llama-{tool} of engine {self.name} has no --no-escape",
                hint="update ik_llama.cpp: its reading of text would differ from llama.cpp's",
            )
        return ("--no-escape",)

    def imatrix_retries(self) -> tuple[tuple[str, ...], ...]:
        """Without flash attention, without the fused operations, without both."""
        attention = ("-no-fa",) if self.has_flag("imatrix", "-no-fa") else ("-fa", "off")
        fused = tuple(
            flag
            for flag in ("--no-fused-moe", "--no-fused-up-gate")
            if self.has_flag("imatrix", flag)
        )
        return (attention, fused, (*attention, *fused)) if fused else (attention,)

    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        if job.slots > 1 and job.drafts:
            refuse(self, "server", "slots", "it drafts with one slot only")
        wanted = (*job.target_args.rpc, *(job.draft_args.rpc if job.draft else ()))
        # A build without RPC ignores `--rpc`.
        if wanted and not any(b"ggml_backend_rpc" in path.read_bytes() for path in self.files):
            raise PrerequisiteError(
                f"engine {self.name} was built without RPC and would ignore {wanted[0]}",
                hint="build it with -DGGML_RPC=ON, or leave out rpc",
            )
        # A build that offloads to nothing names no layers for a GPU in its help.
        job = without_inherited_overrides(job, cpu_only=not super().has_flag("server", "-ngl"))
        args = Arguments(self, "server")
        common_server_args(args, job, port, key_file)
        if job.ngram is not None:
            args.add("--spec-type", ik_stage(job.ngram.of(self.flavour)))
        if job.draft is not None:
            self._add_draft(args, job)
        return args.argv(job.target_args.extra)

    def as_draft(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        """With the batch that holds any prompt: see :func:`draft_batch`."""
        really = super().as_draft(given, target, context)
        return replace(really, batch=draft_batch(given, target, context))

    def as_head(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        """The target's: see :func:`_require_inherited`."""
        return target

    def check_prompts(self, job: ServerJob, tokens: int) -> None:
        """The draft's batch, where the recipe says one, must hold a whole prompt."""
        if job.draft is None or job.head is not None:
            return
        batch = draft_batch(job.draft_args, job.target_args, job.context)
        if batch is not None and batch < min(tokens, job.context):
            raise InputError(
                f"ik_llama.cpp: draft args: batch {batch}: its draft reads a whole prompt in one"
                f" batch, and ends the server at a longer one; the longest here may have {tokens}"
                " tokens",
                hint=f"`batch: {job.context}` in the draft's args, or leave it out",
            )

    def _add_draft(self, args: Arguments, job: ServerJob) -> None:
        """The draft with its settings and placement, and what it must not take over.

        PrerequisiteError for a setting that this build has no way to say.
        """
        args.add("--model-draft", job.draft_file)
        keys, settings = "", job.settings
        if settings is not None:
            p_min = f"{settings.p_min:g}"
            keys = f":n_max={settings.n_max},n_min={settings.n_min},p_min={p_min}"
        # -md alone does not even load the draft.
        args.add("--spec-type", f"{job.speculators(self.flavour)[-1]}{keys}")
        given, target = job.draft_args, job.target_args
        if job.head is not None:
            _require_inherited(self, given, target)
            return
        args.add(("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"), given.n_gpu_layers)
        args.add(("--device-draft", "-devd"), given.devices)
        types = {  # the engines' default, not the target's
            "k": given.cache_type_k or (target.cache_type_k and "f16"),
            "v": given.cache_type_v or (target.cache_type_v and "f16"),
        }
        args.add_cache_types(("--cache-type-{}-draft", "-ct{}d"), types)
        flags = ("--draft-params", "-draft")
        can_say = any(self.has_flag("server", flag) for flag in flags)
        words = []
        for word in _draft_words(job, can_say):
            # The engine splits it at blanks and knows double quotes only, none of them escaped.
            if '"' in word or not word:
                refuse(self, "draft", word or "an empty word", "--draft-params cannot quote it")
            words.append(f'"{word}"' if " " in word else word)
        args.add(flags, " ".join(words) or None)


def _require_inherited(engine: Engine, given: ModelArgs, target: ModelArgs) -> None:
    """InputError for an argument of a head's own: ik runs it in a context made like the target's
    (`common_speculative_init`, common/speculative.cpp)."""
    for name, value in vars(given).items():
        if value not in (None, (), False) and value != getattr(target, name):
            refuse(engine, "draft", name, "a head runs with the target's")


def _draft_words(job: ServerJob, can_say: bool) -> Iterator[str]:
    """The words of ``--draft-params``; flags of the draft's own, such as ``-td``, are read by the
    engine and then not used. A build that has no such flag (``can_say``) gets no batch that the
    recipe does not name."""
    given, target = job.draft_args, job.target_args
    if given.override_tensor != target.override_tensor:
        for override in given.override_tensor:
            yield from ("-ot", override)
    experts = given.n_cpu_moe
    if experts is None and (target.cpu_moe or target.n_cpu_moe):
        experts = 0
    batch = draft_batch(given, target, job.context)
    # Without a number of its own a batch uses the draft's threads, not the target's.
    inherits = given.threads is not None and target.threads_batch is not None
    numbers: dict[str, str | int | None] = {
        "-ncmoe": None if given.cpu_moe else experts,
        "-t": given.threads,
        "-tb": given.threads_batch or (given.threads if inherits else None),
        "-b": batch if given.batch is not None or (can_say and batch != target.batch) else None,
        "-ub": given.ubatch,
        # -cd counts only where the copy does not have the target's context already.
        "-c": job.draft_context,
        "-fa": {None: None, True: "on", False: "off"}[given.flash_attention],
        "--rpc": ",".join(given.rpc) if given.rpc and given.rpc != target.rpc else None,
    }
    if given.cpu_moe:
        yield "-cmoe"
    for flag, value in numbers.items():
        if value is not None:
            yield from (flag, str(value))
    yield from given.extra


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
    """``job`` with the target's overrides written so that the draft need not take them over.

    Routed experts in CPU memory are written as ``--cpu-moe``, which the draft can take back. Other
    overrides are the target's alone only where they change nothing (``cpu_only``: an engine
    without a GPU drops them all); otherwise InputError.
    """
    target, draft = job.target_args, job.draft_args
    overrides = target.override_tensor
    inherits = job.head is not None or overrides == draft.override_tensor  # a head is the target's
    if job.draft is None or not overrides or inherits:
        return job
    patterns = [override.rpartition("=")[0] for override in overrides]
    names = (*_EXPERTS, *_OTHERS)
    try:
        put = {name for name in names if any(re.search(pattern, name) for pattern in patterns)}
    except re.error:
        put = set()
    # Every routed expert, and nothing else, into CPU memory.
    if put == set(_EXPERTS) and all(o.endswith("=CPU") for o in overrides):
        return replace(job, target_args=replace(target, override_tensor=(), cpu_moe=True))
    if cpu_only and all(o.endswith("=CPU") for o in (*overrides, *draft.override_tensor)):
        return job
    raise InputError(
        "ik_llama.cpp: draft args: override_tensor cannot differ from the target's: the draft"
        f" takes over {overrides[0]!r}",
        hint="say cpu_moe or n_cpu_moe for the target, or give both the same override_tensor",
    )


def draft_batch(given: ModelArgs, target: ModelArgs, context: int) -> int | None:
    """Tokens of the draft's logical batch; None for its default.

    ik's draft adds every token of a prompt to one batch, and a prompt of more tokens ends the
    server (``common_speculative_state_draft`` of ``common/speculative.cpp``): where the recipe
    names no batch for the draft it gets room for any prompt. Its physical batch stays as it is.
    """
    inherited = target.batch or BATCH
    return given.batch or (context if inherited < context else target.batch)
