"""Read a prompt set: a bundled one by name, or a ``.jsonl`` or ``.json`` file of the user's.

One JSON object a line, or a list of them, with ``id``, ``category`` and ``prompt``; ``half`` and
``context`` are optional. A record may be a conversation (``cook/prompts/conversation.py``). Blank
lines are skipped. Anything else that is wrong is an ``InputError`` with the file and the line, and
nothing is loaded.

What the target writes on some of the prompts may tune an imatrix. A draft that was calibrated on
the very text it is scored on would look better than it is. So a prompt calibrates or scores, never
both, and which of the two depends on its id alone: adding or leaving out other prompts moves none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from cook.errors import InputError
from cook.paths import demo_dir, package_dir
from cook.prompts.conversation import as_prompt, is_conversation

Half = Literal["pick", "report"]

BUNDLED: Mapping[str, Path] = {
    "default": package_dir() / "prompts" / "default.jsonl",
    "long": package_dir() / "prompts" / "long.jsonl",
    "demo": demo_dir() / "data" / "prompts.jsonl",
    "demo-calibration": demo_dir() / "data" / "prompts-calibration.jsonl",
}
"""The sets that ship with cook, and their files."""
OWN_SETS = {"demo": "demo-calibration"}
"""Sets that come with prompts of their own for calibration."""
SHARE = 3
"""One prompt in so many calibrates, where a set has none of its own for it."""
HALVES: tuple[Half, Half] = ("pick", "report")
KEYS = frozenset({"id", "category", "prompt", "half", "context"})
REQUIRED = ("id", "category", "prompt")

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_PROMPTS = 100_000
MAX_PROMPT_BYTES = 4 * 1024 * 1024
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class Prompt:
    """One prompt. ``half`` says whether it tunes the pick or reports on it, never both;
    ``earlier``: role and text of the turns before it, in a conversation."""

    id: str
    category: str
    text: str
    half: Half
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> str:
        """All that is said, as one text: a conversation as a JSON list of its turns."""
        if not self.earlier:
            return self.text
        return json.dumps([*self.earlier, ("user", self.text)], ensure_ascii=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns in the form that chat templates take."""
        said = (*self.earlier, ("user", self.text))
        return [{"role": role, "content": content} for role, content in said]

    @property
    def untemplated(self) -> str:
        """The text for a model without a chat template; InputError for a conversation."""
        if self.earlier:
            raise InputError(
                f"prompt {self.id} is a conversation, and no chat template renders it",
                hint="a target whose file has a chat template, without --raw",
            )
        return self.text


@dataclass(frozen=True)
class PromptSet:
    """Prompts in a fixed order.

    ``sha256`` (hex) covers what the prompts say, in this order: two files that differ only in
    white space or key order have the same one, and a selection has one of its own.
    """

    name: str
    prompts: tuple[Prompt, ...]
    sha256: str

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories, each once, in order of first appearance."""
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))


def load_prompts(source: str | Path) -> PromptSet:
    """Load a bundled set ("default", "demo", "demo-calibration") or a ``.jsonl`` file.

    A prompt without ``half`` gets one: within each category such prompts alternate pick, report,
    in the order of their ids, so that the split does not depend on the order of the lines.

    Raises InputError (file:line in the message) for anything that cannot be used: a file that is
    absent, larger than 64 MiB or not UTF-8, a malformed line, an unknown key, an id that
    was used before, an empty prompt or one of more than 4 MiB, more than 100,000 prompts.
    """
    if isinstance(source, str) and source in BUNDLED:
        label, data = source, _read_file(BUNDLED[source])
    else:
        label, data = str(source), _read_file(Path(source))
    rows = list(_rows(label, data))
    if not rows:
        raise InputError(f"{label}:1: no prompt in this file", hint=_EXAMPLE)
    halves: dict[str, Half] = {}
    turns: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: cast(str, row["id"])):
        if "half" not in row:
            turns[row["category"]] += 1
        halves[row["id"]] = row.get("half", HALVES[1 - turns[row["category"]] % 2])
    prompts = tuple(
        Prompt(r["id"], r["category"], r["prompt"], halves[r["id"]], r["earlier"]) for r in rows
    )
    return _prompt_set(Path(label).stem, prompts)


def select(
    prompt_set: PromptSet, limit: int | None = None, categories: Sequence[str] | None = None
) -> PromptSet:
    """Take at most ``limit`` prompts, an equal share of each category.

    Categories take turns, in the order of the set, and within a category the halves take turns,
    until ``limit`` is reached or nothing is left; so shares differ by at most one while a category
    lasts. The result keeps the order of the set. No chance is involved.

    Raises InputError for a category that the set does not have and for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise InputError(f"the limit of prompts must be at least 1, not {limit}")
    known = prompt_set.categories
    unknown = [name for name in categories or () if name not in known]
    if unknown:
        raise InputError(
            f"{prompt_set.name}: no such prompt category: {', '.join(unknown)}",
            hint=f"it has {', '.join(known)}",
        )
    if categories is not None and not categories:
        raise InputError(
            f"{prompt_set.name}: an empty list of categories leaves no prompt",
            hint=f"it has {', '.join(known)}",
        )
    wanted = known if categories is None else [name for name in known if name in categories]
    halves = (
        [[p for p in prompt_set.prompts if (p.category, p.half) == (name, half)] for half in HALVES]
        for name in wanted
    )
    chosen = _round_robin([_round_robin(of_category) for of_category in halves])
    kept = {prompt.id for prompt in (chosen if limit is None else chosen[:limit])}
    prompts = tuple(prompt for prompt in prompt_set.prompts if prompt.id in kept)
    return prompt_set if prompts == prompt_set.prompts else _prompt_set(prompt_set.name, prompts)


