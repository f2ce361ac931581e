"""Replays priced as a forecaster prices them, without a trace file."""

from __future__ import annotations

from collections.abc import Sequence

from cook.engines.base import DraftSettings
from cook.formats.trace_file import ReplyHead
from cook.record.record import CandidateKey
from cook.scoring.batch_curve import Timings
from cook.scoring.price import Forecast, forecast
from cook.scoring.simulate import Positions, Profile, simulate


def predict(
    texts: Sequence[Positions],
    settings: DraftSettings,
    timings: Timings,
    profile: Profile,
    categories: Sequence[str] = (),
) -> Forecast:
    """One draft under ``settings`` on ``texts``; ``n_max`` 0 is no draft."""
    replies = [
        (
            ReplyHead(
                id=str(number),
                category=categories[number] if categories else "all",
                stop="limit",
                prompt_tokens=text.prompt,
                tokens=text.reply,
                emitted=text.reply,
            ),
            simulate(text, settings, profile),
        )
        for number, text in enumerate(texts)
    ]
    prices = timings if settings.n_max else timings.without_draft()
    key = CandidateKey("bundled", "draft", settings) if settings.n_max else CandidateKey("bundled")
    return forecast(key, "draft", replies, settings.n_max, prices, profile)
