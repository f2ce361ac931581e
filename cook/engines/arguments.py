"""Argument lists of an engine's tools, checked against what the binary at hand offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from cook.engines.base import Engine, ModelArgs, ServerJob, absolute
from cook.engines.environment import engine_threads
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

    def add(
        self,
        flags: str | tuple[str, ...],
        value: str | float | Path | tuple[str, ...] | None = True,
        *,
        if_known: bool = False,
    ) -> None:
        """``flag value``, of several ``flags`` the first that the tool has: versions rename flags.

        True is the flag alone; nothing for None, False and () (the engine's default). Several words
        get commas between them, a path becomes absolute (tools run in a directory of their own).
        ``if_known``: only where the tool has the flag.
        """
        names = (flags,) if isinstance(flags, str) else flags
        known = [name for name in names if self._engine.has_flag(self._tool, name)]
        if value is None or value is False or value == () or (if_known and not known):
            return
        if not known:
            self._need(names[0])
        self._argv.append(known[0])
        if isinstance(value, Path):
            self._argv.append(absolute(value))
        elif isinstance(value, tuple):
            self._argv.append(",".join(value))
        elif value is not True:
            self._argv.append(f"{value:g}" if isinstance(value, float) else str(value))

    def add_cache_types(self, flags: tuple[str, ...], types: Mapping[str, str | None]) -> None:
        """Types of the KV cache by ``k`` and ``v``, which stand for ``{}`` in ``flags``;
        PrerequisiteError for one that this flavour does not have."""
        whose = "draft's " if "draft" in flags[0] else ""
        for half, name in types.items():
            if name is not None and name not in CACHE_TYPES[self._engine.flavour]:
                raise PrerequisiteError(
                    f"{self._engine.flavour} has no KV cache of type {name} (the {whose}"
                    f"cache_type_{half})",
                    hint=f"it has {', '.join(CACHE_TYPES[self._engine.flavour])}",
                )
            self.add(tuple(flag.format(half) for flag in flags), name)

    def add_words(self, words: tuple[str, ...]) -> None:
        """Raw flags, each of which the tool must have; other words are their values."""
        for word in words:
            if word.startswith("--"):
                self._need(word.split("=", 1)[0])
        self._argv += words

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
    args.add("--model", job.target)
    args.add("--host", LOOPBACK)
    args.add("--port", port)
    args.add("--api-key-file", key_file)
    args.add("--parallel", job.slots)
    # Shared out among the slots, each of which has a KV cache of its own.
    args.add("--ctx-size", job.context * job.slots)
    if given.threads is None and given.filled().threads != engine_threads():
        # A process that may not use every core: the engine would take threads for all of them.
        given = replace(given, threads=given.filled().threads)
    # Otherwise both keep past requests in host memory, up to 8 GiB.
    args.add("--cache-ram", "0", if_known=True)
    place(args, given)


def place(args: Arguments, given: ModelArgs) -> None:
    """Where one model's weights go and how it runs; both flavours and all tools spell it so."""
    args.add("--n-gpu-layers", given.n_gpu_layers)
    for override in given.override_tensor:
        args.add("--override-tensor", override)
    args.add("--cpu-moe", given.cpu_moe)
    args.add("--n-cpu-moe", given.n_cpu_moe)
    args.add("--device", given.devices)
    args.add_cache_types(("--cache-type-{}",), {"k": given.cache_type_k, "v": given.cache_type_v})
    if given.flash_attention is not None:
        args.add("--flash-attn", "on" if given.flash_attention else "off")
    args.add("--threads", given.threads)
    args.add("--threads-batch", given.threads_batch)
    args.add("--batch-size", given.batch)
    args.add("--ubatch-size", given.ubatch)
    args.add("--rpc", given.rpc)


def placement(engine: Engine, tool: str, given: ModelArgs) -> tuple[str, ...]:
    """``given`` as flags of ``llama-<tool>``, for the ``args`` of a job.

    PrerequisiteError for one that the tool does not have.
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
