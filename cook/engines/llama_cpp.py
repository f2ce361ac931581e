"""Mainline llama.cpp: its command lines (docs/internals/engines.md has their traps)."""

from __future__ import annotations

from pathlib import Path

from cook.engines.arguments import Arguments, common_server_args, refuse
from cook.engines.base import Engine, QuantizeJob, ServerJob
from cook.engines.options import read_flags
from cook.engines.speculation import NGRAMS, mainline_flags, unwanted
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
        # --fit may change the context and the placement of layers behind our back; and nothing
        # that cook runs may fetch anything.
        wanted = (("--no-log-prefix",), ("--no-log-timestamps",), ("--fit", "off"), ("--offline",))
        return tuple(word for words in wanted if self.has_flag(tool, words[0]) for word in words)

    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        args = Arguments(self, "server")
        common_server_args(args, job, port, key_file)
        args.add_words(self.text_flags("server"))
        # Where a build speculates by default, --spec-type only adds to that.
        others = unwanted(self.facts.speculators or NGRAMS, job.speculators(self.flavour))
        args.add("--no-spec-type", others, if_known=True)
        if job.draft is not None:
            # The counters of every kind of speculation are printed at trace level only.
            args.add("--verbosity", "4", if_known=True)
            self._draft_args(args, job)
        elif job.ngram is not None:
            args.add("--spec-type", job.speculators(self.flavour))
        if job.ngram is not None:
            for flag, number in mainline_flags(job.ngram.of(self.flavour)):
                args.add(flag, number)
        return args.argv(job.target_args.extra)

    def _draft_args(self, args: Arguments, job: ServerJob) -> None:
        given, settings = job.draft_args, job.settings
        args.add(("--spec-draft-model", "--model-draft"), job.draft_file)
        # -md alone loads the draft and then ignores it.
        args.add("--spec-type", job.speculators(self.flavour))
        if settings is not None:
            args.add("--spec-draft-n-max", settings.n_max)
            args.add("--spec-draft-n-min", settings.n_min)
            args.add("--spec-draft-p-min", settings.p_min)
        args.add(("--spec-draft-ngl", "--n-gpu-layers-draft"), given.n_gpu_layers)
        for override in given.override_tensor:
            args.add(("--spec-draft-override-tensor", "--override-tensor-draft"), override)
        args.add(("--spec-draft-cpu-moe", "--cpu-moe-draft"), given.cpu_moe)
        args.add(("--spec-draft-n-cpu-moe", "--n-cpu-moe-draft"), given.n_cpu_moe)
        args.add(("--spec-draft-device", "--device-draft"), given.devices)
        types = {"k": given.cache_type_k, "v": given.cache_type_v}
        args.add_cache_types(("--spec-draft-type-{}", "--cache-type-{}-draft"), types)
        args.add(("--spec-draft-threads", "--threads-draft"), given.threads)
        batch = ("--spec-draft-threads-batch", "--threads-batch-draft")
        args.add(batch, given.threads_batch)
        if job.draft_context is not None:
            refuse(self, "draft", "context", "llama-server gives the draft the target's")
        # llama-server has one setting for both models here; silence would be a lie.
        for name in ("flash_attention", "batch", "ubatch", "rpc"):
            mine, target = getattr(given, name), getattr(job.target_args, name)
            if mine not in (None, ()) and mine != target:
                refuse(self, "draft", name, "llama-server gives the draft the target's")
        read = read_flags(given.extra, [self.flavour])
        spelt = [(flag.flag, flag.option.spellings) for flag in read.flags]
        spelt += [(given.extra[r.index], (given.extra[r.index],)) for r in read.refusals]
        for word, spellings in spelt:
            if not any("draft" in spelling for spelling in spellings):
                refuse(self, "draft", "extra", f"{word} would be the target's")
        args.add_words(given.extra)
