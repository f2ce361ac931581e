"""What a ``llama-quantize`` command says: its options, rules, files and base type as a quant.

The options of both engines, and what a recipe makes of each, are rows of ``quantize_options.tsv``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import FTYPES, IK_LLAMA_CPP, LLAMA_CPP, by_name, ftype_by_name
from cook.recipe.foreign.quants import ForeignQuant, Notes, custom_q, only_flavour, read_rules
from cook.recipe.foreign.text import ForeignText, Spanned, read_foreign
from cook.recipe.rules import Rule


class QuantizeOption(NamedTuple):
    """``effect``: "noted" for the quant or for nothing, "rules" that the engine in ``note`` reads,
    the "tensor" that has that name, or "refused" with what to do instead. ``value``: "yes" or
    "no"."""

    value: str
    effect: str
    note: str


def _options() -> Iterator[tuple[str, QuantizeOption]]:
    _, *rows = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()
    for row in rows:
        option, *columns = row.split("\t")
        yield option, QuantizeOption(*columns)


OPTIONS: Mapping[str, QuantizeOption] = dict(_options())
_USAGE = "it is `llama-quantize [options] IN OUT TYPE [threads]`"
_ALIASES = ("COPY", "Q3_K", "Q4_K", "Q5_K")
# Where two share a number, llama.cpp's comes first.
_NUMBERS = {f.file_type: f.name for f in reversed([*FTYPES.values()]) if f.name not in _ALIASES}


def base_type_of(value: Spanned) -> str | None:
    """The base type that the word names, by its name in any case or by the engine's number."""
    if not value.known or value.known.upper() == "COPY":
        return None
    if re.fullmatch(r"\d{1,3}", value.known):
        return _NUMBERS.get(int(value.known))
    try:
        return ftype_by_name(value.known).name
    except InputError:
        return None


def base_type_in(files: Sequence[Spanned]) -> tuple[int, str]:
    """Which of ``IN [OUT] TYPE`` is the base type, and which it is; (0, "") where none is."""
    named = ((n, base_type_of(word)) for n, word in enumerate(files[:3]) if n)
    return next(((n, base) for n, base in named if base), (0, ""))


