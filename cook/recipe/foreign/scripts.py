"""The quants of a script or a model card: the quantizer's commands, under each of its names.

A command that a script holds but that is not computed is an error, never nothing. The options of
both engines, and what a recipe makes of each, are rows of ``quantize_options.tsv``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import FTYPES, IK_LLAMA_CPP, LLAMA_CPP, by_name, ftype_by_name
from cook.recipe.foreign.bash import Call, Shell
from cook.recipe.foreign.quants import (
    ForeignQuant,
    Notes,
    custom_q,
    only_flavour,
    read_rules,
    rule_lines,
    safe_name,
)
from cook.recipe.foreign.text import ForeignText, Spanned, read_foreign
from cook.recipe.rules import Rule

MAX_BLOCKS = 200

_NAMES = re.compile(r"(?:llama-)?quantize(?:\.exe)?")
_LIKE_IT = re.compile(r"[\w-]*quantize[\w-]*(?:\.exe)?", re.IGNORECASE)
_NAMED_SO = re.compile(r"[\"']?\$\{?\w*quant", re.IGNORECASE)
_CONTAINERS = {"docker", "podman", "nerdctl", "apptainer", "singularity"}
_SHELLS = {"bash", "sh", "zsh", "ssh"}
_PRINTING = ("echo", "printf", "cat", "tee")
# Programs that only name the quantizer: they build, copy, look for or talk about it.
_NAMING = re.compile(
    r"echo|printf|ls|\[\[?|test|cmake|make|ninja|cp|mv|ln|rm|chmod|chown|which|type|hash|file|strip"
    r"|git|cat|head|tail|p?grep|p?kill|killall|stat|du|install|mkdir|cd|pushd|wget|curl|tar|unzip"
    r"|zip|apt|apt-get|brew|pip|python3?|tee|rsync|scp|ldd|readlink|realpath|ollama|sed|awk|less"
    r"|more|wc|sort|logger|mail|column|read|mapfile|readarray|tr"
)
_REPEATING = {"xargs", "parallel", "find"}
_TEXT = re.compile(
    r"(?:llama-quantize(?:\.exe)?|/quantize)[\"']?[ \t][^\n]{0,400}?(?:\.gguf|\$|--|\bI?Q\d_)"
)
_PLAIN = re.compile(r"[\w./=:,+@%~\s-]+")
_WINDOWS = re.compile(
    r"(?:^|[\s\"=])([A-Za-z]:\\\w[\w .\\-]*(?:\\|\.gguf)|\.\\\S*quantize|\\\S*quantize\.exe|\s\^$)"
)
_OTHER_LANGUAGES = {
    ".bat": "a Windows batch file",
    ".cmd": "a Windows batch file",
    ".ps1": "a PowerShell script",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".mk": "a makefile",
    "makefile": "a makefile",
    "gnumakefile": "a makefile",
}
_SHELL_BLOCKS = {"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"}
_COMMAND = re.compile(r"quantize\S*\s|^custom=", re.MULTILINE)
_PROMPTED = re.compile(r"(?m)^[ \t]*\$ (?:[^\n]*\\\n)*[^\n]*$")
_FENCE = re.compile(
    r"^[ \t>]*(?P<fence>`{3,}|~{3,})[ \t]*\{?\.?(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<body>(?:(?![ \t>]*(?P=fence))[^\n]*(?:\n|\Z))*)(?:[ \t>]*(?P=fence)[^\n]*)?",
    re.MULTILINE,
)


def read_script(source: ForeignText, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The quants of the script (or of a card's blocks), faults in ``notes``; none where it holds
    no rules at all."""
    _check_language(source)
    shell, quants = Shell(), list[ForeignQuant]()
    for start, part in _blocks(source) if is_card(source) else [(0, source)]:
        try:
            shell.run(part, start)
        except RecipeError:
            # In a card, `-m <your model>` of another command is no fault.
            if start == 0 or "quantize" in part.text[start:]:
                raise
    for call in shell.calls:
        if call.within and call.within.offset in shell.called:
            continue
        try:
            words = _arguments(source, call)
            if words is not None and call.within:
                function = f"`{call.within.name}`, which the script does not call as such"
                hint = "write out the commands that it runs"
                raise source.error(call.offset, f"this command is in {function}", hint)
            if words is not None:
                quants.append(QuantizeOptions(source, words, call.offset, notes).quant(name))
        except RecipeError as error:
            notes.problems += [p for p in error.problems if p not in notes.problems]
    if quants or notes.problems:
        return _named_apart(quants)
    return _block(source, shell, name, notes)


