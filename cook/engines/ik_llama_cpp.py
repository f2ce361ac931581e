"""ik_llama.cpp: its command lines (docs/internals/engines.md has their traps)."""

from __future__ import annotations

from pathlib import Path

from cook.engines.base import Flavour, QuantizeJob, ServerJob
from cook.engines.ik_draft import add_draft_args, without_inherited_overrides
from cook.engines.server_args import Arguments, common_server_args
from cook.engines.tools import Tools
from cook.errors import InputError, PrerequisiteError

# A build without a GPU backend takes these and leaves them out of its help.
_UNLISTED = frozenset({"--n-gpu-layers", "--device", "--n-gpu-layers-draft", "--device-draft"})
# Linux limits one argument to 128 KiB; --custom-q may be repeated.
_CUSTOM_Q_BYTES = 60_000


class IkLlamaCpp(Tools):
    """A build of ik_llama.cpp."""

    flavour = Flavour.IK_LLAMA_CPP

    def has_flag(self, tool: str, flag: str) -> bool:
        """See Tools.has_flag."""
        common_parser = tool in self.capabilities.flags and tool not in ("quantize", "bench")
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

    def imatrix_flags(self) -> tuple[str, ...]:
        return ()

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
        job = self.without_inherited_overrides(job)
        args = Arguments(self, "server")
        common_server_args(args, job, port, key_file)
        self.add_draft(args, job)
        return args.argv(job.target_args.extra)

    def without_inherited_overrides(self, job: ServerJob) -> ServerJob:
        """See cook.engines.ik_draft; PrerequisiteError where RPC is asked of a build without."""
        self._need_rpc(job)
        return without_inherited_overrides(job, cpu_only=self._cpu_only)

    def add_draft(self, args: Arguments, job: ServerJob) -> None:
        """The draft of ``job``, if it has one, with its settings and placement."""
        if job.draft is None:
            return
        args.add_path("--model-draft", job.draft)
        keys, settings = "", job.settings
        if settings is not None:
            p_min = f"{settings.p_min:g}"
            keys = f":n_max={settings.n_max},n_min={settings.n_min},p_min={p_min}"
        # -md alone does not even load the draft.
        args.add("--spec-type", f"draft{keys}")
        add_draft_args(self, args, job)

    @property
    def _cpu_only(self) -> bool:
        """Whether the build offloads to nothing: its help then names no layers for a GPU."""
        return not super().has_flag("server", "-ngl")

    def _need_rpc(self, job: ServerJob) -> None:
        """Raise where RPC is asked of a build that takes ``--rpc`` and ignores it."""
        wanted = (*job.target_args.rpc, *(job.draft_args.rpc if job.draft else ()))
        if wanted and not any(b"ggml_backend_rpc" in path.read_bytes() for path in self.files):
            raise PrerequisiteError(
                f"engine {self.name} was built without RPC and would ignore {wanted[0]}",
                hint="build it with -DGGML_RPC=ON, or leave out rpc",
            )
