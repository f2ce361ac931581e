"""What a ``llama-quantize`` command says: its options, rules, files and base type as a quant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import FTYPES, IK_LLAMA_CPP, LLAMA_CPP, by_name, ftype_by_name
from cook.recipe.foreign.quants import (
    ForeignQuant,
    ForeignRule,
    Notes,
    custom_q,
    only_flavour,
    read_rules,
)
from cook.recipe.foreign.text import ForeignText, Spanned, Unknown, Value, read_foreign

# Options that change no tensor's type.
_HARMLESS = {"--keep-split", "--dry-run", "--partial-requant", "--hide-imatrix"}
_REFUSED = {
    "--leave-output-tensor": "write the source's type as a rule for `output` instead",
    "--include-weights": "a recipe uses all of its imatrix",
    "--exclude-weights": "a recipe uses all of its imatrix",
    "--prune-layers": "write `prune_layers:` into the quant",
    "--override-kv": "write `experts:` into the quant: a recipe changes no other metadata",
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
    "--token-embedding-type": r"^token_embd\.weight$",
    "--output-tensor-type": r"^output\.weight$",
}
VALUED = {"--imatrix", "--custom-q", "--tensor-type", "--tensor-type-file", *_TENSORS}
VALUED |= {"--max-buffer-size"}
BARE = {"--allow-requantize", "--pure", "--leave-output-tensor", "--ignore-imatrix-rules"}
BARE |= {"--repack", "--symmetric-q40", "--slow-iq2ks"} | _HARMLESS
"""Options without a value; every other one has one."""
_USAGE = "it is `llama-quantize [options] IN OUT TYPE [threads]`"
_ALIASES = ("COPY", "Q3_K", "Q4_K", "Q5_K")
# Where two share a number, llama.cpp's comes first.
_NUMBERS = {f.file_type: f.name for f in reversed([*FTYPES.values()]) if f.name not in _ALIASES}


def base_type_of(value: Value) -> str | None:
    """The base type that the word names, by its name in any case or by the engine's number."""
    if not value.known or value.known.upper() == "COPY":
        return None
    if re.fullmatch(r"\d{1,3}", value.known):
        return _NUMBERS.get(int(value.known))
    try:
        return ftype_by_name(value.known).name
    except InputError:
        return None


