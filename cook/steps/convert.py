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
from math import prod
from pathlib import Path
from typing import ClassVar

from cook.engines.environment import engine_environment
from cook.engines.process.outcome import Outcome, ProcessResult, ProcessSpec, failure
from cook.errors import CookError, InputError, PrerequisiteError
from cook.files import publish, temporary_beside
from cook.formats.cursor import Cursor
from cook.formats.gguf import GgufFile, read_gguf
from cook.graph.execute import Executor
from cook.graph.step import Cost, JsonValue, Source, Step, Workbench
from cook.graph.store import Store
from cook.output import Mode, Output
from cook.paths import cook_home, free_bytes
from cook.steps.work import MODEL_FILE, Phase
from cook.units import size

SCRIPT = "convert_hf_to_gguf.py"
MARKER = "Model successfully exported to"
BYTES = {"bf16": 2, "f16": 2, "f32": 4}
LEAST_SHARE = 0.5
"""Of the parameters that went in; a vision tower or a draft layer may stay behind, half may not."""
MAX_INDEX_BYTES = 64 << 20
MAX_HEADER_BYTES = 100_000_000
"""Of safetensors: the format's own limit."""
_DESCRIPTIONS = (".json", ".model", ".txt", ".jinja", ".tiktoken")
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
    if named := os.environ.get("COOK_CONVERTER"):
        path = Path(named).expanduser().absolute()
        script = path / SCRIPT if path.is_dir() else path
        if not script.is_file():
            raise InputError(
                f"COOK_CONVERTER: {script}: no such file",
                hint=f"name {SCRIPT} of a llama.cpp checkout, or the checkout",
            )
        return Converter(script, _python(script.parent), outtype)
    folders = [engine_folder, *engine_folder.parents][:5] if engine_folder is not None else []
    checkout = next((folder for folder in folders if (folder / SCRIPT).is_file()), None)
    if checkout is None:
        return None
    return Converter(checkout / SCRIPT, _python(checkout), outtype)


def _python(checkout: Path) -> Path:
    if named := os.environ.get("COOK_CONVERTER_PYTHON"):
        if (found := shutil.which(Path(named).expanduser())) is None:
            raise InputError(f"COOK_CONVERTER_PYTHON: {named}: no such program")
        return Path(found).absolute()
    own = (checkout / venv / "bin" / "python" for venv in (".venv", "venv"))
    usable = next((python for python in own if os.access(python, os.X_OK)), None)
    return usable or Path(shutil.which("python3") or sys.executable)


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
    return (*(own or weights), *(p for p in files if p.name.endswith(_DESCRIPTIONS)))


@dataclass(frozen=True)
class ConvertOutcome:
    """``parameters`` of ``source_parameters`` are in the GGUF."""

    parameters: int
    source_parameters: int
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
        found, wanted = sum(t.elements for t in file.tensors), self._source_parameters
        alike = abs(found - wanted) <= wanted // 100
        more = (
            f"{found} parameters were written and {wanted} were there: some were left out or tied"
        )
        return ConvertOutcome(
            parameters=found,
            source_parameters=wanted,
            command=self._command(Path(self.name), Path(MODEL_FILE)),
            warnings=() if alike else (more,),
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
            env={
                **engine_environment(),
                # The home is an empty one; packages installed with `pip --user` are not there.
                "PYTHONUSERBASE": site.getuserbase(),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
            },
            writes=(output.parent,),
            on_output=on_output,
        )

    def _verified(self, path: Path, result: ProcessResult) -> GgufFile:
        """The GGUF that was written, if it holds what the marker and the weights promise."""

        def silent(message: str) -> CookError:
            return failure(result, Outcome.SILENT_FAILURE, message)

        if MARKER not in result.stderr_tail + result.stdout_tail:
            raise silent(f"it never said {MARKER!r}")
        try:
            file = read_gguf(path)
        except InputError as error:
            raise silent(error.message.replace(str(path), MODEL_FILE)) from None
        found, wanted = sum(t.elements for t in file.tensors), self._source_parameters
        if found < wanted * LEAST_SHARE or not found:
            raise silent(f"{found} of {wanted} parameters are in what it wrote")
        if other := {t.type_name for t in file.tensors} - {"f32", self.converter.outtype}:
            wrote = ", ".join(sorted(other))
            raise silent(f"asked for {self.converter.outtype}, and it wrote {wrote}")
        return file


def parameters(path: Path) -> int:
    """How many numbers a safetensors file holds by its header: a little-endian u64, and a JSON
    object of so many bytes. InputError for a file that is none or is cut short."""
    with Cursor(path, MAX_HEADER_BYTES + 8) as cursor:
        length = cursor.u64("header length")
        if length > MAX_HEADER_BYTES:
            cursor.fail("header length", f"{length} is more than {MAX_HEADER_BYTES}", at=0)
        try:
            header = json.loads(cursor.take(length, "header"))
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            shapes = [entry["shape"] for entry in entries]
            ends = [int(entry["data_offsets"][1]) for entry in entries]
            if any(type(n) is not int or n < 0 for shape in shapes for n in shape):
                raise TypeError
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise InputError(f"{path}: header at byte 8: not a safetensors header") from None
        end = 8 + length + max(ends, default=0)
        if end > cursor.file_bytes:
            raise InputError(f"{path}: needs {end} bytes and the file has {cursor.file_bytes}")
    return sum(prod(shape) for shape in shapes)


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


def _failed(converter: Converter, result: ProcessResult) -> CookError:
    """The error of a failed run; what its log says of the cause comes first."""
    output = result.stderr_tail + result.stdout_tail
    if found := _NO_MODULE.search(output):
        return PrerequisiteError(
            f"{converter.python} has no {found[1]}, which {converter.script} needs",
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
