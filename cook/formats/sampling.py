"""The target's sampling chain: as it is asked for, as it applies, and in each receiver's words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal
from zlib import crc32

from pydantic import ConfigDict, Field

from cook.errors import InternalError, PrerequisiteError

_SEEDS = 2**31
SERVER_TOP_K, SERVER_TOP_P, SERVER_MIN_P = 40, 0.95, 0.05
"""What llama-server of mainline samples with by default (common/common.h)."""


@dataclass(frozen=True)
class Sampling:
    """top_k (0: off), top_p, min_p, temperature, in this order; None is the engine's default.

    ``temperature`` 0 is greedy, and the rest of the chain then changes nothing. ``draws``: whose
    random numbers, ``worker`` (cook's own: distributed as a server's, but not the same numbers
    for the same ``seed``) or ``server`` (the engine's).
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_k: Annotated[int | None, Field(ge=0)] = None
    top_p: Annotated[float | None, Field(gt=0.0, le=1.0)] = None
    min_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    repeat_penalty: Annotated[float | None, Field(gt=0.0)] = None
    seed: Annotated[int, Field(ge=0)] = 1
    draws: Literal["worker", "server"] = "worker"

    def __str__(self) -> str:
        return f"{self.chain}, seed {self.seed:g}" if self.temperature else self.chain

    @property
    def chain(self) -> str:
        """``temperature 0.8, top_p 0.95``, as far as it is stated; ``greedy``."""
        if not self.temperature:
            return "greedy"
        parts = {"temperature": self.temperature, **self._stated}
        return ", ".join(f"{n} {v:g}" for n, v in parts.items() if n != "repeat_penalty")

    @property
    def _stated(self) -> dict[str, float]:
        """The parts of the chain that are not left to the engine."""
        chain = {
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty,
        }
        return {name: value for name, value in chain.items() if value is not None}

    def applied(self, draws: Literal["worker", "server"] = "worker") -> Sampling:
        """The chain with a server's defaults for None; greedy keeps the likeliest token alone."""
        greedy = not self.temperature
        return replace(
            self,
            top_k=1 if greedy else SERVER_TOP_K if self.top_k is None else self.top_k,
            top_p=1.0 if greedy else SERVER_TOP_P if self.top_p is None else self.top_p,
            min_p=0.0 if greedy else SERVER_MIN_P if self.min_p is None else self.min_p,
            repeat_penalty=1.0 if self.repeat_penalty is None else self.repeat_penalty,
            draws=draws,
        )

    def for_prompt(self, name: str) -> Sampling:
        """The chain with random numbers of the prompt's own.

        With one seed for all, every prompt would draw alike at the same place of its reply, and
        many prompts would know little more than one.
        """
        if not self.temperature:
            return self
        return replace(self, seed=(self.seed + crc32(name.encode())) % _SEEDS)

    @property
    def is_whole(self) -> bool:
        """Nothing is left to the engine."""
        return len(self._stated) == 4

    def asked(self) -> dict[str, float]:
        """The parts that are not left to the engine, by the names of a server's request."""
        # Greedy is top-k 1: the servers' default chain would sort candidates for nothing.
        chain = self._stated if self.temperature else {"top_k": 1}
        return {"temperature": self.temperature, "seed": self.seed, **chain}

    def whole_request(self) -> dict[str, float]:
        """The keys of a request that leaves nothing to the server: other samplers are off."""
        return self._whole() | {
            "typical_p": 1.0,
            "xtc_probability": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "dry_multiplier": 0.0,
        }

    def worker_fields(self) -> dict[str, float]:
        """The fields of a request to the worker, which is greedy without any.

        PrerequisiteError for a repeat penalty: the worker knows none.
        """
        whole = self._whole()
        penalty = whole.pop("repeat_penalty")
        if penalty != 1.0:
            raise PrerequisiteError(
                f"cook's worker cannot sample with a repeat penalty ({penalty:g})",
                hint="record from a running llama-server: cook trace --target http://HOST:PORT",
            )
        return whole if self.temperature else {}

    def _whole(self) -> dict[str, float]:
        if not self.is_whole:
            raise InternalError(f"what the engine decides is not known: {self!r}")
        return {"temperature": self.temperature, **self._stated, "seed": self.seed}
