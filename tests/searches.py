"""A record of a search, made through the real dataclasses, for tests to change."""

from __future__ import annotations

from dataclasses import replace

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.provenance import Machine
from cook.record.record import Interval, Objective
from cook.record.search_record import (
    SEARCH_VERSION,
    AcceptanceLaw,
    AllocationBound,
    CsvAgreement,
    DecodeLaw,
    Effect,
    EvaluatedMix,
    Family,
    Finalist,
    FrontPoint,
    PromptParts,
    ReplayedMix,
    SearchAim,
    SearchedSpan,
    SearchRecord,
    TypeEffect,
)

BPW = {"q8_0": 8.5, "q4_K": 4.5, "q2_K": 2.625}
SPANS = (
    ("attention 0-1", "attention", 0, 1, 200_000, "q4_K", 0.004),
    ("attention 2-3", "attention", 2, 3, 200_000, "q8_0", 0.011),
    ("routed_experts 1-3", "routed_experts", 1, 3, 2_700_000, "q2_K", 0.002),
    ("embeddings", "embeddings", None, None, 500_000, "q4_K", 0.006),
    ("output", "output", None, None, 500_000, "q8_0", 0.034),
)


def about(value: float, half: float) -> Interval:
    return Interval(value - half, value + half, 0.95, "paired bootstrap")


def effect(value: float, half: float) -> Effect:
    return Effect(value, about(value, half))


def replayed(length: float, kld: float, prompts: int = 40, cycles: int = 1200) -> ReplayedMix:
    accepted = round((length - 1) * cycles)
    return ReplayedMix(prompts, 4 * cycles, accepted, cycles, cycles + accepted, kld)


def span(
    name: str,
    group: str,
    first: int | None,
    last: int | None,
    elements: int,
    chosen: str,
    kld: float,
) -> SearchedSpan:
    types = []
    for type_name, bpw in BPW.items():
        less = kld * (8.5 - bpw)
        effects = effect(less / 4, 0.0005), effect(-less, 0.004), effect(-3 * less, 0.012)
        types.append(TypeEffect(type_name, int(elements * bpw / 8), "replay", *effects))
    layers = range(first, last + 1) if first is not None and last is not None else (None,)
    tensors = tuple(
        f"blk.{n}.{group}.weight" if n is not None else f"{group}.weight" for n in layers
    )
    return SearchedSpan(name, group, first, last, tensors, elements, "q8_0", chosen, tuple(types))


def whole() -> SearchedSpan:
    """All attention, before it was split."""
    first = span("attention", "attention", 0, 3, 400_000, "q4_K", 0.014)
    return replace(first, chosen=None, split_into=("attention 0-1", "attention 2-3"))


def finalist(name: str, family: Family, length: float, against: float | None) -> Finalist:
    return Finalist(
        name=name,
        family=family,
        size_bytes=1_900_000,
        types={"q8_0": 4, "q4_K": 3, "q2_K": 9},
        replayed=replayed(length, 0.05),
        acceptance_length=about(length, 0.06),
        against_given=None if against is None else effect(against, 0.02),
        decode_speed=412.0,
        perplexity=4.31,
    )


def search_record() -> SearchRecord:
    """A search that found something."""
    found = {"output": "q8_0", "routed_experts 1-3": "q2_K"}
    front = tuple(
        FrontPoint(
            1_500_000 + 200_000 * n,
            *(0.08 / (n + 1), 2.9 - 0.3 / (n + 1), 450.0 - 12 * n),
            replayed(2.9 - 0.28 / (n + 1), 0.08 / (n + 1)) if n % 3 == 2 else None,
        )
        for n in range(9)
    )
    return SearchRecord(
        schema_version=SEARCH_VERSION,
        cook="0.1.0",
        created="2026-11-22T22:00:00Z",
        command=("cook", "search", "demo", "--size", "1.9MB"),
        machine=Machine("a processor", 2, 8 << 30, "Linux 6", ()),
        engine="bundled",
        identity=EngineIdentity(Flavour.LLAMA_CPP, "b1 (abc)", "abc", "sha256:0"),
        recipe="demo",
        recipe_text="version: 1\n",
        quant="Q4_K_M",
        demo=True,
        target="target.gguf",
        prompts=PromptParts(("c1", "c2"), ("s1", "s2", "s3"), ("v1", "v2", "v3")),
        aim=SearchAim(
            maximize=Objective.ACCEPTANCE_LENGTH,
            max_bytes=1_900_000,
            max_memory_bytes=None,
            floor=None,
            max_evaluations=200,
            max_seconds=None,
            n_max=4,
            confidence=0.95,
            margin=0.01,
        ),
        reference_bytes=4_356_250,
        spans=(whole(), *(span(*row) for row in SPANS)),
        evaluations=(
            EvaluatedMix("reference", "compared with", {}, 4_356_250, replayed(2.9, 0)),
            EvaluatedMix(
                "sensitivity", "alone", {"output": "q2_K"}, 3_989_063, replayed(2.4, 0.2, 20), 0.8
            ),
            EvaluatedMix("candidate", "for 1.9 MB", found, 1_890_000, replayed(2.83, 0.05), 1.1),
        ),
        law=AcceptanceLaw(0.92, 0.5, 0.71, 4, 6, 3, 0.004, 0.007, 0.94),
        decode=DecodeLaw(0.00011, {"q8_0": 1e-10, "q4_K": 1.1e-10}, 1e-10, 8, 3, 0.012, 0.021),
        allocation=AllocationBound(1_900_000, 1_890_000, 0.0512, 0.0511, 0.002),
        front=front,
        finalists=(
            finalist("Q4_K_M", "given", 2.74, None),
            finalist("IQ3_M", "engine", 2.66, -0.08),
            finalist("least KLD", "kld", 2.81, 0.07),
            finalist("found", "found", 2.83, 0.09),
        ),
        best="found",
        verdict="found",
        sentence="found accepts 0.09 tokens a cycle more than Q4_K_M (0.07 to 0.11)",
        found_recipe="version: 1\n",
        csv=CsvAgreement("kld_results.csv", "kld", 12, 3, 9, 0.83),
        warnings=(),
        seconds=183.0,
    )