class QuantizeOptions:
    """The words after ``llama-quantize``, read one by one."""

    def __init__(
        self, source: ForeignText, words: Sequence[Value], offset: int, notes: Notes
    ) -> None:
        self.source, self.words, self.at, self.notes = source, words, source.at(offset), notes
        # Options that only one engine has, by the engine.
        self.flavours: dict[str, Spanned] = {}
        self.rules: list[ForeignRule] = []
        # The other options, each with its value or itself.
        self.given: dict[str, Value] = {}

    def quant(self, name: str) -> ForeignQuant:
        """The quant that the command makes. RecipeError for what no recipe says; faults of rules
        and warnings are in the notes."""
        files = self._options()
        base = self._base_type(files)
        model, output = files[0], files[1] if base_type_of(files[1]) is None else None
        if isinstance(model, Unknown):
            self.notes.warn(self.at, f"the source is not computed: {self._why(model)}")
        rules = (*self._exact_rules(), *self.rules)
        ftype = ftype_by_name(base)
        flavour = next(iter(self.flavours), None) or only_flavour(rules)
        if flavour is None and len(ftype.engines) == 1:
            (flavour,) = ftype.engines
        if flavour and flavour not in ftype.engines:
            raise self._fail(None, f"{flavour} has no base type {base}")
        if rules and ftype.default in ("f32", "f16", "bf16"):
            message = f"with the base type {base} the engine ignores every rule"
            raise self._fail(None, message, "give the base type of a quantized model")
        pure = self.given.get("--pure")
        if pure and flavour == IK_LLAMA_CPP and self.rules:
            message = "ik_llama.cpp ignores every rule under --pure"
            raise self._fail(pure, message, "take --pure out of the script")
        output_name = output.text if output and (output.known or "/" in output.text) else None
        return ForeignQuant(
            name,
            rules,
            self.at,
            type=base,
            flavour=flavour,
            mixture="pure" if pure else "engine",
            imatrix=self._imatrix(),
            source=model.known if model.known.strip() else None,
            output=output_name,
            allow_requantize="--allow-requantize" in self.given,
        )

    def _fail(self, word: Value | None, message: str, hint: str | None = None) -> RecipeError:
        """The error at the word, or at the command."""
        at = self.at if word is None else self.source.at(word.start)
        return RecipeError([at.problem(message, hint=hint)])

    def _not_computed(self, what: str, value: Unknown, hint: str = "") -> RecipeError:
        message = f"{what}: not computed: {self._why(value)}"
        return self._fail(None, message, f"write it as it is into the command{hint}")

    def _why(self, value: Unknown) -> str:
        line = self.source.at(value.start).line
        return value.reason if line == self.at.line else f"{value.reason} (line {line})"

    def _options(self) -> Sequence[Value]:
        """Reads the options; what is left are the files, the base type and the threads."""
        at = 0
        while at < len(self.words):
            word = self.words[at]
            flag = word.known
            if not isinstance(word, Spanned) or not flag.startswith("--"):
                break
            at += 1
            if flag in _REFUSED or _PARTLY.fullmatch(flag):
                why = _REFUSED.get(flag, "the engine heeds it for some base types only")
                raise self._fail(word, f"a recipe cannot say {flag}", why)
            if flag in BARE:
                self.given[flag] = word
            elif flag not in VALUED:
                raise self._fail(word, f"llama-quantize has no option {flag}")
            elif at >= len(self.words):
                raise self._fail(word, f"{flag} without its value")
            else:
                self._valued(word, self.words[at])
                at += 1
        return self.words[at:]

    def _valued(self, flag: Spanned, value: Value) -> None:
        if flag.text in ("--imatrix", "--max-buffer-size"):
            self.given[flag.text] = value
            return
        if isinstance(value, Unknown):
            message = f"what {flag.text} is given is not known without running the script"
            hint = "write it as it is into the command"
            raise self._fail(value, f"{message}: {value.reason}", hint)
        if flag.text in _TENSORS:
            self.given[flag.text] = value
            return
        flavour = IK_LLAMA_CPP if flag.text == "--custom-q" else LLAMA_CPP
        self.flavours.setdefault(flavour, flag)
        if len(self.flavours) > 1:
            first = next(iter(self.flavours.values())).text
            raise self._fail(flag, f"no engine has both {flag.text} and {first}")
        source, text = self.source, value
        if flag.text == "--tensor-type-file":
            try:
                source = read_foreign(Path(source.file).parent / Path(value.text).expanduser())
            except InputError as error:
                raise self._fail(value, error.message, error.hint) from None
            text = source.whole
        if flavour == IK_LLAMA_CPP:
            self.rules += custom_q(source, text, self.notes)
        else:
            self.rules += read_rules(source, text.words(), LLAMA_CPP, self.notes)

    def _exact_rules(self) -> list[ForeignRule]:
        """The options for one tensor: they override every rule, so they come first."""
        found = []
        for flag in (flag for flag in self.given if flag in _TENSORS):
            value = self.given[flag]
            at = self.source.at(value.start)
            try:
                type_name = by_name(value.known).name
            except InputError as error:
                raise self._fail(value, error.message, error.hint) from None
            if IK_LLAMA_CPP in self.flavours and type_name != value.known:
                message = f"ik_llama.cpp ignores {flag} {value.known}"
                hint = f"{type_name} would be heeded"
                self.notes.warn(at, f"{message} (names are case-sensitive)", hint)
                continue
            found.append(ForeignRule(_TENSORS[flag], type_name, at))
        return found

    def _imatrix(self) -> str | None:
        value = self.given.get("--imatrix")
        if not isinstance(value, Unknown):
            return None if value is None else value.text
        # A path that only running would tell is still an imatrix.
        message = f"the imatrix's path is not known ({value.reason}): `imatrix.dat` stands for it"
        self.notes.warn(self.source.at(value.start), message)
        return "imatrix.dat"

    def _base_type(self, files: Sequence[Value]) -> str:
        """Of ``IN [OUT] TYPE [THREADS]``."""
        first = files[0] if files else Spanned()
        for number, word in enumerate(files):
            if not word.known.startswith("-"):
                continue
            if isinstance(first, Unknown) and number <= 2:
                raise self._not_computed("the options", first)
            message = f"llama-quantize takes no option behind the files: {word.known}"
            raise self._fail(word, message, "write it before the files")
        place = next((n for n in (1, 2) if n < len(files) and base_type_of(files[n])), None)
        if place is None:
            raise self._no_base_type(files)
        if isinstance(first, Unknown) and first.optional and files[1].known and place == 2:
            # Where it is nothing, what stands second is the source.
            hint = ", or put it in quotes where it is the source"
            raise self._not_computed("the options or the source", first, hint)
        for number, word in enumerate(files[place + 1 :]):
            if isinstance(word, Spanned) and (number or not word.text.strip().isdecimal()):
                what = "behind the number of threads" if number else "as the number of threads"
                message = f"llama-quantize does not take `{word.text[:60]}` {what}"
                raise self._fail(word, message, _USAGE)
        return base_type_of(files[place]) or ""

    def _no_base_type(self, files: Sequence[Value]) -> RecipeError:
        if any(map(base_type_of, files[3:8])) and isinstance(files[0], Unknown):
            return self._not_computed("the options", files[0])
        unknown = [word for word in files[:3] if isinstance(word, Unknown)]
        if unknown and (len(files) < 3 or isinstance(files[2], Unknown)):
            what = "the base type" if len(files) > 1 else "what the command is given"
            return self._not_computed(what, unknown[-1])
        word = files[min(2, len(files) - 1)].known if files else ""
        if len(files) < 2 or (len(files) < 3 and not re.fullmatch(r"[A-Za-z_-]*\d\w*", word)):
            return self._fail(None, "the command names no base type", _USAGE)
        if word.upper() == "COPY":
            return self._fail(None, "COPY changes no type: there is no quant in it")
        try:
            hint = ftype_by_name(word).name
        except InputError as error:
            hint = error.hint or ""
        return self._fail(None, f"`{word[:60]}` is no base type", hint or None)
