"""The command line of ``cook predict``, checked and answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError
from cook.output import Output
from cook.scoring.simulate import Profile

if TYPE_CHECKING:
    from cook.scoring.price import BatchCurve

PROFILES = {
    "mainline": Profile.MAINLINE_2026_10,
    "mainline-2025": Profile.MAINLINE_2025,
    "ik": Profile.IK_2026_08,
}
TRACE_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
MAX_TRACE_LENGTH = 32


@dataclass(frozen=True)
class Typed:
    """The options as they were typed; see ``cook predict --help``."""

    n_max: tuple[int, ...] = ()
    p_min: tuple[float, ...] = (0.0,)
    profile: str | None = None
    target: Path | None = None
    target_ms: float | None = None
    verify: str | None = None
    draft_ms: float | None = None
    overhead_ms: float = 0.0
    acceptance: float | None = None
    acceptance_at: int | None = None
    flash_attention: bool | None = None
    gpu_layers: int | None = None
    cache_type: str | None = None
    engine: str | None = None
    threads: int | None = None
    over_http: bool = False


def predict_trace(typed: Typed, trace: Path | None, drafts: Sequence[Path], output: Output) -> None:
    """Replay ``drafts`` on ``trace`` and print what they would bring."""
    from cook.build.predict import Asked, run
    from cook.build.predict_show import show
    from cook.engines.base import ModelArgs

    if trace is None or not drafts:
        raise InputError(
            "a trace and a draft are needed, or --acceptance",
            hint="cook predict FILE.trace DRAFT.gguf, or cook predict --acceptance 0.62 "
            "--target-ms 146 --draft-ms 12",
        )
    if typed.overhead_ms or typed.acceptance_at is not None:
        raise InputError("--overhead-ms and --acceptance-at go with --acceptance")
    if typed.target is not None and (typed.verify or typed.target_ms):
        raise InputError("--target measures what --verify and --target-ms type: give one of them")
    target_args = ModelArgs(flash_attention=typed.flash_attention, threads=typed.threads)
    draft_args = ModelArgs(
        flash_attention=typed.flash_attention,
        threads=typed.threads,
        n_gpu_layers=typed.gpu_layers,
        cache_type_k=typed.cache_type,
        cache_type_v=typed.cache_type,
    )
    asked = Asked(
        trace=trace,
        drafts=tuple(drafts),
        n_max=_lengths(typed),
        p_min=typed.p_min,
        engine=typed.engine,
        profile=_profile(typed.profile),
        target=typed.target,
        verify=typed_curve(typed.verify, typed.target_ms),
        draft_s=None if typed.draft_ms is None else typed.draft_ms / 1000,
        target_args=target_args,
        draft_args=draft_args,
        threads=typed.threads,
        over_http=typed.over_http,
    )
    show(run(asked, output), output)


def predict_typed(typed: Typed, trace: Path | None, output: Output) -> None:
    """Print what the typed numbers say, as if tokens were accepted independently."""
    from cook.build.predict_show import show_typed
    from cook.scoring.iid import alpha_of, best_length, iid_row

    if trace is not None:
        raise InputError("--acceptance replaces the trace: give one of them")
    curve = typed_curve(typed.verify, typed.target_ms)
    if curve is None or typed.draft_ms is None or typed.acceptance is None:
        raise InputError(
            "--acceptance needs the times of target and draft",
            hint="--target-ms 146 --draft-ms 12, and better --verify 1:146,2:170,5:220",
        )
    given_at = typed.acceptance_at
    alpha = typed.acceptance if given_at is None else alpha_of(typed.acceptance, given_at)
    profile = _profile(typed.profile) or Profile.MAINLINE_2026_10
    draft_s = typed.draft_ms / 1000
    rows = [
        iid_row(alpha, n, curve, draft_s, profile, typed.overhead_ms / 1000)
        for n in sorted(set(typed.n_max or TRACE_LENGTHS))
    ]
    plain_s = float(curve.at(1, 0))
    optimum = None
    if len(curve.widths) == 1:
        output.warn(
            "every batch is taken to cost what one token costs; verification is dearer",
            hint="--verify 1:146,2:170,5:220, as llama-batched-bench measures",
        )
        if 0 < alpha < 1 and draft_s < plain_s:
            optimum = best_length(alpha, plain_s, draft_s)
    show_typed(rows, alpha, 1 / plain_s, optimum, output)


def typed_curve(points: str | None, target_ms: float | None) -> BatchCurve | None:
    """``1:146,2:170,5:220`` (tokens:ms) as a curve; else the one time for every width.

    InputError for anything else, and for two different times of one token.
    """
    from cook.scoring.price import BatchCurve

    if points is None:
        return None if target_ms is None else BatchCurve((0,), (1,), ((target_ms / 1000,),))
    found: dict[int, float] = {}
    for part in points.split(","):
        width, _, milliseconds = part.partition(":")
        try:
            key, value = int(width), float(milliseconds)
        except ValueError:
            raise InputError(
                f"--verify: {part.strip()!r} is not TOKENS:MS", hint="--verify 1:146,2:170,5:220"
            ) from None
        if not 1 <= key <= 1024 or not 0.0 < value < 1e9 or key in found:
            raise InputError(f"--verify: {part.strip()!r} is out of range or given twice")
        found[key] = value / 1000
    if target_ms is not None and found.setdefault(1, target_ms / 1000) != target_ms / 1000:
        raise InputError("--target-ms and --verify give one token two different times")
    if 1 not in found:
        raise InputError("--verify needs the time of one token", hint="--verify 1:146,2:170,5:220")
    widths = tuple(sorted(found))
    return BatchCurve((0,), widths, (tuple(found[w] for w in widths),))


def _lengths(typed: Typed) -> tuple[int, ...]:
    """Draft lengths in order, each once, within what a trace serves past the end of a reply."""
    lengths = tuple(sorted(set(typed.n_max or TRACE_LENGTHS)))
    if lengths[0] < 1 or lengths[-1] > MAX_TRACE_LENGTH:
        raise InputError(f"--n-max must be between 1 and {MAX_TRACE_LENGTH}")
    return lengths


def _profile(name: str | None) -> Profile | None:
    if name is None:
        return None
    if name in PROFILES:
        return PROFILES[name]
    if name in tuple(Profile):
        return Profile(name)
    raise InputError(f"no profile {name!r}", hint=f"one of {', '.join(PROFILES)}")
