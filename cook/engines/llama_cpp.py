"""Mainline llama.cpp: its command lines (docs/internals/engines.md has their traps)."""

from __future__ import annotations

from pathlib import Path

from cook.engines.arguments import Arguments, common_server_args, refuse
from cook.engines.base import Engine, QuantizeJob, ServerJob, absolute
from cook.engines.ngram_settings import mainline_flags
from cook.engines.speculation import NGRAMS, unwanted
from cook.errors import InputError
from cook.formats.quant_types import Flavour


class LlamaCpp(Engine):
    """A mainline build, the bundled one included."""

    flavour = Flavour.LLAMA_CPP

    def rule_flags(self, job: QuantizeJob) -> tuple[str, ...]:
        """One ``--tensor-type PATTERN=TYPE`` a rule; the first that matches wins."""
        flags: list[str] = []
        for rule in job.rules:
            # The tool splits at the first "=" and lower-cases the pattern: \S would become \s.
            if "=" in rule.pattern or rule.pattern != rule.pattern.lower():
                raise InputError(
                    f"llama.cpp cannot say the pattern {rule.pattern!r}",
                    hint="it lower-cases patterns and splits them at '='",
                )
            flags += ["--tensor-type", f"{rule.pattern}={rule.type}"]
        return tuple(flags)

    def text_flags(self, tool: str) -> tuple[str, ...]:
        wanted = (
            ("--no-log-prefix", ("--no-log-prefix",)),
            ("--no-log-timestamps", ("--no-log-timestamps",)),
            # --fit may change the context and the placement of layers behind our back.
            ("--fit", ("--fit", "off")),
            # Nothing that cook runs may fetch anything.
            ("--offline", ("--offline",)),
        )
        return tuple(f for flag, words in wanted if self.has_flag(tool, flag) for f in words)

    def imatrix_flags(self) -> tuple[str, ...]:
        if self.has_flag("imatrix", "--output-format"):
            return ("--output-format", "gguf")
        return ()

    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        args = Arguments(self, "server")
        common_server_args(args, job, port, key_file)
        args.add_flag_if_known("--no-log-prefix")
        args.add_flag_if_known("--no-log-timestamps")
        args.add_if_known("--fit", "off")
        args.add_flag_if_known("--offline")
        # Where a build speculates unless told otherwise, --spec-type only adds to that.
        kinds = self.facts.speculators or NGRAMS
        others = unwanted(kinds, job.speculators(self.flavour))
        args.add_if_known("--no-spec-type", ",".join(others))
        if job.draft is not None:
            # The counters of every kind of speculation are told at trace level only.
            args.add_if_known("--verbosity", "4")
            self._draft_args(args, job, job.draft)
        elif job.ngram is not None:
            args.add("--spec-type", ",".join(job.speculators(self.flavour)))
        if job.ngram is not None:
            for flag, number in mainline_flags(job.ngram.of(self.flavour)):
                args.add(flag, number)
        return args.argv(job.target_args.extra)

    def _draft_args(self, args: Arguments, job: ServerJob, draft: Path) -> None:
        given, settings = job.draft_args, job.settings
        args.add_first(("--spec-draft-model", "--model-draft"), absolute(draft))
        # -md alone loads the draft and then ignores it.
        args.add("--spec-type", ",".join(job.speculators(self.flavour)))
        if settings is not None:
            args.add("--spec-draft-n-max", settings.n_max)
            args.add("--spec-draft-n-min", settings.n_min)
            args.add("--spec-draft-p-min", settings.p_min)
        args.add_first(("--spec-draft-ngl", "--n-gpu-layers-draft"), given.n_gpu_layers)
        for override in given.override_tensor:
            args.add_first(("--spec-draft-override-tensor", "--override-tensor-draft"), override)
        args.add_first_flag(("--spec-draft-cpu-moe", "--cpu-moe-draft"), given.cpu_moe)
        args.add_first(("--spec-draft-n-cpu-moe", "--n-cpu-moe-draft"), given.n_cpu_moe)
        devices = ",".join(given.devices) or None
        args.add_first(("--spec-draft-device", "--device-draft"), devices)
        for half in ("k", "v"):
            flags = (f"--spec-draft-type-{half}", f"--cache-type-{half}-draft")
            wanted = getattr(given, f"cache_type_{half}")
            args.add_cache_type(flags, wanted, f"draft's cache_type_{half}")
        args.add_first(("--spec-draft-threads", "--threads-draft"), given.threads)
        batch = ("--spec-draft-threads-batch", "--threads-batch-draft")
        args.add_first(batch, given.threads_batch)
        if job.draft_context is not None:
            refuse(self, "draft", "context", "llama-server gives the draft the target's")
        # llama-server has one setting for both models here; silence would be a lie.
        for name in ("flash_attention", "batch", "ubatch", "rpc"):
            mine, target = getattr(given, name), getattr(job.target_args, name)
            if mine not in (None, ()) and mine != target:
                refuse(self, "draft", name, "llama-server gives the draft the target's")
        for word in given.extra:
            if word.startswith("-") and "draft" not in word:
                refuse(self, "draft", "extra", f"{word} would be the target's")
        args.add_words(given.extra)
