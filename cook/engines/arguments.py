"""Argument lists of an engine's tools, checked against what the binary at hand offers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from cook.engines.base import Engine, ModelArgs, ServerJob, absolute
from cook.engines.threads import engine_threads
from cook.errors import InputError, PrerequisiteError
from cook.formats.quant_types import Flavour

LOOPBACK = "127.0.0.1"

# kv_cache_type_from_str of ik's common/common.cpp; kv_cache_types of mainline's common/arg.cpp.
_BOTH = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
CACHE_TYPES = {Flavour.LLAMA_CPP: _BOTH, Flavour.IK_LLAMA_CPP: (*_BOTH, "q6_0", "q8_KV")}


class Arguments:
    """An argv in the making; a flag that the tool's help does not offer is refused by name."""

    def __init__(self, engine: Engine, tool: str) -> None:
        self._engine, self._tool = engine, tool
        self._argv = [str(engine.tool(tool))]

    def add(self, flag: str, value: str | int | float | None) -> None:
        """``flag value``; nothing for None (the engine's default)."""
        if value is None:
            return
        self._need(flag)
        text = f"{value:g}" if isinstance(value, float) else str(value)
        self._argv += [flag, text]

    def add_first(self, flags: tuple[str, ...], value: str | int | float | None) -> None:
        """``value`` after the first of ``flags`` that the tool has: versions rename flags."""
        known = (flag for flag in flags if self._engine.has_flag(self._tool, flag))
        self.add(next(known, flags[0]), value)

    def add_cache_type(self, flags: tuple[str, ...], value: str | None, what: str) -> None:
        """A type of the KV cache; PrerequisiteError for one that this flavour has not."""
        if value is not None and value not in CACHE_TYPES[self._engine.flavour]:
            raise PrerequisiteError(
                f"{self._engine.flavour} has no KV cache of type {value} (the {what})",
                hint=f"it has {', '.join(CACHE_TYPES[self._engine.flavour])}",
            )
        self.add_first(flags, value)

    def add_flag(self, flag: str, wanted: bool) -> None:
        """``flag`` alone, if wanted."""
        if wanted:
            self._need(flag)
            self._argv.append(flag)

    def add_first_flag(self, flags: tuple[str, ...], wanted: bool) -> None:
        """The first of ``flags`` that the tool has, alone, if wanted."""
        known = (flag for flag in flags if self._engine.has_flag(self._tool, flag))
        self.add_flag(next(known, flags[0]), wanted)

    def add_words(self, words: tuple[str, ...]) -> None:
        """Raw flags, each of which the tool must have; other words are their values."""
        for word in words:
            if word.startswith("--"):
                self._need(word.split("=", 1)[0])
        self._argv += words

    def add_path(self, flag: str, path: Path) -> None:
        """``flag`` with an absolute path (tools run in a directory of their own)."""
        self.add(flag, absolute(path))

    def add_if_known(self, flag: str, value: str) -> None:
        """``flag value`` where the engine has the flag."""
        if self._engine.has_flag(self._tool, flag):
            self._argv += [flag, value]

    def add_flag_if_known(self, flag: str) -> None:
        """``flag`` where the engine has it."""
        if self._engine.has_flag(self._tool, flag):
            self._argv.append(flag)

    def argv(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """The whole list; ``extra`` last, so that the user's word is the final one."""
        return (*self._argv, *extra)

    def _need(self, flag: str) -> None:
        if not self._engine.has_flag(self._tool, flag):
            engine = self._engine
            raise PrerequisiteError(
                f"llama-{self._tool} of engine {engine.name} ({engine.identity.build})"
                f" has no {flag}",
                hint="use another engine (--engine), or leave out the setting that needs it",
            )


def common_server_args(args: Arguments, job: ServerJob, port: int, key_file: Path | None) -> None:
    """What both flavours spell the same: model, address, slots, placement of the target."""
    given = job.target_args
    args.add_path("--model", job.target)
    args.add("--host", LOOPBACK)
    args.add("--port", port)
    if key_file is not None:
        args.add_path("--api-key-file", key_file)
    args.add("--parallel", job.slots)
    # Shared out among the slots, each of which has a KV cache of its own.
    args.add("--ctx-size", job.context * job.slots)
    if given.threads is None and given.filled().threads != engine_threads():
        # A process that may not use every core: the engine would take threads for all of them.
        given = replace(given, threads=given.filled().threads)
    # Otherwise both keep past requests in host memory, up to 8 GiB.
    args.add_if_known("--cache-ram", "0")
    place(args, given)


def place(args: Arguments, given: ModelArgs) -> None:
    """Where one model's weights go and how it runs; both flavours and all tools spell it so."""
    args.add("--n-gpu-layers", given.n_gpu_layers)
    for override in given.override_tensor:
        args.add("--override-tensor", override)
    args.add_flag("--cpu-moe", given.cpu_moe)
    args.add("--n-cpu-moe", given.n_cpu_moe)
    args.add("--device", ",".join(given.devices) or None)
    args.add_cache_type(("--cache-type-k",), given.cache_type_k, "cache_type_k")
    args.add_cache_type(("--cache-type-v",), given.cache_type_v, "cache_type_v")
    if given.flash_attention is not None:
        args.add("--flash-attn", "on" if given.flash_attention else "off")
    args.add("--threads", given.threads)
    args.add("--threads-batch", given.threads_batch)
    args.add("--batch-size", given.batch)
    args.add("--ubatch-size", given.ubatch)
    args.add("--rpc", ",".join(given.rpc) or None)


def placement(engine: Engine, tool: str, given: ModelArgs) -> tuple[str, ...]:
    """``given`` as flags of ``llama-<tool>``, for the ``args`` of a job.

    PrerequisiteError for one that the tool lacks.
    """
    args = Arguments(engine, tool)
    place(args, given)
    return args.argv(given.extra)[1:]


def refuse(engine: Engine, model: str, field: str, why: str) -> NoReturn:
    """Refuse one ModelArgs field that this flavour has no way to say."""
    raise InputError(
        f"{engine.flavour}: {model} args: {field} cannot be set: {why}",
        hint=f"leave {field} out of the {model}'s args, or set it for the target",
    )
