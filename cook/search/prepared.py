"""What a search is asked for, and what it has to work with once the recipe is prepared."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cook.engines.base import DraftSettings
from cook.engines.mixture import mixture_types
from cook.errors import InputError, StepError
from cook.formats.gguf import header
from cook.formats.quant_types import by_name, bytes_as, ftype_by_name, needs_imatrix
from cook.job.layout import DraftPlan, Layout
from cook.job.locate import ModelFile
from cook.job.prepare import Prepared
from cook.record.record import Objective
from cook.search.evaluate import BASE, Budget, Deployed
from cook.search.space import LADDERS, Space
from cook.steps.quantize import QuantizeStep
from cook.units import short_size

EVALUATIONS = 120
"""The budget where none is given."""
MORE_HEADER = 4096
"""Bytes that a quantized file's header has over its source's, at most."""


@dataclass(frozen=True)
class SearchRequest:
    """What a command line asks for. ``floor``: the least type of small groups; ``types`` to choose
    from, () for the engine's ladder and those of the recipe's quants."""

    recipe: Path
    size_bytes: int
    output: Path
    maximize: Objective = Objective.ACCEPTANCE_LENGTH
    memory_bytes: int | None = None
    floor: str | None = None
    types: tuple[str, ...] = ()
    from_csv: Path | None = None
    budget: Budget = field(default_factory=lambda: Budget(EVALUATIONS))
    engine: str | None = None
    demo: bool = False
    jobs: int = 1
    threads: int | None = None
    unsafe_args: bool = False
    replaces: bool = False
    """Whether an output that exists may go."""


@dataclass(frozen=True, eq=False)
class PreparedSearch:
    """A prepared search. ``drafts`` are the recipe's own quants; ``prompts`` (ids) those that the
    search sees, ``verdict`` those of the final."""

    request: SearchRequest
    prepared: Prepared
    layout: Layout
    drafts: tuple[DraftPlan, ...]
    deployed: Deployed
    prompts: tuple[str, ...]
    verdict: tuple[str, ...]

    @classmethod
    def of(cls, request: SearchRequest, prepared: Prepared) -> PreparedSearch:
        """InputError where the recipe does not say what a search needs."""
        layout = prepared.layouts[0]
        models = (d for d in layout.drafts if d.quantize is not None and d.head is None)
        whole = (d for d in models if d.reduction is None)
        drafts = tuple({d.model.key: d for d in whole}.values())  # once, whatever its contexts
        if not drafts:
            raise InputError(
                f"{prepared.loaded.path}: has no quant to search from",
                hint="a model and a quant such as {name: Q4_K_M, type: Q4_K_M}",
            )
        if layout.forecast is None or layout.prompts is None:
            raise InputError(
                f"{prepared.loaded.path}: a search replays drafts, so it needs a target to draft "
                "for",
                hint="score: {target: {source: TARGET.gguf}, prompts: default}",
            )
        plan = layout.forecast
        making = drafts[0].quantize
        assert making is not None, "chosen above"
        replay = plan.drafts[0].replay
        lengths = sorted({settings.n_max for settings in plan.settings})
        deployed = Deployed(
            engine=layout.engine,
            file=header(making.source.path),
            source=making.source,
            imatrix=next(
                (d.quantize.imatrix for d in drafts if d.quantize and d.quantize.imatrix), None
            ),
            allow_requantize=making.allow_requantize,
            trace=plan.trace,
            args=replay.args,
            settings=DraftSettings(lengths[len(lengths) // 2]),
            profile=plan.profile,
            n_predict=plan.n_predict,
            context=plan.context,
        )
        seen, verdict = (
            tuple(p.id for p in layout.prompts.prompts if p.half == half)
            for half in ("pick", "report")
        )
        return cls(request, prepared, layout, drafts, deployed, seen, verdict)

    @property
    def model(self) -> ModelFile:
        return ModelFile(self.deployed.source, self.deployed.file)

    @cached_property
    def space(self) -> Space:
        """Of the types asked for, or the engine's ladder, and those of the recipe's quants."""
        flavour, has = self.layout.engine.flavour, self.layout.engine.facts.types
        asked = [by_name(t).name for t in self.request.types]
        if missing := [t for t in asked if t not in has]:
            raise InputError(f"{self.layout.engine.name} has no {', '.join(missing)}")
        own = {
            t
            for d in self.drafts
            if d.quantize is not None
            for _, t in d.quantize.expected
            if by_name(t).quantizable and by_name(t).bpw < 16
        }
        types = asked or [t for t in (*LADDERS[flavour], *own) if t in has]
        return Space.of(
            self.deployed.file,
            flavour,
            dict.fromkeys(types),
            imatrix=self.deployed.imatrix is not None,
            floor=self.request.floor,
            header_bytes=self.deployed.file.data_offset + MORE_HEADER,
        )

    @property
    def found_name(self) -> str:
        """What the mix that is found is called."""
        size_text = short_size(self.request.size_bytes) or ""
        name = f"SEARCHED-{size_text.replace(' ', '')}"
        taken = {quant.name for quant in self.prepared.loaded.quants}
        again = (f"{name}-{number}" for number in itertools.count(2))
        return name if name not in taken else next(n for n in again if n not in taken)

    def size_of(self, types: Mapping[str, str]) -> int:
        """Of a file of these types."""
        return self.space.fixed_bytes + sum(
            bytes_as(types[t.name], t.shape) for tie in self.space.ties for t in tie.tensors
        )

    def given(self) -> Iterator[tuple[DraftPlan, Mapping[str, str]]]:
        """The recipe's quants, those whose types are known before they are made."""
        for draft in self.drafts:
            assert draft.quantize is not None, "chosen so"
            types = dict(draft.quantize.expected)
            if all(t.name in types for tie in self.space.ties for t in tie.tensors):
                yield draft, types

    def mixtures(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """The engine's own mixtures, those that it would make with the imatrix that there is."""
        engine, deployed = self.layout.engine, self.deployed
        covered = deployed.imatrix is not None
        for name in sorted(engine.facts.ftypes):
            base = ftype_by_name(name)
            if base.default in ("f32", "f16", "bf16") or name == "COPY":
                continue
            step = QuantizeStep(
                *(engine, name, deployed.source, deployed.imatrix, name, (), (), None),
                allow_requantize=deployed.allow_requantize,
            )
            job = step.job(Path("unused"), Path("imatrix") if covered else None, 1)
            try:
                types = mixture_types(engine, job, deployed.source.key)
            except StepError:
                continue  # this base type needs an imatrix, and there is none
            if not covered and any(
                needs_imatrix(tensor, type_name, BASE, engine.flavour)
                for tensor, type_name in types.items()
            ):
                continue
            yield name, types


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMGT]?)(i?)B?", re.IGNORECASE)
_BUDGET = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|min)?")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def bytes_of(text: str, option: str) -> int:
    """``24GiB``, ``900MB``, ``1900000``; InputError for what is no size above 0."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"{option} {text[:40]}: no size", hint=f"{option} 24GiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


def budget_of(text: str | None) -> Budget:
    """``200`` evaluations, ``40m`` or ``4h`` of time; None is :data:`EVALUATIONS`."""
    if text is None:
        return Budget(EVALUATIONS)
    match = _BUDGET.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"--budget {text[:40]}: no budget", hint="--budget 200, or --budget 40m")
    if match[2] is None:
        return Budget(evaluations=float(match[1]))
    return Budget(seconds=float(match[1]) * _SECONDS[match[2]])
