"""Steps: how fast each tensor type runs here, on a small model, before hours are spent on it.

Some types have no fast kernel on some device (interleaved rows on a GPU, trellis types on an
older processor), and no list of ours would stay true. So the demo's draft is quantized to each
type that the recipe uses and timed with the flags that the drafts will have, once an engine
build and machine, in seconds; a type that takes far longer than its bytes explain is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from cook.engines import tool_runs
from cook.engines.base import Engine, ModelArgs, QuantizeJob, TypeRule
from cook.errors import InputError, StepError
from cook.formats.quant_types import Flavour
from cook.graph.step import Input, JsonValue, Source, Step, Workbench, decode

if TYPE_CHECKING:
    from cook.formats.gguf import GgufFile
    from cook.formats.imatrix_file import Imatrix

N_PROMPT = 64
N_GEN = 24
REPEATS = 7
SLOW = 3.0
"""A type is slow where it takes this many times what the others and its bytes lead to expect."""
_PLAIN = frozenset({"f32", "f16", "bf16"})
# Rows are looked up here, not multiplied, and interleaved types are not written at all.
_KEPT_TYPE = "q8_0"
_KEPT = ("token_embd.weight", "output.weight")


@dataclass(frozen=True)
class TypeTime:
    """Milliseconds a token, and the bytes of the model; None, with the ``reason``, if it failed."""

    type: str
    prompt_ms: float | None
    decode_ms: float | None
    model_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True)
class TypeTimeStep(Step[TypeTime]):
    """The demo's draft with all of its inner tensors in ``tensor_type``, timed with ``args``."""

    engine: Engine
    tensor_type: str
    model: Source
    args: ModelArgs

    kind: ClassVar[str] = "type-time"
    timed: ClassVar[bool] = True
    result_type: ClassVar[type] = TypeTime

    @property
    def label(self) -> str:
        return f"time type {self.tensor_type} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Input]:
        return {"model": self.model}

    def params(self) -> Mapping[str, JsonValue]:
        lengths = {"n_prompt": N_PROMPT, "n_gen": N_GEN, "repeats": REPEATS}
        return {"type": self.tensor_type, "args": asdict(self.args), **lengths}

    def run(self, bench: Workbench) -> TypeTime:
        from cook.engines.llama_bench import prompt_and_decode
        from cook.formats.gguf import read_gguf

        path = bench.directory / f"{self.tensor_type}.gguf"
        try:
            written = quantize_whole(self.engine, self.model.path, path, self.tensor_type, bench)
            size = read_gguf(written).tensor_bytes
            prompt_ms, decode_ms = prompt_and_decode(
                self.engine,
                written,
                self.args,
                bench.supervisor,
                n_prompt=N_PROMPT,
                n_gen=N_GEN,
                repeats=REPEATS,
            )
        except (StepError, InputError) as error:
            if isinstance(error, StepError) and error.passing:
                raise
            # A type that does not run here is what this step is to find out.
            return TypeTime(self.tensor_type, None, None, None, error.message.splitlines()[0])
        finally:
            path.unlink(missing_ok=True)
            (bench.directory / "imatrix").unlink(missing_ok=True)
        return TypeTime(self.tensor_type, prompt_ms, decode_ms, size)