@dataclass
class QuantizeOptions:
    """The words after ``llama-quantize``, which stands at ``offset``, read one by one.

    ``flavours`` are the options that only one engine has, by the engine; ``exact_rules`` the types
    by options for one tensor, which override every rule; ``given`` the other options, each with
    its value or itself.
    """

    source: ForeignText
    words: Sequence[Spanned]
    offset: int
    notes: Notes
    flavours: dict[str, Spanned] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    exact_rules: dict[str, Spanned] = field(default_factory=dict)
    given: dict[str, Spanned] = field(default_factory=dict)

    def quant(self, name: str) -> ForeignQuant:
        """The quant that the command makes. RecipeError for what no recipe says; faults of rules
        and warnings are in the notes."""
        files = self._read_options()
        base = self._base_type(files)
        at, (model, output) = self.source.at(self.offset), files[:2]
        if model.unknown:
            self.notes.warn(at, f"the source is not computed: {self._why(model)}")
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
        is_output = base_type_of(output) is None and (output.known or "/" in output.text)
        return ForeignQuant(
            name,
            rules,
            at,
            type=base,
            flavour=flavour,
            mixture="pure" if pure else "engine",
            imatrix=self._imatrix(),
            source=model.known if model.known.strip() else None,
            output=output.text if is_output else None,
            allow_requantize="--allow-requantize" in self.given,
        )

    def _fail(self, word: Spanned | None, message: str, hint: str | None = None) -> RecipeError:
        """The error at the word, or at the command."""
        return self.source.error(self.offset if word is None else word.start, message, hint)

    def _not_computed(self, what: str, value: Spanned, hint: str = "") -> RecipeError:
        message = f"{what}: not computed: {self._why(value)}"
        return self._fail(None, message, f"write it as it is into the command{hint}")

    def _why(self, value: Spanned) -> str:
        line = self.source.at(value.start).line
        here = self.source.at(self.offset).line
        return value.unknown if line == here else f"{value.unknown} (line {line})"

    def _read_options(self) -> Sequence[Spanned]:
        """Reads the options; what is left are the files, the base type and the threads."""
        words = [*reversed(self.words)]
        while words and words[-1].known.startswith("--"):
            flag = words.pop()
            option = OPTIONS.get(flag.text)
            if option is None:
                raise self._fail(flag, f"llama-quantize has no option {flag.text}")
            if option.effect == "refused":
                raise self._fail(flag, f"a recipe cannot say {flag.text}", option.note)
            if option.value == "yes" and not words:
                raise self._fail(flag, f"{flag.text} without its value")
            value = words.pop() if option.value == "yes" else flag
            if option.effect == "noted":
                self.given[flag.text] = value
            elif value.unknown:
                message = f"what {flag.text} is given is not known without running the script"
                hint = "write it as it is into the command"
                raise self._fail(value, f"{message}: {value.unknown}", hint)
            elif option.effect == "tensor":
                self.exact_rules[flag.text] = value
            else:
                self._rules(flag, option.note, value)
        return words[::-1]

    def _rules(self, flag: Spanned, flavour: str, value: Spanned) -> None:
        """Adds the rules of an option that the engine ``flavour`` has."""
        self.flavours.setdefault(flavour, flag)
        if len(self.flavours) > 1:
            first = next(iter(self.flavours.values())).text
            raise self._fail(flag, f"no engine has both {flag.text} and {first}")
        source = self.source
        if flag.text == "--tensor-type-file":
            try:
                source = read_foreign(Path(source.file).parent / Path(value.text).expanduser())
            except InputError as error:
                raise self._fail(value, error.message, error.hint) from None
            value = source.whole
        if flavour == IK_LLAMA_CPP:
            self.rules += custom_q(source, value, self.notes)
        else:
            self.rules += read_rules(source, value.words(), LLAMA_CPP, self.notes)

    def _exact_rules(self) -> Iterator[Rule]:
        """The options for one tensor as rules."""
        for flag, value in self.exact_rules.items():
            at = self.source.at(value.start)
            try:
                type_name = by_name(value.text).name
            except InputError as error:
                raise self._fail(value, error.message, error.hint) from None
            if IK_LLAMA_CPP in self.flavours and type_name != value.text:
                message = f"ik_llama.cpp ignores {flag} {value.text} (names are case-sensitive)"
                self.notes.warn(at, message, f"{type_name} would be heeded")
            else:
                yield Rule(OPTIONS[flag].note, type_name, at=at)

    def _imatrix(self) -> str | None:
        value = self.given.get("--imatrix")
        if value is None or not value.unknown:
            return None if value is None else value.text
        # A path that only running would tell is still an imatrix.
        message = f"the imatrix's path is not known ({value.unknown}): `imatrix.dat` stands for it"
        self.notes.warn(self.source.at(value.start), message)
        return "imatrix.dat"

    def _base_type(self, files: Sequence[Spanned]) -> str:
        """Of ``IN [OUT] TYPE [THREADS]``."""
        first = files[0] if files else Spanned()
        for number, word in enumerate(files):
            if not word.known.startswith("-"):
                continue
            if first.unknown and number <= 2:
                raise self._not_computed("the options", first)
            message = f"llama-quantize takes no option behind the files: {word.known}"
            raise self._fail(word, message, "write it before the files")
        place, base = base_type_in(files)
        if not place:
            raise self._no_base_type(files)
        if first.optional and files[1].known and place == 2:
            # Where it is nothing, what stands second is the source.
            hint = ", or put it in quotes where it is the source"
            raise self._not_computed("the options or the source", first, hint)
        for number, word in enumerate(files[place + 1 :]):
            if not word.unknown and (number or not word.text.strip().isdecimal()):
                what = "behind the number of threads" if number else "as the number of threads"
                message = f"llama-quantize does not take `{word.text[:60]}` {what}"
                raise self._fail(word, message, _USAGE)
        return base

    def _no_base_type(self, files: Sequence[Spanned]) -> RecipeError:
        if any(map(base_type_of, files[3:8])) and files[0].unknown:
            return self._not_computed("the options", files[0])
        unknown = [word for word in files[:3] if word.unknown]
        if unknown and (len(files) < 3 or files[2].unknown):
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