def _block(source: ForeignText, shell: Shell, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The rules of the variable that holds some, of a script without a command."""
    one = {name: values[0] for name, values in shell.variables.items() if values and not values[1:]}
    texts = {name: text for name, text in one.items() if "=" in text.known}
    block = texts.get("custom") or (next(iter(texts.values())) if len(texts) == 1 else None)
    for line in re.finditer(r"[ \t]*([^\s#]\S*).*", source.text):
        named = _NAMING.fullmatch(line[1]) and (block or line[1] not in _PRINTING)
        if _TEXT.search(line[0]) and not named:
            message = "how this llama-quantize command is run is not computed"
            notes.error(source.at(line.start(1)), message, "write it on a line of its own")
    if block is None:
        return ()
    items = (item for line in rule_lines(block) for item in line.rstrip(",").split(","))
    rules = read_rules(source, items, IK_LLAMA_CPP, notes)
    return (ForeignQuant(name, rules, source.at(block.start), flavour=IK_LLAMA_CPP),)


def _named_apart(quants: Sequence[ForeignQuant]) -> tuple[ForeignQuant, ...]:
    """Several commands of one script are called after what they write; one that is there twice
    (a retry, two branches) is one."""
    distinct: dict[object, ForeignQuant] = {}
    for q in quants:
        distinct.setdefault((q.output or q.at, q.type, q.imatrix, q.mixture, q.rules), q)
    if len(distinct) < 2:
        return tuple(distinct.values())
    named, used = [], list[str]()
    for q in distinct.values():
        name = safe_name(Path(q.output).stem if q.output else q.type or q.name)
        used.append(name.lower())
        number = used.count(name.lower())
        named.append(replace(q, name=name if number == 1 else f"{name[:60]}-{number}"))
    return tuple(named)


def is_card(source: ForeignText) -> bool:
    """Whether it is Markdown."""
    fences = re.search(r"^[ \t>]*(?:```|~~~)", source.text, re.MULTILINE)
    named = Path(source.file).suffix.lower()
    return named in (".md", ".markdown") or (named not in (".sh", ".bash") and bool(fences))


def _check_language(source: ForeignText) -> None:
    """RecipeError where it is no bash."""
    path = Path(source.file)
    language = _OTHER_LANGUAGES.get(path.suffix.lower() or path.name.lower())
    if re.match(r"#!.*\bpython", source.text):
        language = "a Python program"
    hint = "write its llama-quantize commands into a bash script, with / in the paths"
    lines = re.finditer(r"(?im)^(?![ \t]*(?:#|rem\b|::)).*quantize.*", source.text)
    if language:
        first = next(lines, None)
        message = f"this is {language}: cook reads bash"
        raise source.error(first.start() if first else 0, message, hint)
    for line in lines:
        if found := _WINDOWS.search(line[0]):
            message = "this is a command of Windows: bash takes its `\\` for something else"
            raise source.error(line.start() + found.start(1), message, hint)


def _blocks(source: ForeignText) -> Iterator[tuple[int, ForeignText]]:
    """The card's shell blocks: where each begins, and a text that ends with it: places stay. Of
    lines with ``$`` prompts only what was typed."""
    blocks = 0
    for block in _FENCE.finditer(source.text):
        language, body = block["language"].lower(), block["body"]
        if language in _SHELL_BLOCKS or (not language and _COMMAND.search(body)):
            blocks += 1
            if blocks > MAX_BLOCKS:
                raise InputError(f"{source.file} has more than {MAX_BLOCKS} shell blocks")
            at, typed = 0, ""
            for found in _PROMPTED.finditer(body):
                typed += re.sub(r"[^\n]", " ", body[at : found.start()])
                typed += found[0].replace("$ ", "  ", 1)
                at = found.end()
            start = block.start("body")
            rest = re.sub(r"[^\n]", " ", body[at:]) if at else body
            yield start, ForeignText(source.file, source.text[:start] + typed + rest)


def _arguments(source: ForeignText, call: Call) -> Sequence[Spanned] | None:
    """What the quantizer is given, where the call is its; RecipeError where it is one that is not
    computed."""
    start = _behind_program(source, call)
    if start is None:
        return _in_text(source, call)
    before, arguments = [word.text for word in call.words[: start - 1]], call.words[start:]
    asks = {word.text for word in arguments} & {"--help", "-h", "--version"}
    names = any(map(_NAMING.fullmatch, before)) or before[:2] == ["command", "-v"]
    if not arguments or asks or names:
        return None
    if repeating := _REPEATING & set(before):
        message = f"what `{repeating.pop()}` gives to llama-quantize is known only when it runs"
        raise source.error(call.offset, message, "write one command for each file and type")
    if "--entrypoint" in before[-1:] or call.words[start - 1].text.startswith("--entrypoint="):
        message = "which words of `--entrypoint` are llama-quantize's is not computed"
        hint = "write the command as it runs inside: llama-quantize [options] IN OUT TYPE"
        raise source.error(call.offset, message, hint)
    return arguments


def _behind_program(source: ForeignText, call: Call) -> int | None:
    """The index of the first word behind the quantizer's name."""
    contained = any(word.text in _CONTAINERS for word in call.words)
    for at, word in enumerate(call.words):
        name, rest = re.split(r"[/\\]", word.text)[-1], call.words[at + 1 :]
        entry = contained and (word.text == "--quantize" or (word.text == "-q" and _fits(rest)))
        unknown = word.unknown and not word.text
        if entry or _NAMES.fullmatch(name):
            return at + 1
        if (unknown or _LIKE_IT.fullmatch(name)) and _fits(rest):
            return at + 1
        if unknown and not at and rest and _NAMED_SO.match(source.text, call.offset):
            return 1
    return None


def _fits(words: Sequence[Spanned]) -> bool:
    """Whether the words are what a quantizer is given: its options, files and a type."""
    at, telling = 0, False
    while at < len(words) and (text := words[at].text).startswith("--"):
        option = OPTIONS.get(text)
        own = option is not None and option.value == "yes" and option.effect != "refused"
        telling = telling or own or text.endswith("-type")
        at += 1 if option and option.value == "no" else 2
    files = words[at : at + 3]
    place, _ = base_type_in(files)
    if place:
        return all(file.unknown or file.text.endswith((".gguf", ".bin")) for file in files[:place])
    return telling and len(files) >= 2


def _in_text(source: ForeignText, call: Call) -> Sequence[Spanned] | None:
    """Of a command that is given to another program as a text."""
    program, *rest = call.words
    name = program.text
    keeps = name in _PRINTING and (
        call.into.endswith((".sh", ".bash"))
        or (call.stdin is not None and bool(call.into or name == "tee"))
    )
    if _NAMING.fullmatch(name) and not keeps:
        return None
    if name == "eval" or (name in _SHELLS and any(word.text == "-c" for word in rest)):
        given = [word for word in rest if not word.text.startswith("-c")]
        if given and all(_PLAIN.fullmatch(word.known) for word in given):
            pieces = [piece for word in given for piece in word.words()]
            return _arguments(source, replace(call, words=pieces)) if pieces else None
    texts, feeding = [word.text for word in call.words if " " in word.text], [call]
    while (piped := feeding[-1].piped) is not None:
        texts += [word.text for word in piped.words]
        feeding.append(piped)
    texts += [one.stdin.text for one in feeding if one.stdin]
    if not any(map(_TEXT.search, texts)):
        return None
    message = f"a llama-quantize command in a text for `{name or '$...'}` is not computed"
    raise source.error(call.offset, message, "write the command itself on a line of its own")


class QuantizeOption(NamedTuple):
    """``effect``: "noted" for the quant or for nothing, "rules" that the engine in ``note`` reads,
    the "tensor" that has that name, or "refused" with what to do instead. ``value``: "yes" or
    "no"."""

    value: str
    effect: str
    note: str


_TABLE = Path(__file__).with_name("quantize_options.tsv").read_text(encoding="utf-8")
OPTIONS: Mapping[str, QuantizeOption] = {
    option: QuantizeOption(*columns)
    for option, *columns in (row.split("\t") for row in _TABLE.splitlines()[1:])
}
"""The options of both engines, and what a recipe makes of each."""
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