@dataclass(frozen=True)
class TypeSpeeds:
    """Every type's times, and what is told of them."""

    times: tuple[TypeTime, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TypeSpeedStep(Step[TypeSpeeds]):
    """Compares the times of the types that a recipe uses."""

    timings: tuple[TypeTimeStep, ...]

    kind: ClassVar[str] = "type-speed"
    result_type: ClassVar[type] = TypeSpeeds

    @property
    def label(self) -> str:
        return f"compare types ({self.timings[0].engine.name})"

    def inputs(self) -> Mapping[str, Input]:
        return {step.tensor_type: step for step in self.timings}

    def params(self) -> Mapping[str, JsonValue]:
        return {"slow": SLOW}

    def run(self, bench: Workbench) -> TypeSpeeds:
        times = tuple(decode(step, bench.artifact(step)) for step in self.timings)
        return TypeSpeeds(times, told(times))


def type_speed(
    engine: Engine, types: Sequence[str], model: Source, args: ModelArgs
) -> TypeSpeedStep | None:
    """The comparison of ``types`` on ``engine``; None where fewer than two can be compared.

    ``args`` are those that the drafts will have, but for one thread: of a model this small
    several threads mostly wait for each other, and for whatever else runs on the machine.
    """
    args = replace(args, threads=1, threads_batch=None)
    able = engine.capabilities.quant_types
    wanted = [t for t in sorted(set(types)) if t in able and t not in _PLAIN]
    if len(wanted) < 2:
        return None
    return TypeSpeedStep(tuple(TypeTimeStep(engine, t, model, args) for t in wanted))


def told(times: Sequence[TypeTime]) -> tuple[str, ...]:
    """A warning for every type that is slow here, or does not run.

    At best a token takes as long as its weights take to read, at worst as long as any type's
    does; so the time to expect of a type is the larger of the others' median time and their
    median time a byte, times its own bytes. (By bytes alone every small type would look slow,
    by time alone every large one.)
    """
    found = [
        f"{t.type} does not run on this engine and device: {t.reason}" for t in times if t.reason
    ]
    for phase, what in (("decode_ms", "decoding"), ("prompt_ms", "reading prompts")):
        measured = [
            (t.type, float(getattr(t, phase)), t.model_bytes)
            for t in times
            if getattr(t, phase) is not None and t.model_bytes
        ]
        for name, ms, size in measured:
            others = [(other, bytes_) for n, other, bytes_ in measured if n != name]
            if not others:
                continue
            expected = max(
                median(other for other, _ in others),
                median(other / bytes_ for other, bytes_ in others) * size,
            )
            if ms > SLOW * expected:
                found.append(
                    f"{name} is slow here: {what} takes {ms:.3g} ms a token on the demo's draft, "
                    f"{ms / expected:.1f} times what its size and the other types lead to expect"
                )
    return tuple(found)


def quantize_whole(
    engine: Engine, source: Path, output: Path, type_name: str, bench: Workbench
) -> Path:
    """``source`` with every inner tensor in ``type_name``, by llama-quantize; ``output``.

    Importance is 1 everywhere: speed does not depend on it. StepError if the engine fails.
    """
    from cook.formats.gguf import read_gguf
    from cook.formats.imatrix_file import write_dat, write_gguf
    from cook.formats.quant_types import ftype_by_name, stored_type
    from cook.recipe.rules import quantizable

    file = read_gguf(source)
    imatrix = bench.directory / "imatrix"
    write = write_gguf if engine.flavour is Flavour.LLAMA_CPP else write_dat
    write(flat_imatrix(file), imatrix)
    expected = {
        t.name: stored_type(
            t.name, t.shape, _KEPT_TYPE if t.name in _KEPT else type_name, engine.flavour
        )
        for t in file.tensors
        if quantizable(t.name, t.shape, t.type_name, engine.flavour, file.architecture)
    }
    rules = (
        *(TypeRule(f"^{name.replace('.', chr(92) + '.')}$", _KEPT_TYPE) for name in _KEPT),
        TypeRule(".*", type_name),
    )
    job = QuantizeJob(
        source=source,
        output=output,
        ftype=ftype_by_name("Q8_0").name,
        rules=rules,
        imatrix=imatrix,
        threads=bench.threads,
        expected=expected,
        allow_requantize=True,
    )
    tool_runs.quantize(engine, job, bench.supervisor)
    return output


def flat_imatrix(file: GgufFile) -> Imatrix:
    """Importance 1 for every matrix of ``file``."""
    import numpy as np

    from cook.formats.imatrix_file import Imatrix, ImatrixEntry

    entries = {}
    for tensor in file.tensors:
        if len(tensor.shape) > 1:
            experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
            ones = np.ones((experts, tensor.shape[0]), np.float32)
            entries[tensor.name] = ImatrixEntry(ones, np.ones(experts, np.float32))
    return Imatrix(entries, ("flat",), 1, 1, "gguf")