def subset(prompt_set: PromptSet, prompts: Sequence[Prompt]) -> PromptSet:
    """``prompts`` of ``prompt_set`` as a set of their own; the order is as given."""
    return _prompt_set(prompt_set.name, tuple(prompts))


def balance_halves(prompts: PromptSet) -> PromptSet:
    """``prompts`` with halves that differ by one prompt at most, over all and in each category
    as nearly as can be.

    Every category's odd prompt, or a small ``limit``, may leave one half larger: then the last
    prompts of the categories that have most to spare go to the other. InputError for a single
    prompt.
    """
    if len(prompts.prompts) < 2:
        raise InputError(
            "replay needs two prompts at least: one half to choose on, one to report",
            hint="give more prompts, or `score: {method: live}`",
        )
    dealt = list(prompts.prompts)
    surplus = Counter(dict.fromkeys(prompts.categories, 0))
    for prompt in dealt:
        surplus[prompt.category] += 1 if prompt.half == "pick" else -1
    sign = 1 if surplus.total() > 0 else -1
    halves: tuple[Half, Half] = ("pick", "report") if sign > 0 else ("report", "pick")
    larger, smaller = halves
    while abs(surplus.total()) > 1:
        category = max(surplus, key=lambda name: sign * surplus[name])
        moved = max(i for i, p in enumerate(dealt) if p.category == category and p.half == larger)
        dealt[moved] = replace(dealt[moved], half=smaller)
        surplus[category] -= 2 * sign
    changed = tuple(dealt)
    return prompts if changed == prompts.prompts else replace(prompts, prompts=changed)


@dataclass(frozen=True)
class Split:
    """Prompts to calibrate on, and those left to score on."""

    calibration: PromptSet
    scoring: PromptSet


