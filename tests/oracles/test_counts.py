"""Counts that the simulator and the n-gram methods make of committed arrays, step for step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np

from cook.engines.base import DraftSettings
from cook.engines.speculation import DEFAULTS, NgramSettings
from cook.formats.quant_types import Flavour
from cook.scoring.ngram import NgramRequest, NgramServer
from cook.scoring.sampled import expected_run
from cook.scoring.simulate import Positions, Profile, Simulation, simulate
from tests.oracles import arrays
from tests.oracles.freeze import require_frozen

COUNTS = "drafted\taccepted\tcycles\tsteps\tdecodes\tcatch_up\tdigest"
LENGTHS = (0, 1, 2, 3, 5, 8, 12, 16)
SMALL = {"size_n": 3, "size_m": 6, "n_max": 8, "n_min": 1, "min_hits": 1, "min_match": 2}
"""Numbers by which short texts draft, wherever a method has them."""


def counts(runs: Iterable[Simulation]) -> str:
    """Drafted, accepted, cycles, steps, single decodes, catch-up; and a digest of every step."""
    runs = list(runs)
    steps = sha256()
    for run in runs:
        for field in fields(run):
            steps.update(getattr(run, field.name).astype("<i8").tobytes())
    names = ("draft_n", "draft_n_accepted", "cycles", "steps", "decodes", "catch_up")
    sums = (sum(int(np.sum(getattr(run, name))) for run in runs) for name in names)
    return "\t".join((*map(str, sums), steps.hexdigest()[:12]))


def simulated() -> Iterator[str]:
    yield f"profile\tdraft\tn_max\tn_min\tp_min\t{COUNTS}"
    for profile, draft in product(Profile, arrays.DRAFTS):
        replies = arrays.replies(draft)
        for n_max, n_min, p_min in product(LENGTHS, (0, 2), (0.0, 0.3, 0.6, 0.9)):
            setting = DraftSettings(n_max, n_min, p_min)
            runs = [simulate(reply, setting, profile) for reply in replies]
            yield f"{profile}\t{draft}\t{n_max}\t{n_min}\t{p_min}\t{counts(runs)}"


def numbers(flavour: Flavour) -> Iterator[NgramSettings]:
    """Every method of a flavour by its own numbers, and by small ones."""
    for own in DEFAULTS[flavour].values():
        yield own
        small: dict[str, Any] = {n: v for n, v in SMALL.items() if getattr(own, n) is not None}
        yield replace(own, **small)


def drafted_by_ngrams() -> Iterator[str]:
    yield f"flavour\tsettings\tthen n_max\t{COUNTS}"
    seen = arrays.replies("fair")
    for flavour in Flavour:
        for own, n_max in product(numbers(flavour), (None, 4)):
            server = NgramServer(own, flavour)
            runs = []
            for number, (prompt, tokens, reply) in enumerate(arrays.texts()):
                ids, said = np.array(prompt, np.int32), np.array(tokens, np.int32)
                limit, context = len(tokens) + 1, len(prompt) + len(tokens) + 3
                request = NgramRequest(ids, said, reply, arrays.EOG, limit, context)
                if n_max is None:
                    runs.append(server.answer(request))
                    continue
                match = np.resize(seen[number].match, len(tokens))
                ends = np.isin(said, list(arrays.EOG))
                model = Positions(
                    len(prompt), reply, match, eog=ends, n_predict=limit, context=context
                )
                runs.append(server.answer(request, model, DraftSettings(n_max)))
            yield f"{flavour}\t{own}\t{n_max}\t{counts(runs)}"


def expected() -> Iterator[str]:
    yield "draft\tn_max\tdrafted\taccepted\tcycles\tsteps"
    for draft, n_max in product(arrays.DRAFTS, LENGTHS):
        runs = [
            expected_run(reply.confidence[: reply.reply], n_max, reply.n_predict)
            for reply in arrays.replies(draft)
            if reply.confidence is not None
        ]
        names = ("draft_n", "draft_n_accepted", "cycles", "steps")
        sums = [f"{sum(getattr(run, name) for run in runs):.9g}" for name in names]
        yield "\t".join((draft, str(n_max), *sums))


def test_simulated_counts() -> None:
    require_frozen("simulated_counts.tsv", simulated())


def test_ngram_counts() -> None:
    require_frozen("ngram_counts.tsv", drafted_by_ngrams())


def test_expected_counts_of_rejection_sampling() -> None:
    """The confidences of the arrays stand for acceptance probabilities."""
    require_frozen("expected_counts.tsv", expected())
