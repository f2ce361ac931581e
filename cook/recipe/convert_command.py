"""What a ``llama-quantize`` command line says, as a quant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cook.errors import InputError
from cook.formats.type_table import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.convert_rules import (
    ForeignRule,
    Notes,
    custom_q,
    distinct_comments,
    override,
    tensor_types,
)
from cook.recipe.convert_shell import Call, Value
from cook.recipe.convert_syntax import Unknown
from cook.recipe.convert_text import Source, Spanned, read_source
from cook.recipe.yaml_tree import Location


@dataclass(frozen=True)
class ForeignQuant:
    """A quant as it was found; None is what was not said.

    ``flavour`` is the engine whose command it is. ``mixture`` is what decides tensors that no
    rule hits; ``model`` is what the file calls the model.
    """

    name: str
    rules: tuple[ForeignRule, ...]
    at: Location
    type: str | None = None
    flavour: str | None = None
    mixture: str = "engine"
    imatrix: str | None = None
    source: str | None = None
    output: str | None = None
    model: str | None = None
    allow_requantize: bool = False


# Flags of llama-quantize that change no tensor's type, with how many words follow them.
_HARMLESS = {
    "--keep-split": 0,
    "--dry-run": 0,
    "--partial-requant": 0,
    "--hide-imatrix": 0,
    "--max-buffer-size": 1,
}
_REFUSED = {
    "--leave-output-tensor": "write the source's type as a rule for `output` instead",
    "--include-weights": "a recipe uses all of its imatrix",
    "--exclude-weights": "a recipe uses all of its imatrix",
    "--prune-layers": "a recipe keeps all layers",
    "--override-kv": "a recipe keeps the model's metadata",
    "--ignore-imatrix-rules": "a recipe never writes a type without the data that it needs",
    "--repack": "use the interleaved types themselves in a rule",
    "--repack-pattern": "use the interleaved types themselves in a rule",
    "--symmetric-q40": "a recipe has no such setting",
    "--slow-iq2ks": "a recipe has no such setting",
    "--extra-output-tensor": "a recipe adds no tensors",
    "--ffn-gate-inp-type": "a recipe leaves the router as it is",
    "--per-layer-token-embedding-type": "write a rule for `per_layer_token_embd`",
}
_PARTLY = re.compile(r"--(?:attn-(?:q|k|v|qkv|output)|ffn-(?:gate|down|up))-type")
_TENSORS = {
    "--token-embedding-type": "token_embd.weight",
    "--output-tensor-type": "output.weight",
}


def is_quantize(value: Value) -> bool:
    """Whether this word is the path of ``llama-quantize``."""
    if not isinstance(value, Spanned):
        return False
    return value.text.rpartition("/")[2] in ("llama-quantize", "llama-quantize.exe")


def quant_of(source: Source, call: Call, name: str, notes: Notes) -> ForeignQuant | None:
    """The quant that the command makes; None where ``notes`` has the errors.

    The command's program is the first word that is ``llama-quantize``: ``numactl``, ``time``
    and such may come before it.
    """
    words = call.words
    first = next(i for i, word in enumerate(words) if is_quantize(word))
    return _Reader(source, words[first + 1 :], source.at(call.offset), name, notes).quant()


class _Reader:
    def __init__(
        self, source: Source, words: Sequence[Value], at: Location, name: str, notes: Notes
    ) -> None:
        self.source, self.words, self.at, self.name, self.notes = source, words, at, name, notes
        self.flavours: dict[str, Spanned] = {}
        self.rules: list[ForeignRule] = []
        self.exact: list[tuple[Spanned, Spanned]] = []
        self.pure: Spanned | None = None
        self.allow_requantize = False
        self.imatrix: str | None = None

    def quant(self) -> ForeignQuant | None:
        before = len(self.notes.problems)
        rest = self._flags()
        if any(p.severity == "error" for p in self.notes.problems[before:]):
            return None
        model, output, base = self._positional(rest)
        if base is None:
            return None
        rules = distinct_comments((*self._exact_rules(), *self.rules))
        flavour = next(iter(self.flavours), None)
        quant = ForeignQuant(
            self.name,
            rules,
            self.at,
            type=base,
            flavour=flavour,
            mixture="pure" if self.pure else "engine",
            imatrix=self.imatrix,
            source=model,
            output=output,
            allow_requantize=self.allow_requantize,
        )
        return self._plausible(quant)

    def _place(self, value: Value) -> Location:
        return self.source.at(value.offset if isinstance(value, Unknown) else value.start)

    def _known(self, value: Value, what: str) -> Spanned | None:
        if isinstance(value, Spanned):
            return value
        at = self.source.at(value.offset)
        self.notes.error(at, f"{what} cannot be told without running the script: {value.reason}")
        return None

    def _flags(self) -> list[Value]:
        """Reads the options; what is left are the files, the base type and the threads."""
        at = 0
        while at < len(self.words):
            word = self.words[at]
            if not isinstance(word, Spanned) or not word.text.startswith("--"):
                return list(self.words[at:])
            at += 1
            flag = word.text
            if flag in _HARMLESS:
                at += _HARMLESS[flag]
            elif flag == "--allow-requantize":
                self.allow_requantize = True
            elif flag == "--pure":
                self.pure = word
            elif flag in _REFUSED or _PARTLY.fullmatch(flag):
                why = _REFUSED.get(flag, "the engine heeds it for some base types only")
                self.notes.error(self._place(word), f"a recipe cannot say {flag}", why)
                return []
            elif flag in ("--imatrix", "--custom-q", "--tensor-type", "--tensor-type-file") or (
                flag in _TENSORS
            ):
                if at >= len(self.words):
                    self.notes.error(self._place(word), f"{flag} without its value")
                    return []
                self._valued(word, self.words[at])
                at += 1
            else:
                self.notes.error(self._place(word), f"llama-quantize has no option {flag}")
                return []
        return []

    def _valued(self, flag: Spanned, value: Value) -> None:
        if flag.text == "--imatrix":
            # A path that only running would tell is still an imatrix.
            self.imatrix = value.text if isinstance(value, Spanned) else self._unnamed(value)
            return
        known = self._known(value, f"what {flag.text} is given")
        if known is None:
            return
        if flag.text == "--custom-q":
            self._engine(IK_LLAMA_CPP, flag)
            self.rules += custom_q(self.source, known, self.notes)
        elif flag.text == "--tensor-type":
            self._engine(LLAMA_CPP, flag)
            self.rules += tensor_types(self.source, known, self.notes)
        elif flag.text == "--tensor-type-file":
            self._engine(LLAMA_CPP, flag)
            self._file(known)
        else:
            self.exact.append((flag, known))

    def _engine(self, flavour: str, flag: Spanned) -> None:
        self.flavours.setdefault(flavour, flag)
        if len(self.flavours) > 1:
            message = (
                f"no engine has both {flag.text} and {next(iter(self.flavours.values())).text}"
            )
            self.notes.error(self._place(flag), message)

    def _file(self, name: Spanned) -> None:
        path = Path(name.text).expanduser()
        if not path.is_absolute():
            path = Path(self.source.file).parent / path
        try:
            listed = read_source(path)
        except InputError as error:
            self.notes.error(self._place(name), error.message, error.hint)
            return
        self.rules += tensor_types(listed, listed.whole, self.notes)

    def _unnamed(self, value: Unknown) -> str:
        at = self.source.at(value.offset)
        message = f"the imatrix's path is not known ({value.reason}): `imatrix.dat` stands for it"
        self.notes.warn(at, message)
        return "imatrix.dat"

    def _exact_rules(self) -> list[ForeignRule]:
        """The flags for one tensor: they override every rule, so they come first."""
        from cook.formats.quant_types import by_name

        found = []
        for flag, value in self.exact:
            at = self._place(value)
            try:
                type_name = by_name(value.text).name
            except InputError as error:
                self.notes.error(at, error.message, error.hint)
                continue
            if IK_LLAMA_CPP in self.flavours and type_name != value.text:
                message = (
                    f"ik_llama.cpp ignores {flag.text} {value.text} (names are case-sensitive)"
                )
                self.notes.warn(at, message, f"{type_name} would be heeded")
                continue
            found.append(override(_TENSORS[flag.text], type_name, at))
        return found

    def _positional(self, rest: Sequence[Value]) -> tuple[str | None, str | None, str | None]:
        """(source, output, base type): ``IN [OUT] TYPE [THREADS]``."""
        types = [i for i, word in enumerate(rest) if i and _base_type(word)]
        if not types or types[0] > 2:
            problem = next((w for w in rest[1:3] if isinstance(w, Unknown)), None)
            at = self._place(problem) if problem is not None else self.at
            why = f": {problem.reason}" if problem is not None else ""
            hint = "it is `llama-quantize [options] IN OUT TYPE [threads]`"
            self.notes.error(at, f"the command names no base type{why}", hint)
            return None, None, None
        place = types[0]
        model, output = rest[0], rest[1] if place == 2 else None
        return _path(model), _path(output), _base_type(rest[place])

    def _plausible(self, quant: ForeignQuant) -> ForeignQuant | None:
        """The quant, unless the engine ignores the rules that it is given."""
        from cook.formats.quant_types import ftype_by_name

        if not quant.rules:
            return quant
        base = ftype_by_name(quant.type or "")
        if base.default in ("f32", "f16", "bf16"):
            message = f"with the base type {base.name} the engine ignores every rule"
            self.notes.error(self.at, message, "give the base type of a quantized model")
            return None
        if self.pure is not None and quant.flavour == IK_LLAMA_CPP and self.rules:
            message = "ik_llama.cpp ignores every rule under --pure"
            self.notes.error(self._place(self.pure), message, "take --pure out of the script")
            return None
        if quant.flavour and quant.flavour not in base.engines:
            message = f"{quant.flavour} has no base type {base.name}"
            self.notes.error(self.at, message)
            return None
        return replace(quant, type=base.name)


def _base_type(value: Value) -> str | None:
    from cook.formats.quant_types import ftype_by_name

    if not isinstance(value, Spanned) or value.text.upper() == "COPY":
        return None
    try:
        return ftype_by_name(value.text).name
    except InputError:
        return None


def _path(value: Value | None) -> str | None:
    return value.text if isinstance(value, Spanned) and value.text.strip() else None
