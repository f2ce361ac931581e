"""Step: a safetensors model becomes a GGUF, by the converter of a llama.cpp checkout.

The converter reports success for a folder without weights, writes part of a file before it
fails, and executes Python that it finds next to the weights (ik_llama.cpp's does, unasked). So
it gets a folder with only the files that cook chose, no network and no login, and what it wrote
is read back and compared with what went in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cook.engines.environment import engine_environment
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, failure
from cook.errors import CookError, InputError, PrerequisiteError
from cook.files import publish, temporary_beside
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.safetensors import parameters
from cook.graph.cost import Cost
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.paths import cook_home
from cook.steps.made_model import MODEL_FILE
from cook.steps.phase import Phase

if TYPE_CHECKING:
    from cook.output import Output

SCRIPT = "convert_hf_to_gguf.py"
MARKER = "Model successfully exported to"
BYTES = {"bf16": 2, "f16": 2, "f32": 4}
LEAST_SHARE = 0.5
"""Of the parameters that went in; a vision tower or a draft layer may stay behind, half may not."""
MAX_INDEX_BYTES = 64 << 20
_BESIDE = (".json", ".model", ".txt", ".jinja", ".tiktoken")
_WRITING = re.compile(rb"Writing:\s+(\d{1,3})%")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,80})'")


@dataclass(frozen=True)
class Converter:
    """``script`` run by ``python``; ``outtype`` is ``bf16``, ``f16`` or ``f32``."""

    script: Path
    python: Path
    outtype: str = "bf16"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the script and the Python next to it that it imports."""
        root = self.script.parent
        imported = [*root.glob("conversion/*.py"), *root.glob("gguf-py/gguf/*.py")]
        total = sha256()
        for path in [self.script, *sorted(imported)]:
            content = path.read_bytes()
            total.update(f"{path.relative_to(root)}\0{len(content)}\0".encode() + content)
        return total.hexdigest()


def find_converter(engine_folder: Path | None = None, outtype: str = "bf16") -> Converter | None:
    """The converter of ``COOK_CONVERTER`` (a script or a checkout), else next to the engine.

    ``engine_folder`` is where the engine's tools lie; the checkout is at most four folders up.
    Its Python is ``COOK_CONVERTER_PYTHON``, the checkout's own environment, or ``python3``.
    InputError when ``COOK_CONVERTER`` names nothing; None when there is none to be found.
    """
    named = os.environ.get("COOK_CONVERTER")
    if named:
        path = Path(named).expanduser().absolute()
        script = path / SCRIPT if path.is_dir() else path
        if not script.is_file():
            raise InputError(
                f"COOK_CONVERTER: {script}: no such file",
                hint=f"name {SCRIPT} of a llama.cpp checkout, or the checkout",
            )
        return Converter(script, _python(script.parent), outtype)
    if engine_folder is None:
        return None
    for folder in [engine_folder, *engine_folder.parents][:5]:
        if (folder / SCRIPT).is_file():
            return Converter(folder / SCRIPT, _python(folder), outtype)
    return None


def _python(checkout: Path) -> Path:
    named = os.environ.get("COOK_CONVERTER_PYTHON")
    if named:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise InputError(f"COOK_CONVERTER_PYTHON: {named}: no such program")
        return Path(found).absolute()
    for own in (".venv", "venv"):
        if os.access(checkout / own / "bin" / "python", os.X_OK):
            return checkout / own / "bin" / "python"
    return Path(shutil.which("python3") or sys.executable)


def no_converter(model: str) -> PrerequisiteError:
    """For a model that has to be converted and nothing to do it with."""
    return PrerequisiteError(
        f"{model}: is a safetensors model, and no {SCRIPT} was found to convert it",
        hint="set COOK_CONVERTER to a llama.cpp checkout, or name a BF16 GGUF of this model",
    )


