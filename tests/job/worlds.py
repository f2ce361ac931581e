"""Whole builds in simulated worlds whose truth is known: steps take times that nothing says.

Timings miss what live steps really take by errors of a draft file, of a length, of a setting and of
all drafts alike; every server start and every request has noise of its own, and the machine drifts
from prompt to prompt. ``python -m tests.job.worlds WORLD BUILDS FIRST`` prints the rates of one
world over the seeds from FIRST on.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.job.laid_out as laid_out
import tests.job.whole as whole
from cook.engines.base import DraftSettings
from cook.graph.step import READ_BYTES_S
from cook.job import plan
from cook.prompts.prompt_set import Prompt, PromptSet, subset
from cook.record.record import Record
from cook.scoring.simulate import Profile, Simulation, simulate
from cook.steps.curve import CurveOutcome
from cook.steps.deal import DealOutcome, DealStep, DealtServer
from cook.steps.live import LiveOutcome
from tests.job.fabricated import Fabrication, World, _reply, answered, seed_of, seen_by

PROFILE = Profile.MAINLINE_2026_10


@dataclass(frozen=True)
class SimulatedWorld:
    """``drafts``: accuracy and ms of a token, by name. Standard deviations of logs: of what live
    steps take beyond their timings (``file``, ``setting``, ``length``, ``shared`` by all drafts),
    of a ``start``, of a ``request``, of the machine's ``drift`` between prompts, of a ``curve``."""

    drafts: dict[str, tuple[float, float]]
    lengths: tuple[int, ...] = (2, 4, 8)
    prompts: int = 48
    reply: int = 64
    target: float = 20.0
    slope: float = 0.05
    start: float = 0.008
    request: float = 0.02
    drift: float = 0.05
    file: float = 0.0194
    setting: float = 0.005
    length: float = 0.0
    shared: float = 0.02
    curve: float = 0.004
    ease: float = 0.6
    budget: float = 30.0
    sizes: dict[str, int] = field(default_factory=dict)


FOUR = {"q8": (0.84, 3.2), "q5": (0.83, 2.6), "q4": (0.81, 2.1), "q2": (0.76, 1.5)}
TWINS = {"one": (0.81, 2.1), "two": (0.81, 2.1)}
WORLDS = {
    "few": SimulatedWorld(FOUR),
    "far": SimulatedWorld(FOUR, setting=0.01, length=0.02, file=0.018, shared=0.035),
    "noisy": SimulatedWorld(
        FOUR, setting=0.01, length=0.02, file=0.018, shared=0.035, start=0.0215
    ),
    "many": SimulatedWorld(
        {f"d{i:02}": (0.80 + 0.0008 * (i - 10), 2.2 + 0.0075 * (i - 10)) for i in range(20)},
        lengths=(4, 8),
        setting=0.01,
        file=0.018,
        shared=0.035,
    ),
    "spent": SimulatedWorld(
        FOUR, setting=0.02, length=0.03, file=0.04, shared=0.05, start=0.02, budget=1.5
    ),
    "nodraft": SimulatedWorld(
        {"q8": (0.60, 5.8), "q4": (0.58, 5.0)},
        lengths=(2, 4),
        shared=0.035,
        setting=0.01,
        length=0.02,
    ),
    "twins": SimulatedWorld(TWINS, lengths=(4,), file=0.0, setting=0.0, drift=0.1),
    "twins-spent": SimulatedWorld(
        TWINS, lengths=(4,), file=0.04, setting=0.0, start=0.0215, budget=0.6
    ),
}


@dataclass(frozen=True)
class BuildResult:
    """``loss``: how far the pick is from the best of all candidates, on the build's prompts, and
    ``population_loss`` on many others; ``bias``: log of the pick's reported over true speedup."""

    decided: bool
    loss: float
    population_loss: float
    fastest_live_loss: float
    bias: float | None
    covered: bool | None
    pick: tuple[str | None, int]
    sentence: str


