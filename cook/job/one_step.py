"""One step of a recipe by its key, and the commands that make every step so: for whatever runs
commands (a shell, GNU parallel, Slurm, ssh, a CI matrix) on machines that share COOK_HOME.

A step is not kept anywhere. It is laid out from the recipe again, as a plan is, and so has the
same key wherever recipe, sources, engine and cook are the same.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.errors import InputError
from cook.graph.execute import Executor
from cook.graph.step import Source, Step
from cook.graph.store import Artifact, Store
from cook.job.plan import Plan, State, later_steps, plan
from cook.job.prepare import Prepared, prepare
from cook.output import Output, printable
from cook.paths import cook_home
from cook.steps.quantize import TENSOR_KIND
from cook.units import duration, plural, size

SHOWN = 16
"""Characters of a key in a command."""
SHORTEST = 8
"""Characters of a key that may stand for all of it, where no other begins so."""


@dataclass(frozen=True)
class RecipeArgs:
    """What a command line says of the recipe to lay out."""

    recipe: Path
    engines: tuple[str, ...] = ()
    demo: bool = False
    threads: int | None = None
    unsafe_args: bool = False

    def prepared(self, output: Output) -> Prepared:
        """With every source read whole, so that all keys are final."""
        return prepare(
            self.recipe,
            engines=self.engines,
            demo=self.demo,
            threads=self.threads,
            unsafe_args=self.unsafe_args,
            output=output,
        )

    def command(self, *words: str) -> str:
        """``cook WORDS RECIPE`` with these options, for a shell."""
        options = [word for engine in self.engines for word in ("--engine", engine)]
        options += ["--demo"] if self.demo else []
        options += ["--threads", str(self.threads)] if self.threads is not None else []
        options += ["--allow-unsafe-args"] if self.unsafe_args else []
        return shlex.join(["cook", *words, str(self.recipe), *options])


@dataclass(frozen=True)
class StepCommand:
    """What makes one step that a build would run.

    ``wave``: 1 where all its inputs are stored, else one more than that of the last of them.
    ``cores`` that its programs use; ``seconds`` None: not known. ``timed``: it must run alone, on
    ``machine``, whose timing it is; None: on any.
    """

    command: str
    wave: int
    key: str
    label: str
    cores: int
    memory_bytes: int
    device: bool
    timed: bool
    machine: str | None
    seconds: float | None

    @property
    def line(self) -> str:
        """For a shell; what it needs is behind it, as a comment."""
        parts = [f"wave {self.wave}", plural(self.cores, "core")]
        parts += [f"{size(self.memory_bytes)} of memory"] if self.memory_bytes else []
        parts += ["device"] if self.device else []
        parts += [f"timed, alone on {self.machine}"] if self.timed else []
        parts += [f"about {duration(self.seconds)}"] if self.seconds is not None else []
        # A name in it may be a stranger's.
        message = printable(f"{', '.join(parts)}: {self.label}", kept="")
        return f"{self.command}  # {message}"


def step_commands(asked: RecipeArgs, prepared: Prepared, planned: Plan) -> tuple[StepCommand, ...]:
    """Commands for the steps of ``planned`` that would run, wave by wave; timed ones last of each,
    in their order."""
    steps, cores = prepared.steps(), asked.threads or len(os.sched_getaffinity(0))
    found: dict[str, StepCommand] = {}
    for p in planned.steps:  # inputs come first
        if p.state is not State.RUN:
            continue
        step = steps[p.key]
        needs = step.needs()
        above = (found[input.key].wave for input in step.steps() if input.key in found)
        found[p.key] = StepCommand(
            command=asked.command("run", p.key[:SHOWN]),
            wave=1 + max(above, default=0),
            key=p.key,
            label=p.label,
            cores=cores,
            memory_bytes=needs.memory_bytes,
            device=needs.device,
            timed=p.timed,
            machine=platform.node() if p.timed else None,
            seconds=p.seconds,
        )
    return tuple(sorted(found.values(), key=lambda c: (c.wave, c.timed)))


def show_commands(asked: RecipeArgs, output: Output) -> None:
    """Print them, a line each, and on stderr what is left after them."""
    prepared = asked.prepared(output)
    planned = plan(prepared)
    commands = step_commands(asked, prepared, planned)
    finish = asked.command("build")
    output.emit({"commands": commands, "finish": finish})
    if commands:
        output.block("\n".join(one.line for one in commands))
    for warning in planned.warnings:
        output.warn(warning)
    waves = max((c.wave for c in commands), default=0)
    output.say(
        f"{plural(len(commands), 'command')} in {plural(waves, 'wave')}; those of a wave may run "
        "side by side, once the wave before is done"
    )
    if planned.later:
        output.say(planned.later)
    output.say(f"finish with: {finish}, which finds them all stored")


def run_step(key: str, asked: RecipeArgs, output: Output) -> None:
    """Make the step ``key`` (or what it begins with) of a recipe, whose inputs are stored.

    InputError where the recipe lays out no such step, or several; PrerequisiteError where an
    input is not made yet; what the step fails with is raised.
    """
    prepared = asked.prepared(output)
    for warning in prepared.warnings:
        output.warn(warning)
    home = cook_home()
    store = Store(home / "store")
    step = _step(key, asked, prepared, store)
    with Executor(store, output, logs=home / "logs", threads=asked.threads) as executor:
        artifact, ran = executor.run_one(
            step, hint=lambda needed: asked.command("run", needed.key[:SHOWN])
        )
    output.emit(
        {
            "key": artifact.key,
            "kind": artifact.kind,
            "label": artifact.label,
            "directory": str(artifact.directory),
            "ran": ran,
            "seconds": artifact.seconds,
        }
    )
    output.data(str(artifact.directory))
    if not ran:
        output.say(f"{artifact.label}: stored already, nothing ran")


def _step(key: str, asked: RecipeArgs, prepared: Prepared, store: Store) -> Step[Any]:
    """The one whose key is ``key``, or begins so; InputError, with what is known of it."""
    steps, hint = prepared.steps(), f"{asked.command('plan')} --commands"
    if len(key) < SHORTEST or not set(key) <= set("0123456789abcdef"):
        raise InputError(
            f"{key!r} is no key of a step: at least {SHORTEST} of its characters 0-9 and a-f",
            hint=hint,
        )
    found = [step for step in steps.values() if step.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{key} begins the keys of {plural(len(found), 'step')}: "
            f"{', '.join(f'{s.key[:SHOWN]} ({s.label})' for s in found[:3])}",
            hint="give more of it",
        )
    before = next((a for a in store.entries() if a.key.startswith(key)), None)
    now = next((s for s in steps.values() if before and s.label == before.label), None)
    if before is None:
        why = (
            "a key changes with the recipe, a source, the engine or cook, and what is timed has "
            "another on every machine"
        )
    elif now is None:
        why = f"{before.label} was made under it, for another recipe or an earlier one"
    else:
        parts = [p for p, value in now.key_parts.items() if before.key_parts.get(p) != value]
        changed = ", ".join(parts) or "nothing"
        why = f"{before.label} was made under it, which is {now.key[:SHOWN]} now: {changed} changed"
    raise InputError(f"{asked.recipe}: no step has the key {key}; {why}", hint=hint)


@dataclass(frozen=True)
class UsedArtifacts:
    """``keys`` of steps; ``sources``: digests of models whose tensors may be parts of them. Which
    tensors these are is known only once a quant's importance is, so all of a source stay."""

    keys: frozenset[str]
    sources: frozenset[str]

    def covers(self, artifact: Artifact) -> bool:
        """Whether a build may use it."""
        if artifact.kind == TENSOR_KIND:
            return artifact.key_parts.get("inputs", {}).get("source") in self.sources
        return artifact.key in self.keys


def used_artifacts(
    recipes: Iterable[RecipeArgs], stored: Sequence[Artifact], output: Output
) -> UsedArtifacts:
    """What builds of ``recipes`` would use of what is ``stored``; InputError as there.

    Which live runs and checks of them that will be, only the builds know: all stay that are made
    of nothing but what they use.
    """
    keys: set[str] = set()
    sources: set[str] = set()
    kinds: set[str] = set()
    for recipe in recipes:
        prepared = recipe.prepared(output)
        steps = prepared.steps()
        keys |= set(steps)
        kinds |= {step.kind for step in later_steps(prepared.layouts)[1]}
        for step in steps.values():
            sources |= {n.digest for n in step.inputs().values() if isinstance(n, Source)}
    after = {a.key: set(a.key_parts.get("inputs", {}).values()) for a in stored if a.kind in kinds}
    while more := {key for key, of in after.items() if of <= keys | sources} - keys:
        keys |= more
    return UsedArtifacts(frozenset(keys), frozenset(sources))
