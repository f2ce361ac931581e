"""What the two flavours share: an engine build's facts, its tools, and how they are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from cook.engines import measure, quantize
from cook.engines.arguments import Arguments, place
from cook.engines.base import (
    Capabilities,
    DivergenceJob,
    DivergenceResult,
    EngineIdentity,
    ImatrixJob,
    ImatrixResult,
    ModelArgs,
    PerplexityJob,
    PerplexityResult,
    QuantizeJob,
    QuantizeResult,
    ServerJob,
)
from cook.engines.environment import SYSTEM_CONFIG, engine_environment
from cook.engines.facts import Facts
from cook.engines.process.outcome import ProcessResult, ProcessSpec
from cook.engines.process.supervisor import Supervisor
from cook.errors import PrerequisiteError
from cook.formats.quant_types import Flavour


class Tools(ABC):
    """One engine build, called ``name``; a flavour adds its command lines."""

    flavour: Flavour

    def __init__(self, name: str, facts: Facts) -> None:
        self._name, self._facts = name, facts
        self._identity = EngineIdentity(self.flavour, facts.build, facts.commit, facts.digest)
        self._capabilities = Capabilities(
            quant_types=frozenset(facts.types),
            ftypes=frozenset(facts.ftypes),
            flags={tool: frozenset(flags) for tool, flags in facts.flags.items()},
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}: {self._facts.build} in {self._facts.bin_dir}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def identity(self) -> EngineIdentity:
        return self._identity

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def facts(self) -> Facts:
        """Everything known of the build: files and hashes, directories, type ids."""
        return self._facts

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of this engine here."""
        found: list[str] = []
        if self.flavour is Flavour.LLAMA_CPP and SYSTEM_CONFIG.exists():
            found.append(f"{SYSTEM_CONFIG} changes what the engine's tools do; cook cannot stop it")
        if not self._facts.repack:
            found.append("this machine advertises AMX and refuses it: weight repacking is off")
        return tuple(found)

    @property
    def files(self) -> tuple[Path, ...]:
        """Executables and engine libraries whose bytes the identity covers."""
        folders = [Path(self._facts.bin_dir), *map(Path, self._facts.library_dirs)]
        places = (folder / name for name in self._facts.files for folder in folders)
        return tuple(path for path in places if path.is_file())

    def tool(self, name: str) -> Path:
        """Path of ``llama-<name>``; PrerequisiteError with the mending line when absent."""
        path = Path(self._facts.bin_dir) / f"llama-{name}"
        if name not in self._facts.flags or not path.is_file():
            bundled = self._name == "bundled"
            raise PrerequisiteError(
                f"engine {self._name} has no llama-{name} ({path})",
                hint="`make setup` builds it" if bundled else "build all targets of the engine",
            )
        return path

    def has_flag(self, tool: str, flag: str) -> bool:
        """Whether the help of ``llama-<tool>`` offers ``flag``."""
        return flag in self._capabilities.flags.get(tool, frozenset())

    def environment(self) -> Mapping[str, str]:
        """Scrubbed environment for every tool of this engine."""
        paths = tuple(Path(path) for path in self._facts.library_path)
        return engine_environment(paths, repack=self._facts.repack)

    def run(
        self,
        supervisor: Supervisor,
        argv: tuple[str, ...],
        name: str,
        *,
        writes: tuple[Path, ...] = (),
        on_output: Callable[[str, bytes], None] | None = None,
        timeout_s: float | None = None,
    ) -> ProcessResult:
        """Run one tool to its end; the result is not checked."""
        spec = ProcessSpec(
            argv, name, self.environment(), timeout_s=timeout_s, writes=writes, on_output=on_output
        )
        return supervisor.run(spec)

    def quantize(self, job: QuantizeJob, supervisor: Supervisor) -> QuantizeResult:
        """See cook.engines.quantize.run."""
        return quantize.run(self, job, supervisor)

    def imatrix(self, job: ImatrixJob, supervisor: Supervisor) -> ImatrixResult:
        """See cook.engines.measure.run_imatrix."""
        return measure.run_imatrix(self, job, supervisor)

    def perplexity(self, job: PerplexityJob, supervisor: Supervisor) -> PerplexityResult:
        """See cook.engines.measure.run_perplexity."""
        return measure.run_perplexity(self, job, supervisor)

    def divergence(self, job: DivergenceJob, supervisor: Supervisor) -> DivergenceResult:
        """See cook.engines.measure.run_divergence."""
        return measure.run_divergence(self, job, supervisor)

    def quantize_command(self, job: QuantizeJob) -> tuple[str, ...]:
        """The exact argv that :meth:`quantize` runs, but for its temporary output name."""
        return (
            str(self.tool("quantize")),
            *(("--allow-requantize",) if job.allow_requantize else ()),
            *(("--pure",) if job.pure else ()),
            *(("--imatrix", absolute(job.imatrix)) if job.imatrix else ()),
            *self.rule_flags(job),
            absolute(job.source),
            absolute(job.output),
            job.ftype,
            str(job.threads),
        )

    def imatrix_command(self, job: ImatrixJob) -> tuple[str, ...]:
        """The argv of :meth:`imatrix`."""
        return (
            str(self.tool("imatrix")),
            *("-m", absolute(job.model), "-f", absolute(job.corpus), "-o", absolute(job.output)),
            *("-c", str(job.context), "-t", str(job.threads)),
            *(("--chunks", str(job.chunks)) if job.chunks is not None else ()),
            *(("--process-output",) if job.process_output else ()),
            *self.text_flags("imatrix"),
            *self.imatrix_flags(),
            *job.args,
        )

    def perplexity_command(self, job: PerplexityJob) -> tuple[str, ...]:
        """The argv of :meth:`perplexity`."""
        base = job.save_base
        return (
            str(self.tool("perplexity")),
            *("-m", absolute(job.model), "-f", absolute(job.corpus)),
            *("-c", str(job.context), "-t", str(job.threads)),
            *(("--chunks", str(job.chunks)) if job.chunks is not None else ()),
            *(("--kl-divergence-base", absolute(base)) if base else ()),
            *self.text_flags("perplexity"),
            *job.args,
        )

    def divergence_command(self, job: DivergenceJob) -> tuple[str, ...]:
        """The argv of :meth:`divergence`."""
        return (
            str(self.tool("perplexity")),
            *("-m", absolute(job.model), "--kl-divergence-base", absolute(job.base)),
            *("--kl-divergence", "-c", str(job.context), "-t", str(job.threads)),
            *self.text_flags("perplexity"),
            *job.args,
        )

    def placement(self, tool: str, given: ModelArgs) -> tuple[str, ...]:
        """``given`` as flags of ``llama-<tool>``; PrerequisiteError for one that it lacks."""
        args = Arguments(self, tool)
        place(args, given)
        return args.argv(given.extra)[1:]

    @abstractmethod
    def rule_flags(self, job: QuantizeJob) -> tuple[str, ...]:
        """The job's rules as this flavour's flags; InputError where it cannot say them."""

    @abstractmethod
    def text_flags(self, tool: str) -> tuple[str, ...]:
        """Flags that make output parseable and input untouched."""

    @abstractmethod
    def imatrix_flags(self) -> tuple[str, ...]:
        """Flags that choose the imatrix format."""

    def imatrix_retries(self) -> tuple[tuple[str, ...], ...]:
        """More arguments to try, in order, when collecting an imatrix segfaults."""
        return ()

    @abstractmethod
    def server_command(self, job: ServerJob, port: int, key_file: Path | None) -> tuple[str, ...]:
        """The argv of the server, for running and for the user to copy."""


def absolute(path: Path) -> str:
    # Every tool runs in a working directory of its own.
    return str(path.expanduser().absolute())
