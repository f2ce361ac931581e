"""Options and recipe keys that cook no longer has, each with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PER_PROMPT = "`cook report --list --json` gives the record's path; its `candidates` hold {}"
_AGAIN = "run `cook predict` a second time with"
_IN_A_RECIPE = "write `score: {{{}}}` in a recipe, and name it with --recipe"
_FLASH = "the engine decides; in a recipe it is `score: {target: {args: {flash_attention: true}}}`"
OPTIONS: Mapping[tuple[str, str], str] = {
    ("report", "--as"): _PER_PROMPT.format("speed and acceptance of each prompt"),
    ("report", "--candidate"): _PER_PROMPT.format("the figures of every one"),
    ("report", "--acceptance-csv"): (
        "the record (its path: `cook report --list --json`) holds the counts in `replayed`; "
        "`cook search` allocates types itself, also `--from-csv`"
    ),
    ("report", "--reference"): "the counts of every replay are in the record, in `replayed`",
    ("predict", "--over-http"): (
        "drafts are replayed by cook's worker, which needs the engine's headers; without them "
        "`cook score --method live` runs drafts on the real server"
    ),
    ("predict", "--acceptance-to"): f"{_AGAIN} that acceptance: --acceptance",
    ("predict", "--seen"): (
        "compare that speed with the predicted one; `cook score --url` measures a running server"
    ),
    ("predict", "--lower-trace"): f"{_AGAIN} that quant's trace and times",
    ("predict", "--lower-target"): f"{_AGAIN} that quant: its trace, and --target",
    ("predict", "--lower-target-ms"): f"{_AGAIN} that quant's time: --target-ms",
    ("predict", "--lower-verify"): f"{_AGAIN} that quant's times: --verify",
    ("predict", "--lower-acceptance"): f"{_AGAIN} that quant's acceptance: --acceptance",
    ("trace", "--top"): "64 candidates of each token are stored: leave it out",
    ("trace", "--flash-attention"): _FLASH,
    ("trace", "--no-flash-attention"): _FLASH,
    ("recipes import", "--name"): "change `name` in the recipe that it writes",
    ("score", "--seed"): _IN_A_RECIPE.format("sampling: {seed: 1}"),
    ("score", "--target-cache-type"): _IN_A_RECIPE.format(
        "target: {args: {cache_type_k: q8_0, cache_type_v: q8_0}}"
    ),
    ("score", "--live"): "live runs always go through llama-server: leave it out",
}
"""(command, option) -> hint."""
KEYS: Mapping[tuple[str, ...], str] = {
    ("gates", "false_alarms"): (
        "write `confidence`: 1 minus that share, of each cell (0.99 is the default)"
    ),
    ("score", "live"): "live runs always go through llama-server: leave it out",
}
"""Path in the document, without places in lists -> hint."""


def removed_option(command: str, option: str) -> str | None:
    """What to use instead of ``option`` of ``cook command``; None if there was none."""
    return OPTIONS.get((command, option))


def removed_key(keys: Sequence[str | int]) -> str | None:
    """What to use instead of the key at the end of the path ``keys``; None if there was none."""
    return KEYS.get(tuple(key for key in keys if isinstance(key, str)))