class SimulatedBuild(Fabrication):
    """The steps of one build in ``sim``, number ``build``."""

    sim: SimulatedWorld
    build: int
    errors: dict[tuple[str, int], float]

    def prepare(self, sim: SimulatedWorld, build: int) -> None:
        self.sim, self.build, self.errors = sim, build, {}
        rng = np.random.default_rng(seed_of("world", build))
        shared = rng.normal(0, sim.shared)
        lengths = {n: rng.normal(0, sim.length) for n in sim.lengths}
        twin = rng.normal(0, sim.file)
        for draft in sim.drafts:
            own = twin if sim.drafts is TWINS else rng.normal(0, sim.file)
            for n in sim.lengths:
                self.errors[draft, n] = shared + own + lengths[n] + rng.normal(0, sim.setting)

    def matches(self, name: str, reply: Any, salt: str = "") -> np.ndarray[Any, Any]:
        name = name.split(" ")[0]
        accuracy = self.sim.drafts[name][0]
        ident, count = reply.head.id, reply.head.tokens
        ease = np.random.default_rng(seed_of("ease", ident)).normal(0, self.sim.ease)
        chance = 1 / (1 + math.exp(-(math.log(accuracy / (1 - accuracy)) + ease)))
        common = np.random.default_rng(seed_of("text", ident)).random(count)
        salted = "twin" if self.sim.drafts is TWINS else name
        own = np.random.default_rng(seed_of(salted, ident)).random(count)
        mixed = np.random.default_rng(seed_of("mix", ident, salted)).random(count) < 0.8
        return np.asarray(np.where(mixed, common, own) < chance)

    def batch_s(self, step: Any, width: int, depth: int) -> float:
        sim = self.sim
        one = sim.target if step.verifies else sim.drafts[step.name.split(" ")[0]][1]
        own = np.random.default_rng(seed_of(step.name, self.build)).normal(0, sim.curve)
        return float(one * math.exp(own) * (1 + sim.slope * (width - 1)) / 1000)

    def _curve(self, step: Any, _: Path) -> CurveOutcome:
        depths, sizes = (5, 200), (1, 40, 100)
        return CurveOutcome(
            depths=depths,
            widths=step.widths,
            seconds=tuple(tuple(self.batch_s(step, w, d) for w in step.widths) for d in depths),
            sample_s=1e-5,
            prompt_tokens=sizes,
            prompt_seconds=tuple(0.001 * n * (1 if step.verifies else 0.1) for n in sizes),
            others_cores=0.0,
            read_shares=(1.0,) * len(step.reserved),
        )

    def true_ms(self, draft: str | None, n_max: int, reply: Any) -> tuple[float, Simulation | None]:
        """What decoding ``reply`` truly takes, of a server that started as usual."""
        sim = self.sim
        if draft is None:
            return (reply.head.emitted - 1) * (sim.target + 0.51), None
        positions = seen_by(self.columns(draft, reply), reply, sim.reply)
        run = simulate(positions, DraftSettings(n_max), PROFILE)
        token_ms, length = sim.drafts[draft][1], run.length
        batch = 1 + sim.slope * length
        spent = sim.target * batch + run.decodes * (token_ms + 0.01) + token_ms * batch
        whole = float((spent + (run.accepted + 1) * 0.01 + 0.5).sum())
        return whole * math.exp(self.errors[draft, n_max]), run

    def _deal(self, step: DealStep, _: Path) -> DealOutcome:
        sim = self.sim
        numbers = {p.id: i for i, p in enumerate(self.prompts.prompts)}
        names = [f"{s.name} {s.settings}" for s in step.servers]
        starts = {name: seed_of("start", self.build, name, step.block) for name in names}
        started = {n: np.random.default_rng(s).normal(0, sim.start) for n, s in starts.items()}
        dealt = []
        for name, server in zip(names, step.servers, strict=True):
            runs = []
            draft = server.name.split(" ")[0] if server.settings is not None else None
            n_max = server.settings.n_max if server.settings is not None else 0
            rng = np.random.default_rng(seed_of("request", self.build, name, step.block))
            for order, prompt in enumerate(server.prompts):
                reply = _reply(numbers[prompt.id], prompt, self.world)
                ms, run = self.true_ms(draft, n_max, reply)
                moment = seed_of("drift", self.build, prompt.id, step.block)
                drift = np.random.default_rng(moment).normal(0, sim.drift)
                ms *= math.exp(started[name] + drift + sim.request * rng.normal())
                read = reply.head.prompt_tokens * (1.0 if draft is None else 1.1)
                placed = {"block": step.block, "order": order, "others_cores": 0.0}
                runs.append(answered(reply, ms, read, run, **placed))
            dealt.append(DealtServer(LiveOutcome(tuple(runs), 0.5, 4000, ("x",), 0.0)))
        ran = [one.outcome for one in dealt if one.outcome is not None]
        seconds = sum(0.5 + sum(r.wall_ms for r in o.runs) / 1000 for o in ran)
        return DealOutcome(tuple(dealt), step.together, seconds)

    def speeds(self, prompts: PromptSet) -> dict[tuple[str | None, int], float]:
        """True decode speed of every candidate over ``prompts``, tokens a second."""
        replies = [_reply(i, p, self.world) for i, p in enumerate(prompts.prompts)]
        tokens = sum(r.head.emitted - 1 for r in replies)
        keys: list[tuple[str | None, int]] = [(None, 0)]
        keys += [(d, n) for d in self.sim.drafts for n in self.sim.lengths]
        return {
            (d, n): 1000 * tokens / sum(self.true_ms(d, n, r)[0] for r in replies) for d, n in keys
        }


