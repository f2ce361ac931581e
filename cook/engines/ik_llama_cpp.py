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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cook.engines.arguments import Arguments, common_server_args, refuse
from cook.engines.base import BATCH, Engine, ModelArgs, QuantizeJob, ServerJob
from cook.engines.ngram_settings import ik_stage
from cook.engines.speculation import BY_DRAFT
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
        common_parser = tool in self.capabilities.flags and tool != "quantize"
        return (common_parser and flag in _UNLISTED) or super().has_flag(tool, flag)

    def rule_flags(self, job: QuantizeJob) -> tuple[str, ...]:
        """``--custom-q P=T,P=T``; the first rule that matches wins."""
        if job.rules and job.pure:
            raise InputError("ik_llama.cpp ignores every rule under --pure")
        exact = {name.lower(): name for name in self.capabilities.quant_types}
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
        self._require_rpc(job)
        # A build that offloads to nothing names no layers for a GPU in its help.
        job = without_inherited_overrides(job, cpu_only=not super().has_flag("server", "-ngl"))
        args = Arguments(self, "server")
        common_server_args(args, job, port, key_file)
        if job.ngram is not None:
            args.add("--spec-type", ik_stage(job.ngram.of(self.flavour)))
        if job.draft is not None:
            self._add_draft(args, job, job.draft)
        return args.argv(job.target_args.extra)

    def as_draft(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        """With the batch that holds any prompt: see :func:`draft_batch`."""
        really = super().as_draft(given, target, context)
        return replace(really, batch=draft_batch(given, target, context))

    def check_prompts(self, job: ServerJob, tokens: int) -> None:
        """The draft's batch, where the recipe says one, must hold a whole prompt."""
        if job.draft is None:
            return
        batch = draft_batch(job.draft_args, job.target_args, job.context)
        if batch is not None and batch < min(tokens, job.context):
            raise InputError(
                f"ik_llama.cpp: draft args: batch {batch}: its draft reads a whole prompt in one"
                f" batch, and ends the server at a longer one; the longest here may have {tokens}"
                " tokens",
                hint=f"`batch: {job.context}` in the draft's args, or leave it out",
            )

    def _require_rpc(self, job: ServerJob) -> None:
        """PrerequisiteError where RPC is asked of a build without, which ignores ``--rpc``."""
        wanted = (*job.target_args.rpc, *(job.draft_args.rpc if job.draft else ()))
        if wanted and not any(b"ggml_backend_rpc" in path.read_bytes() for path in self.files):
            raise PrerequisiteError(
                f"engine {self.name} was built without RPC and would ignore {wanted[0]}",
                hint="build it with -DGGML_RPC=ON, or leave out rpc",
            )

    def _add_draft(self, args: Arguments, job: ServerJob, draft: Path) -> None:
        """The draft with its settings and placement, and what it must not take over.

        PrerequisiteError for a setting that this build has no way to say.
        """
        args.add("--model-draft", draft)
        keys, settings = "", job.settings
        if settings is not None:
            p_min = f"{settings.p_min:g}"
            keys = f":n_max={settings.n_max},n_min={settings.n_min},p_min={p_min}"
        # -md alone does not even load the draft.
        args.add("--spec-type", f"{BY_DRAFT[self.flavour]}{keys}")
        given, target = job.draft_args, job.target_args
        args.add(("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"), given.n_gpu_layers)
        args.add(("--device-draft", "-devd"), given.devices)
        types = {  # the engines' default, not the target's
            "k": given.cache_type_k or (target.cache_type_k and "f16"),
            "v": given.cache_type_v or (target.cache_type_v and "f16"),
        }
        args.add_cache_types(("--cache-type-{}-draft", "-ct{}d"), types)
        if given.cpu_moe:
            moe: tuple[_DraftFlag, ...] = (("-cmoe", True, ("--cpu-moe-draft", "-cmoed")),)
        else:
            layers = 0 if target.cpu_moe or target.n_cpu_moe else None
            layers = layers if given.n_cpu_moe is None else given.n_cpu_moe
            moe = (("-ncmoe", layers, ("--n-cpu-moe-draft", "-ncmoed")),)
        same_overrides = given.override_tensor == target.override_tensor
        # Without a number of its own a batch uses the draft's threads, not the target's.
        inherits = given.threads is not None and target.threads_batch is not None
        batch_threads = given.threads_batch or (given.threads if inherits else None)
        batch = draft_batch(given, target, job.context)
        inside = next((f for f in ("--draft-params", "-draft") if self.has_flag("server", f)), None)
        says_batch = given.batch is not None or (batch != target.batch and inside)
        flash = {None: None, True: "on", False: "off"}[given.flash_attention]
        wanted: tuple[_DraftFlag, ...] = (
            *(
                ("-ot", override, ("--override-tensor-draft", "-otd"))
                for override in (() if same_overrides else given.override_tensor)
            ),
            *moe,
            ("-t", given.threads, ("--threads-draft", "-td")),
            ("-tb", batch_threads, ("--threads-batch-draft", "-tbd")),
            ("-b", batch if says_batch else None, ()),
            ("-ub", given.ubatch, ()),
            # -cd counts only where the copy does not have the target's context already.
            ("-c", job.draft_context, ()),
            ("-fa", flash, ()),
            ("--rpc", ",".join(given.rpc) if given.rpc and given.rpc != target.rpc else None, ()),
        )
        words: list[str] = []
        for flag, value, own in wanted:
            # A flag of its own for placement is how other versions say it; -td and its like are
            # read by this version and then not used.
            usable = own if flag in ("-ot", "-cmoe", "-ncmoe") or inside is None else ()
            name = next((name for name in usable if self.has_flag("server", name)), None)
            if name is not None:
                args.add(name, value)
            elif value is not None and inside is None:
                refuse(self, "draft", _FIELDS.get(flag, flag), "this build has no --draft-params")
            elif value is not None:
                words += [flag] if value is True else [flag, str(value)]
        words += given.extra
        if words and inside is None:
            refuse(self, "draft", "extra", "this build has no --draft-params")
        if words:
            args.add(inside or "", " ".join(_quoted(self, word) for word in words))


_DraftFlag = tuple[str, str | int | None, tuple[str, ...]]
"""A flag for ``--draft-params``, its value (True: it has none; None: leave it out), and the
flags of the draft's own that say the same where there are some."""
_FIELDS = {
    "-b": "batch",
    "-ub": "ubatch",
    "-c": "context",
    "--rpc": "rpc",
    "-fa": "flash_attention",
}


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
    """Whether they put every routed expert, and nothing else, into CPU memory."""
    found: set[str] = set()
    for override in overrides:
        pattern, _, where = override.rpartition("=")
        try:
            found |= {name for name in (*_EXPERTS, *_OTHERS) if re.search(pattern, name)}
        except re.error:
            return False
        if where != "CPU":
            return False
    return found == set(_EXPERTS)


def draft_batch(given: ModelArgs, target: ModelArgs, context: int) -> int | None:
    """Tokens of the draft's logical batch; None for its default.

    ik's draft adds every token of a prompt to one batch, and a prompt of more tokens ends the
    server (``common_speculative_state_draft`` of ``common/speculative.cpp``): where the recipe
    names no batch for the draft it gets room for any prompt. Its physical batch stays as it is.
    """
    inherited = target.batch or BATCH
    return given.batch or (context if inherited < context else target.batch)


def _quoted(engine: Engine, word: str) -> str:
    # The engine splits it at blanks and knows double quotes only, with no way to escape one.
    if '"' in word or not word:
        refuse(engine, "draft", word or "an empty word", "--draft-params cannot quote it")
    return f'"{word}"' if " " in word else word
