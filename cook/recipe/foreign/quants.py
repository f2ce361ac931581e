"""Quants as the field's files say them: lists of rules, and ``llama-quantize`` commands.

A rule is ``pattern=type``, in one of three formats:

- ``--custom-q`` of ik_llama.cpp: split at commas, then at the first ``=``; case-sensitive
  patterns and types (``parse_custom_quants`` of its ``examples/quantize/quantize.cpp``);
- ``--tensor-type`` and ``--tensor-type-file`` of llama.cpp: split at blanks (the file), then at
  the first ``=``; the pattern is made lower-case, types are taken in any case;
- ``.recipe`` of the GGUF-Tool-Suite: a rule a line, ``#`` begins a comment line.

In all of them the first rule that is found anywhere in a tensor's name decides. A script's
command names its rules, its base type and its files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cook.documents.tree import Location
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, Ftype, ftype_by_name
from cook.recipe.foreign.bash import Unknown
from cook.recipe.foreign.format import Format
from cook.recipe.foreign.scripts import (
    QuantizeCall,
    UnreadCommand,
    base_type_of,
    is_card,
    read_script,
)
from cook.recipe.foreign.shell import Value
from cook.recipe.foreign.text import ForeignText, Spanned, read_foreign

MAX_PROBLEMS = 50


@dataclass(frozen=True)
class ForeignRule:
    """``pattern`` as cook's own patterns read it, ``type`` in its exact spelling.

    ``comments`` are the comment lines before it, without ``#``; None between two of them is an
    empty line.
    """

    pattern: str
    type: str
    at: Location
    comments: tuple[str | None, ...] = ()


@dataclass
class Notes:
    """What was found while converting: errors (told all at once) and warnings."""

    problems: list[Problem] = field(default_factory=list)

    def error(self, at: Location, message: str, hint: str | None = None) -> None:
        self.problems.append(at.problem(message, hint=hint))
        if len(self.problems) >= MAX_PROBLEMS:
            self.check()

    def warn(self, at: Location, message: str, hint: str | None = None) -> None:
        self.problems.append(at.problem(message, hint=hint, severity="warning"))

    def check(self) -> None:
        """RecipeError if there was an error."""
        if any(p.severity == "error" for p in self.problems):
            raise RecipeError(self.problems)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys(p for p in self.problems if p.severity == "warning"))


def custom_q(source: ForeignText, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of one ``--custom-q`` argument."""
    if "\n" in text.text:
        at = source.at(text.origin[text.text.index("\n")])
        hint = "join them with commas: ... | grep -v '^#' | sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'"
        notes.error(at, "the lines of --custom-q are not joined: it splits at commas only", hint)
        return
    for item in text.split(","):
        yield from _rule(source, item, IK_LLAMA_CPP, notes)