def prompts_of(count: int, salt: object) -> PromptSet:
    prompts = tuple(
        Prompt(f"p{salt}-{i:04}", "abcd"[i // 2 % 4], f"text {i}", "report" if i % 2 else "pick")
        for i in range(count)
    )
    return subset(PromptSet("mine", prompts, ""), prompts)


POPULATION: dict[int, dict[tuple[str | None, int], float]] = {}


def one_build(sim: SimulatedWorld, build: int) -> BuildResult:
    """A whole build by cook's own functions, judged against what is true in ``sim``."""
    prompts = prompts_of(sim.prompts, build)
    made: list[SimulatedBuild] = []

    def fabricate(folder: Path, _: World | None = None) -> SimulatedBuild:
        lab = SimulatedBuild(folder, World(reply_tokens=sim.reply), prompts)
        lab.prepare(sim, build)
        made.append(lab)
        return lab

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(laid_out, "prompt_set", lambda: prompts)
        patch.setattr(whole, "Fabrication", fabricate)
        # Nothing runs at this machine's pace.
        patch.setattr(plan, "memory_bytes_s", lambda: READ_BYTES_S)
        patch.setattr(plan, "processor_flops", lambda: plan.FLOPS)
        sizes = {name: 1000 * (i + 1) for i, name in enumerate(reversed(list(sim.drafts)))}
        built = whole.built(
            Path(folder),
            patch,
            score={
                "draft": {"n_max": list(sim.lengths)},
                "max_tokens": sim.reply,
                "live_budget": {"minutes": sim.budget},
            },
            pick={"maximize": "decode_speed"},
            sizes=sizes,
        )
    return _judged(built.record, made[0], sim)


def _judged(record: Record, lab: SimulatedBuild, sim: SimulatedWorld) -> BuildResult:
    here = lab.speeds(lab.prompts)
    known = id(sim)
    if known not in POPULATION:
        bare = SimulatedBuild.__new__(SimulatedBuild)
        bare.__dict__.update(lab.__dict__)
        bare.errors = dict.fromkeys(lab.errors, 0.0)
        POPULATION[known] = bare.speeds(prompts_of(1500, "all"))
    many = {
        key: speed * math.exp(-lab.errors.get((key[0] or "", key[1]), 0.0))
        for key, speed in POPULATION[known].items()
    }
    keys = {c.name: (c.draft, c.settings.n_max if c.settings else 0) for c in record.candidates}
    winner = next(c for c in record.candidates if c.name == record.pick.candidate)
    key = keys[winner.name]
    ran = [c for c in record.candidates if c.live is not None and c.decode_speedup]
    fastest = keys[max(ran, key=lambda c: c.decode_speedup or 0.0).name]
    bias = covered = None
    if winner.draft is not None and winner.decode_speedup is not None:
        bias = math.log(winner.decode_speedup / (here[key] / here[None, 0]))
    if winner.draft is not None and (between := winner.speedup_interval) is not None:
        covered = between.low <= many[key] / many[None, 0] <= between.high
    loss, most = 1 - here[key] / max(here.values()), max(many.values())
    losses = (loss, 1 - many[key] / most, 1 - many[fastest] / most)
    return BuildResult(record.pick.decided, *losses, bias, covered, key, record.pick.sentence)


def rates(name: str, builds: int, first: int) -> str:
    """One line of what ``builds`` builds in the world ``name`` came to."""
    sim = WORLDS[name]
    found = [one_build(sim, first + number) for number in range(builds)]
    margin = 0.01
    decided = [r for r in found if r.decided]
    bias = [r.bias for r in found if r.bias is not None]
    covered = [r.covered for r in found if r.covered is not None]
    wrong = sum(r.loss > margin for r in decided) / builds
    wrong_many = sum(r.population_loss > margin for r in decided) / builds
    error = np.std(bias) / math.sqrt(len(bias)) if bias else float("nan")
    return (
        f"{name}: {builds} builds from {first}: decided {len(decided) / builds:.0%}, wrongly "
        f"{wrong:.1%} (on other prompts {wrong_many:.1%}); mean loss "
        f"{np.mean([r.loss for r in found]):.2%} (on other prompts "
        f"{np.mean([r.population_loss for r in found]):.2%}, fastest that ran "
        f"{np.mean([r.fastest_live_loss for r in found]):.2%}); speedup of the pick "
        f"{np.mean(bias) if bias else float('nan'):+.2%} +- {error:.2%}; interval holds "
        f"{np.mean(covered) if covered else float('nan'):.0%}"
    )


if __name__ == "__main__":
    print(rates(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), flush=True)