def model_files(folder: Path) -> tuple[Path, ...]:
    """The files of a local safetensors model: the weights first, then what describes them."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    weights = [p for p in files if p.suffix == ".safetensors"]
    own = [p for p in weights if not p.name.startswith("consolidated")]
    return (*(own or weights), *(p for p in files if p.name.endswith(_BESIDE)))


@dataclass(frozen=True)
class ConvertOutcome:
    """``parameters`` of ``source_parameters`` are in the GGUF."""

    tensors: int
    parameters: int
    source_parameters: int
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ConvertStep(Step[ConvertOutcome]):
    """``files`` of the model ``name`` (it goes into the GGUF); artifact ``model.gguf``.

    The converter's own code is in the key. The packages it runs on are not: they read weights
    and copy them, and no version of torch is known to copy them differently.
    """

    name: str
    files: tuple[Source, ...]
    converter: Converter

    kind: ClassVar[str] = "convert"
    phase: ClassVar[str] = Phase.CONVERT

    @property
    def label(self) -> str:
        return f"convert {self.name}"

    def inputs(self) -> Mapping[str, Source]:
        return {source.path.name: source for source in self.files}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "name": self.name,
            "outtype": self.converter.outtype,
            "converter": self.converter.digest,
        }

    def cost(self) -> Cost:
        return Cost(copied_bytes=float(sum(source.size_bytes for source in self.files)))

    def predicted_bytes(self) -> int:
        return self._source_parameters * BYTES[self.converter.outtype]

    @cached_property
    def _source_parameters(self) -> int:
        return sum(parameters(s.path) for s in self.files if s.path.suffix == ".safetensors")

    def run(self, bench: Workbench) -> ConvertOutcome:
        require_whole([source.path for source in self.files])
        output = bench.directory / MODEL_FILE
        home = cook_home()
        home.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="convert-", dir=home) as scratch,
            temporary_beside(output) as partial,
        ):
            folder = Path(scratch) / self.name
            folder.mkdir()
            for source in self.files:
                (folder / source.path.name).symlink_to(source.path)
            result = bench.supervisor.run(self._spec(folder, partial, bench))
            if result.outcome is not Outcome.OK:
                raise _failed(self.converter, result)
            file = self._verified(partial, result)
            publish(partial, output)
        found = sum(tensor.elements for tensor in file.tensors)
        return ConvertOutcome(
            tensors=len(file.tensors),
            parameters=found,
            source_parameters=self._source_parameters,
            seconds=result.seconds,
            peak_rss_bytes=result.peak_rss_bytes,
            command=self._command(Path(self.name), Path(MODEL_FILE)),
            warnings=_parameters_missing(found, self._source_parameters),
        )

    def _command(self, folder: Path, output: Path) -> tuple[str, ...]:
        return (
            *(str(self.converter.python), str(self.converter.script), str(folder)),
            *("--outtype", self.converter.outtype, "--outfile", str(output)),
            *("--model-name", self.name),
        )

    def _spec(self, folder: Path, output: Path, bench: Workbench) -> ProcessSpec:
        def on_output(stream: str, chunk: bytes) -> None:
            if found := _WRITING.findall(chunk):
                bench.advance(int(found[-1]) / 100)

        return ProcessSpec(
            argv=self._command(folder, output),
            name=f"convert-{self.name}",
            env=_environment(),
            writes=(output.parent,),
            on_output=on_output,
        )

    def _verified(self, path: Path, result: ProcessResult) -> GgufFile:
        """The GGUF that was written, if it holds what the marker and the weights promise."""
        if MARKER not in result.stderr_tail + result.stdout_tail:
            raise failure(result, Outcome.SILENT_FAILURE, f"it never said {MARKER!r}")
        try:
            file = read_gguf(path)
        except InputError as error:
            message = error.message.replace(str(path), MODEL_FILE)
            raise failure(result, Outcome.SILENT_FAILURE, message) from None
        found, wanted = sum(t.elements for t in file.tensors), self._source_parameters
        if found < wanted * LEAST_SHARE or not found:
            message = f"{found} of {wanted} parameters are in what it wrote"
            raise failure(result, Outcome.SILENT_FAILURE, message)
        other = sorted({t.type_name for t in file.tensors} - {"f32", self.converter.outtype})
        if other:
            message = f"asked for {self.converter.outtype}, and it wrote {', '.join(other)}"
            raise failure(result, Outcome.SILENT_FAILURE, message)
        return file


def require_whole(files: Sequence[Path]) -> None:
    """InputError unless every file of weights that the model's index names is among ``files``."""
    names = {path.name for path in files}
    for index in (p for p in files if p.name.endswith(".safetensors.index.json")):
        if index.name.startswith("consolidated"):
            continue
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise InputError(f"{index}: larger than {MAX_INDEX_BYTES >> 20} MiB")
        try:
            wanted = {str(v) for v in json.loads(index.read_bytes())["weight_map"].values()}
        except (ValueError, KeyError, AttributeError, TypeError):
            raise InputError(f"{index}: not an index of safetensors") from None
        if lost := sorted(wanted - names):
            raise InputError(
                f"{index.parent}: {lost[0]}: missing ({len(lost)} of {len(wanted)} files are)",
                hint="fetch the model again; what is there is kept",
            )


def convert(step: ConvertStep, output: Output | None, *, run: bool = True) -> Path | None:
    """The converted model, from the store or made now; None when it is not there and may not run.

    Errors: those of the step; PrerequisiteError when the store's disk is too small.
    """
    from cook.graph.execute import Executor
    from cook.graph.store import Store
    from cook.output import Mode, Output
    from cook.paths import free_bytes
    from cook.units import size

    store = Store(cook_home() / "store")
    artifact = store.find(step.kind, step.key)
    if not run:
        return artifact.file(MODEL_FILE) if artifact is not None else None
    if artifact is None:
        needed, free = step.predicted_bytes(), free_bytes(store.root)
        if needed > free:
            raise PrerequisiteError(
                f"{store.root}: {size(needed)} are needed to convert {step.name}, and "
                f"{size(free)} are free",
                hint="free some space (`cook store gc` helps), or set COOK_HOME to a larger disk",
            )
    executor = Executor(store, output or Output(Mode.QUIET), logs=cook_home() / "logs")
    with executor.steps:
        return executor.make(step).file(MODEL_FILE)


def _environment() -> dict[str, str]:
    return {
        **engine_environment(),
        # The home is an empty one; packages installed with `pip --user` are not there.
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _failed(converter: Converter, result: ProcessResult) -> CookError:
    """The error of a failed run; what its log says of the cause comes first."""
    output = result.stderr_tail + result.stdout_tail
    if found := _NO_MODULE.search(output):
        return PrerequisiteError(
            f"{converter.python} lacks {found[1]}, which {converter.script} needs",
            hint=f"pip install -r {converter.script.parent}/requirements.txt into a Python "
            "environment, and name its python in COOK_CONVERTER_PYTHON",
        )
    hint = None
    if "is not supported" in output:
        hint = "a newer llama.cpp may know this architecture: update the checkout"
    elif "pre-tokenizer was not recognized" in output:
        hint = "a newer llama.cpp may know this tokenizer: update the checkout"
    elif "custom code" in output or "trust_remote_code" in output:
        hint = "its tokenizer is Python code, which cook does not run: convert this one yourself"
    return failure(result, hint=hint)


def _parameters_missing(found: int, wanted: int) -> tuple[str, ...]:
    if abs(found - wanted) <= wanted // 100:
        return ()
    return (f"{found} parameters were written and {wanted} were there: some were left out or tied",)