def calibrates(prompt_id: str) -> bool:
    """Whether the prompt of this id is kept for calibration, in any set and for ever."""
    digest = hashlib.sha256(f"calibration\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SHARE == 0


def split_for_calibration(source: str | Path, prompts: PromptSet) -> Split:
    """``prompts`` of ``source``, split in two before any limit or choice of categories.

    InputError when one part is empty, or a text is in both.
    """
    if source in OWN_SETS:
        split = Split(load_prompts(OWN_SETS[str(source)]), prompts)
    else:
        kept = [p for p in prompts.prompts if calibrates(p.id)]
        rest = [p for p in prompts.prompts if not calibrates(p.id)]
        if not kept or not rest:
            empty = "calibration" if not kept else "scoring"
            raise InputError(
                f"{prompts.name}: of {len(prompts.prompts)} prompts none is left for {empty} "
                "(imatrix.corpus: trace keeps one in three apart, by its id)",
                hint="give more prompts, or a text as imatrix.corpus",
            )
        split = Split(subset(prompts, kept), subset(prompts, rest))
    require_apart(split.calibration, split.scoring)
    return split


def require_apart(calibration: PromptSet, scoring: PromptSet) -> None:
    """InputError for a prompt text that both sets have."""
    texts = {p.whole.strip(): p.id for p in calibration.prompts}
    for prompt in scoring.prompts:
        if (twin := texts.get(prompt.whole.strip())) is not None:
            raise InputError(
                f"{scoring.name}: prompt {prompt.id} is also calibrated on (as {twin}): its score "
                "would flatter",
                hint="leave one of the two out",
            )


_EXAMPLE = 'a line looks like {"id": "code-01", "category": "code", "prompt": "..."}'


def prompts_file(source: str | Path) -> Path:
    """The file of a bundled set, or the path itself."""
    return source if isinstance(source, Path) else BUNDLED[source]


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():
            reason = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(
                f"{path}: {reason}", hint=f"name a .jsonl file, or one of {', '.join(BUNDLED)}"
            )
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror or "unreadable" if isinstance(error, OSError) else "bad file name"
        raise InputError(f"{str(path)!r}: cannot be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {MAX_FILE_BYTES // 1024**2} MiB")
    return data


def _rows(label: str, data: bytes) -> Iterator[dict[str, Any]]:
    """The objects of the file, checked one by one; every string in them is usable."""
    lines: dict[str, int] = {}
    for number, raw in _records(label, data.removeprefix(b"\xef\xbb\xbf")):
        try:
            row = _parse(raw, len(lines) + 1)
            if row["id"] in lines:
                raise InputError(f"id {row['id']!r} was used before, in line {lines[row['id']]}")
            if len(lines) >= MAX_PROMPTS:
                raise InputError(f"more than {MAX_PROMPTS:,} prompts")
        except InputError as error:
            raise InputError(f"{label}:{number}: {error.message}", hint=error.hint) from None
        lines[row["id"]] = number
        yield row


def _records(label: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each record with the line that it begins in: one a line, or those of a list."""
    if data.lstrip()[:1] == b"[":
        try:
            text = data.decode()
            json.loads(text)  # the whole of it is a list
            decoder, mark = json.JSONDecoder(), re.compile(r"[^\s,]")
            start, line, counted = text.index("[") + 1, 1, 0
            while (found := mark.search(text, start)) is not None and found[0] != "]":
                line, counted = line + text.count("\n", counted, found.start()), found.start()
                _, start = decoder.raw_decode(text, counted)
                yield line, text[counted:start].encode()
            return
        except json.JSONDecodeError as error:
            problem = f"not JSON: {error.msg} at column {error.colno}"
            raise InputError(f"{label}:{error.lineno}: {problem}", hint=_EXAMPLE) from None
        except (UnicodeDecodeError, RecursionError):
            pass  # reported of its line
    # Split on LF only: str.splitlines would also cut at U+2028, which JSON allows in strings.
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if raw.strip():
            yield number, raw


def _parse(raw: bytes, count: int) -> dict[str, Any]:
    """The record ``count`` of a file as a prompt; InputError, without a place."""
    try:
        row = json.loads(raw.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise InputError(f"not UTF-8: byte 0x{byte:02x} at position {error.start + 1}") from None
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at column {error.colno}"
        raise InputError(message, hint=_EXAMPLE) from None
    except RecursionError:
        raise InputError("not a prompt: nested too deeply", hint=_EXAMPLE) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("not a prompt: a number in it is too long", hint=_EXAMPLE) from None
    if not isinstance(row, dict):
        raise InputError("not a JSON object", hint=_EXAMPLE)
    earlier: tuple[tuple[str, str], ...] = ()
    if is_conversation(row):
        row, earlier = as_prompt(row, count)
    missing = [key for key in REQUIRED if key not in row]
    if missing:
        raise InputError(f"no {' and no '.join(repr(key) for key in missing)}", hint=_EXAMPLE)
    unknown = sorted(set(row) - KEYS)
    if unknown:
        raise InputError(f"unknown key {unknown[0]!r}", hint=f"known are {', '.join(sorted(KEYS))}")
    for key, value in row.items():
        if not isinstance(value, str):
            raise InputError(f"{key!r} must be a string")
        _text_bytes(key, value)
        if key != "prompt" and len(value) > MAX_NAME_CHARACTERS:
            raise InputError(f"{key!r} is longer than {MAX_NAME_CHARACTERS} characters")
    if row.get("half", "pick") not in HALVES:
        raise InputError(f"'half' must be pick or report, not {row['half']!r}")
    if row.get("context", "short") not in ("short", "long"):
        raise InputError(f"'context' must be short or long, not {row['context']!r}")
    texts = [row["prompt"], *(text for _, text in earlier)]
    if sum(_text_bytes("prompt", text) for text in texts) > MAX_PROMPT_BYTES:
        raise InputError(f"the prompt is larger than {MAX_PROMPT_BYTES // 1024**2} MiB")
    return {**row, "earlier": earlier}


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f"key {next(k for k in keys if keys.count(k) > 1)!r} is given twice")
    return row


def _text_bytes(key: str, value: str) -> int:
    """How many bytes ``value`` has; InputError for what is no text."""
    if not value.strip():
        raise InputError(f"{key!r} is empty")
    try:
        return len(value.encode("utf-8"))
    except UnicodeEncodeError:
        message = f"{key!r} holds half of a surrogate pair, which is no text"
        raise InputError(message) from None


def _prompt_set(name: str, prompts: tuple[Prompt, ...]) -> PromptSet:
    digest = hashlib.sha256()
    for p in prompts:
        line = json.dumps([p.id, p.category, p.half, p.whole], ensure_ascii=False)
        digest.update(line.encode("utf-8") + b"\n")
    return PromptSet(name, prompts, digest.hexdigest())


def _round_robin(queues: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