def tensor_types(source: ForeignText, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``--tensor-type-file``, or of one ``--tensor-type`` argument."""
    for item in text.words():
        yield from _rule(source, item, LLAMA_CPP, notes)


def rule_lines(source: ForeignText, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``.recipe``: one a line."""
    for line in text.lines():
        item = line.strip()
        if item and not item.text.startswith("#"):
            yield from _rule(source, item, None, notes)


def custom_block(source: ForeignText, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``custom="..."`` block whose lines are not joined yet."""
    for line in text.lines():
        item = line.strip()
        if item and not item.text.startswith("#"):
            yield from custom_q(source, item.rstrip(","), notes)


def _rule(
    source: ForeignText, item: Spanned, flavour: str | None, notes: Notes
) -> Iterator[ForeignRule]:
    at = source.at(item.start)
    pattern, equals, type_text = item.text.partition("=")
    if not equals or not pattern:
        shown = f"`{item.text[:60]}`" if item.text else "nothing between two commas"
        hint = "a rule is `pattern=type`"
        if item.text.startswith("#") and flavour == IK_LLAMA_CPP:
            hint = "the script's filter leaves this comment in; only lines that it drops are safe"
        elif item.text.startswith("#"):
            hint = "a --tensor-type-file has no comments; is this a .recipe (--from recipe)?"
        notes.error(at, f"not a rule: {shown}", hint)
        return
    type_at = source.at(item.origin[len(pattern) + 1]) if type_text else at
    type_name = _type(type_text, type_at, flavour, notes)
    if flavour == LLAMA_CPP and pattern != pattern.lower():
        message = f"llama.cpp makes patterns lower-case: `{pattern[:60]}` is imported so"
        notes.warn(at, message)
        pattern = pattern.lower()
    if not _sound(source, pattern, item, notes) or type_name is None:
        return
    first = not source.line(at.line)[: at.column - 1].strip()
    yield ForeignRule(pattern, type_name, at, comments_before(source, at.line) if first else ())


def _type(text: str, at: Location, flavour: str | None, notes: Notes) -> str | None:
    from cook.formats.quant_types import by_name

    try:
        found = by_name(text)
    except InputError as error:
        notes.error(at, error.message, error.hint)
        return None
    if flavour == IK_LLAMA_CPP and found.name != text:
        message = f"ik_llama.cpp knows no type `{text}`: its names are case-sensitive"
        notes.error(at, message, f"write {found.name}")
        return None
    if flavour is not None and flavour not in found.engines:
        (other,) = found.engines
        message = f"{flavour}, which reads this, has no type {found.name}; {other} has it"
        notes.error(at, message)
        return None
    if not found.quantizable:
        notes.error(at, f"{found.name} is a type of activations: no engine can write it")
        return None
    return found.name


def _sound(source: ForeignText, pattern: str, item: Spanned, notes: Notes) -> bool:
    from pydantic_core import PydanticCustomError

    from cook.recipe.rules import FORCE_PATTERN
    from cook.recipe.schema import check_selector

    try:
        check_selector(FORCE_PATTERN + pattern)
    except PydanticCustomError as error:
        context = error.context or {}
        offset = min(int(context["offset"]) - len(FORCE_PATTERN), len(item) - 1)
        notes.error(source.at(item.origin[max(offset, 0)]), context["text"], context["hint"])
        return False
    return True


def comments_before(source: ForeignText, number: int) -> tuple[str | None, ...]:
    """The comment lines that stand right above line ``number``, empty lines among them."""
    found: list[str | None] = []
    for above in range(number - 1, 0, -1):
        line = source.line(above).strip()
        if line and (not line.startswith("#") or line.startswith("#!")):
            break
        found.append(_printable(line.lstrip("#")) if line else None)
    while found and found[-1] is None:
        found.pop()
    while found and found[0] is None:
        found.pop(0)
    return tuple(reversed(found))


def _printable(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text).rstrip()


def override(name: str, type_name: str, at: Location) -> ForeignRule:
    """A rule for exactly one tensor."""
    return ForeignRule(f"^{re.escape(name)}$".replace("\\_", "_"), type_name, at)


def distinct_comments(rules: Iterable[ForeignRule]) -> tuple[ForeignRule, ...]:
    """``rules`` with each comment at the first of the rules that it stands above."""
    out: list[ForeignRule] = []
    for rule in rules:
        same_line = out and out[-1].at.line == rule.at.line
        out.append(replace(rule, comments=()) if same_line else rule)
    return tuple(out)


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
    "--token-embedding-type": "token_embd.weight",
    "--output-tensor-type": "output.weight",
}


def quant_of(
    source: ForeignText, call: QuantizeCall, name: str, notes: Notes
) -> ForeignQuant | None:
    """The quant that the command makes; None where ``notes`` has the errors."""
    return _QuantizeOptions(source, call.arguments, source.at(call.offset), name, notes).quant()


class _QuantizeOptions:
    """The words after ``llama-quantize``, read one by one."""

    def __init__(
        self, source: ForeignText, words: Sequence[Value], at: Location, name: str, notes: Notes
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
        files = self._files(rest)
        if files is None:
            return None
        model, output, base = files
        rules = distinct_comments((*self._exact_rules(), *self.rules))
        flavour = next(iter(self.flavours), None) or _only(ftype_by_name(base)) or _needs(rules)
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
            listed = read_foreign(path)
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

    def _files(self, rest: Sequence[Value]) -> tuple[str | None, str | None, str] | None:
        """(source, output, base type): ``IN [OUT] TYPE [THREADS]``."""
        place = next((i for i in (1, 2) if i < len(rest) and base_type_of(rest[i])), None)
        option = next((i for i, word in enumerate(rest) if _text(word).startswith("-")), None)
        if option is not None and isinstance(rest[0], Unknown) and option <= 2:
            self._not_computed("the options", rest[0])
            return None
        if option is not None:
            message = f"llama-quantize takes no option behind the files: {_text(rest[option])}"
            self.notes.error(self._place(rest[option]), message, "write it before the files")
            return None
        if place is None:
            self._no_type(rest)
            return None
        for number, word in enumerate(rest[place + 1 :]):
            if isinstance(word, Spanned) and (number or not word.text.strip().isdecimal()):
                what = "behind the number of threads" if number else "as the number of threads"
                message = f"llama-quantize does not take `{word.text[:60]}` {what}"
                self.notes.error(self._place(word), message, _USAGE)
                return None
        if isinstance(rest[0], Unknown):
            self.notes.warn(self.at, f"the source is not computed: {self._why(rest[0])}")
        output = _path(rest[1]) if place == 2 else None
        if place == 2 and isinstance(rest[1], Unknown) and "/" in rest[1].tail:
            output = rest[1].tail
        return _path(rest[0]), output, base_type_of(rest[place]) or ""

    def _no_type(self, rest: Sequence[Value]) -> None:
        late = any(base_type_of(word) for word in rest[3:8])
        if late and isinstance(rest[0], Unknown):
            self._not_computed("the options", rest[0])
            return
        unknown = [word for word in rest[:3] if isinstance(word, Unknown)]
        if unknown and (len(rest) < 3 or isinstance(rest[2], Unknown)):
            what = "the base type" if len(rest) > 1 else "what the command is given"
            self._not_computed(what, unknown[-1])
            return
        word = _text(rest[2] if len(rest) > 2 else rest[-1]) if rest else ""
        if len(rest) < 2 or (len(rest) < 3 and not re.fullmatch(r"[A-Za-z_-]*\d\w*", word)):
            self.notes.error(self.at, "the command names no base type", _USAGE)
        elif word.upper() == "COPY":
            self.notes.error(self.at, "COPY changes no type: there is no quant in it")
        else:
            self.notes.error(self.at, f"`{word[:60]}` is no base type", _hint(word))

    def _not_computed(self, what: str, value: Unknown) -> None:
        hint = "write it as it is into the command"
        self.notes.error(self.at, f"{what}: not computed: {self._why(value)}", hint)

    def _why(self, value: Unknown) -> str:
        line = self.source.at(value.offset).line
        return value.reason if line == self.at.line else f"{value.reason} (line {line})"

    def _plausible(self, quant: ForeignQuant) -> ForeignQuant | None:
        """The quant, unless the engine ignores the rules that it is given."""
        base = ftype_by_name(quant.type or "")
        if quant.flavour and quant.flavour not in base.engines:
            self.notes.error(self.at, f"{quant.flavour} has no base type {base.name}")
            return None
        if not quant.rules:
            return quant
        if base.default in ("f32", "f16", "bf16"):
            message = f"with the base type {base.name} the engine ignores every rule"
            self.notes.error(self.at, message, "give the base type of a quantized model")
            return None
        if self.pure is not None and quant.flavour == IK_LLAMA_CPP and self.rules:
            message = "ik_llama.cpp ignores every rule under --pure"
            self.notes.error(self._place(self.pure), message, "take --pure out of the script")
            return None
        return replace(quant, type=base.name)


_USAGE = "it is `llama-quantize [options] IN OUT TYPE [threads]`"


def _hint(name: str) -> str | None:
    try:
        ftype_by_name(name)
    except InputError as error:
        return error.hint
    return None


def _only(ftype: Ftype) -> str | None:
    """The one engine that has the base type."""
    return next(iter(ftype.engines)) if len(ftype.engines) == 1 else None


def _text(word: Value) -> str:
    return word.text if isinstance(word, Spanned) else ""


def _path(value: Value | None) -> str | None:
    return value.text if isinstance(value, Spanned) and value.text.strip() else None


_HUB = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)", re.ASCII)
_MODEL = re.compile(r"^#+\s*Model name:\s*(\S{1,64})\s*$", re.MULTILINE)
_BASE = re.compile(r"^#+\s*Base type:\s*(\w{1,32})\s*$", re.MULTILINE)


_LOOKS_RUN = re.compile(
    r"llama-quantize|(?:/|^|llama[ \t])quantize\s|\s--quantize\s|^\s*\w+=[\"'$]", re.MULTILINE
)


def read_quants(format: Format, source: ForeignText, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The quants of ``source``, faults in ``notes``; none where it holds no rules at all."""
    return _READERS[format](source, name_of(Path(source.file)), notes)


def format_of(path: Path, text: str) -> Format:
    """What the file is, by its name, else by what it looks like."""
    if path.suffix == ".recipe":
        return Format.RECIPE
    if path.suffix in (".sh", ".bash", ".bat", ".cmd", ".ps1") or text.startswith("#!"):
        return Format.SCRIPT
    if is_card(ForeignText(str(path), text)) or _LOOKS_RUN.search(text):
        return Format.SCRIPT
    if re.search(r"^\s*#", text, re.MULTILINE):
        return Format.RECIPE
    words = text.split()
    if len(words) == 1 and re.search(r"=[A-Za-z0-9_]+,", words[0]):
        return Format.CUSTOM_Q
    return Format.TENSOR_TYPE_FILE


def _script(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    shell, found = read_script(source)
    quants: list[ForeignQuant] = []
    for one in found:
        if isinstance(one, UnreadCommand):
            notes.error(source.at(one.offset), one.message, one.hint)
        elif (quant := quant_of(source, one, name, notes)) is not None:
            quants.append(quant)
    if found:
        return _named_apart(quants)
    # Only the block: its rules are those of the variable that holds them.
    blocks = {k: v for k, v in shell.variables.items() if isinstance(v, Spanned) and "=" in v.text}
    block = blocks.get("custom") or (next(iter(blocks.values())) if len(blocks) == 1 else None)
    if block is None:
        return ()
    rules = distinct_comments(custom_block(source, block, notes))
    return (ForeignQuant(name, rules, source.at(block.start), flavour=IK_LLAMA_CPP),)


def _custom_q(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(custom_q(source, source.whole.strip(), notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=IK_LLAMA_CPP),)


def _recipe(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(rule_lines(source, source.whole, notes))
    base = _BASE.search(source.text)
    found, model = _HUB.search(source.text), _MODEL.search(source.text)
    # The suite's files are called MODEL.AUTHOR-SIZE...: the quant's name need not repeat it.
    short = name_of(Path(source.file)) if model is None else Path(source.file).stem
    return (
        ForeignQuant(
            safe_name(short.removeprefix(f"{model[1]}.")) if model else short,
            rules,
            source.at(0),
            base[1] if base else None,
            _needs(rules),
            source=f"hf://{found[1]}" if found else None,
            model=model[1] if model else None,
        ),
    )


def _tensor_types(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(tensor_types(source, source.whole, notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=LLAMA_CPP),)


_READERS = {
    Format.SCRIPT: _script,
    Format.CUSTOM_Q: _custom_q,
    Format.RECIPE: _recipe,
    Format.TENSOR_TYPE_FILE: _tensor_types,
}


def _needs(rules: Sequence[ForeignRule]) -> str | None:
    """The engine that the types need, if only one has them."""
    from cook.formats.quant_types import by_name

    for flavour in (IK_LLAMA_CPP, LLAMA_CPP):
        if any(by_name(rule.type).engines == {flavour} for rule in rules):
            return flavour
    return None


def _named_apart(quants: Sequence[ForeignQuant]) -> tuple[ForeignQuant, ...]:
    """Several commands of one script are called after what they write; one that is there twice
    (a retry, two branches) is one."""
    distinct = {
        (
            q.output or q.at,
            q.type,
            q.imatrix,
            q.mixture,
            tuple((r.pattern, r.type) for r in q.rules),
        ): q
        for q in reversed(quants)
    }
    quants = list(reversed(distinct.values()))
    if len(quants) < 2:
        return tuple(quants)
    named, used = [], Counter[str]()
    for quant in quants:
        name = (
            safe_name(Path(quant.output).stem)
            if quant.output
            else safe_name(quant.type or quant.name)
        )
        used[name.lower()] += 1
        number = used[name.lower()]
        named.append(replace(quant, name=name if number == 1 else f"{name[:60]}-{number}"))
    return tuple(named)


def name_of(path: Path) -> str:
    """A name from the file's: ``make-quant-IQ1_KT.sh`` is IQ1_KT."""
    stem = re.sub(r"\.(sh|bash|recipe|txt)$", "", path.name)
    return safe_name(re.sub(r"^(?:make[-_])?quant(?:ize)?[-_]", "", stem) or stem)


def safe_name(text: str) -> str:
    """``text`` as a name: no characters that names lack, at most 64, cut where a part ends."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-") or "imported"
    if len(name) > 64:
        name = re.sub(r"[._+-][^._+-]*$", "", name[:65]) if re.search(r"[._+-]", name) else name
    return name[:64].rstrip("._+-") or "imported"
