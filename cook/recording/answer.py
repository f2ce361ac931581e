"""A trace's reply from what a stock ``llama-server`` answers (no worker at hand, or a remote one).

Drafting must be off while recording: with a draft loaded mainline reports log-probability 0 for
every drafted token (#27972). Probabilities may be fewer than tokens, because entries are left out
while the text ends inside a UTF-8 character: they are joined on token ids, and what cannot be
told apart is marked as a hole (docs/internals/scoring.md#holes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cook.errors import InputError
from cook.formats.trace import Reply
from cook.formats.trace_schema import ReplyHead
from cook.recording.chain import chain_logp

if TYPE_CHECKING:
    from cook.engines.client import Completion, TokenProbability
    from cook.formats.trace_schema import Sampler
    from cook.prompts.load import Half

_STOPS = {"eos": "eog", "limit": "limit", "word": "word"}


def align(tokens: Sequence[int], entries: Sequence[int | None]) -> list[int | None]:
    """For each token the entry that is its own, or None.

    ``entries`` are ids of a subsequence of ``tokens``. Where the leftmost and the rightmost way
    to fit them differ, the token's entry is not known. All None if they do not fit at all.
    """
    left = _fit(tokens, entries)
    reverse = _fit(list(reversed(tokens)), list(reversed(entries)))
    if left is None or reverse is None:
        return [None] * len(tokens)
    n, m = len(tokens), len(entries)
    first = dict(enumerate(left))
    last = {m - 1 - entry: n - 1 - at for entry, at in enumerate(reverse)}
    found: list[int | None] = [None] * n
    for entry, at in first.items():
        if last[entry] == at:
            found[at] = entry
    return found


def _fit(tokens: Sequence[int], entries: Sequence[int | None]) -> list[int] | None:
    """Position of each entry, as early as possible."""
    places, at = [], 0
    for entry in entries:
        while at < len(tokens) and tokens[at] != entry:
            at += 1
        if at == len(tokens):
            return None
        places.append(at)
        at += 1
    return places


def reply_of_completion(
    completion: Completion,
    prompt: Sequence[int],
    *,
    name: str,
    category: str,
    top: int,
    sampler: Sampler,
    half: Half | None = None,
    rendered_sha256: str = "",
) -> Reply:
    """The trace's reply from a server's answer to token ids with ``n_probs`` = ``top``.

    A server tells raw log-probabilities, so log-sum-exp is 0 (they are normalised already); those
    under the sampling chain follow from the stored candidates (:func:`chain_logp`). InputError
    when the server returned no token ids.
    """
    if completion.tokens is None:
        raise InputError(
            f"prompt {name}: this server returns no token ids",
            hint="record with llama-server of mainline, or with cook's own worker",
        )
    tokens = np.array(completion.tokens, np.int32)
    n = len(tokens)
    logp, margin = np.zeros(n, np.float32), np.zeros(n, np.float32)
    ids, values = np.full((n, top), -1, np.int32), np.full((n, top), -1e4, np.float32)
    entries = [p.chosen.id for p in completion.probabilities]
    known = np.zeros(n, np.bool_)
    for at, entry in enumerate(align(completion.tokens, entries)):
        if entry is None:
            continue
        known[at] = True
        one = completion.probabilities[entry]
        logp[at] = one.chosen.logprob
        _fill(one, ids[at], values[at])
        if top > 1:
            margin[at] = values[at, 0] - values[at, 1]
    return Reply(
        head=ReplyHead(
            id=name,
            category=category,
            half=half,
            rendered_sha256=rendered_sha256,
            seed=sampler.seed,
            stop=_STOPS.get(completion.stop, "context"),
            prompt_tokens=len(prompt),
            tokens=n,
            emitted=n,
        ),
        prompt=np.array(prompt, np.int32),
        tokens=tokens,
        known=known,
        logp=logp,
        chain_logp=chain_logp(sampler, tokens, logp, ids, values),
        logsumexp=np.zeros(n, np.float32),
        margin=margin,
        top_ids=ids,
        top_logp=values,
    )


def _fill(
    one: TokenProbability,
    ids: np.ndarray[tuple[int], np.dtype[np.int32]],
    values: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> None:
    for k, candidate in enumerate(one.top[: len(ids)]):
        if candidate.id is not None and np.isfinite(candidate.logprob):
            ids[k], values[k] = candidate.id, candidate.logprob
