"""The report's colours, each for a light and for a dark page.

A plot is drawn in the light ones; in SVG each is then replaced by a CSS variable, so that one
picture serves both themes. Hence no two names may share a light colour.
"""

from __future__ import annotations

from collections.abc import Mapping

Colours = Mapping[str, str]

_PAIRS: dict[str, tuple[str, str]] = {
    "page": ("#fdfdfc", "#14171b"),
    "ink": ("#1c2127", "#e4e7ea"),
    "muted": ("#5d6670", "#98a2ad"),
    "grid": ("#dfe3e7", "#2b3138"),
    "pick": ("#b3261e", "#ff8a80"),
    # Series: distinct in both themes and by the colour-blind in the order given.
    "s0": ("#0b5fbe", "#62a8ff"),
    "s1": ("#c45500", "#f7954a"),
    "s2": ("#157a48", "#4cc27a"),
    "s3": ("#7a3fd0", "#be95ff"),
    "s4": ("#0c7b86", "#40c8d4"),
    "s5": ("#8a5f0d", "#dcb13a"),
    "s6": ("#b02e80", "#fb82c0"),
    "s7": ("#4f5a66", "#aab4bf"),
    # A ramp from few bits to many, and text that reads upon it.
    "h0": ("#e8f1fb", "#17283c"),
    "h1": ("#d0e3f6", "#1b3653"),
    "h2": ("#b0d0ef", "#20466d"),
    "h3": ("#8ab8e5", "#285a8b"),
    "h4": ("#5f9ad6", "#2f6699"),
    "h5": ("#2f70b8", "#4d8ecb"),
    "h6": ("#1f5fa8", "#77afe2"),
    "h7": ("#123f79", "#aed3f4"),
    "on_light": ("#1c2128", "#e4e7eb"),
    "on_dark": ("#fdfdfd", "#10141a"),
}

LIGHT: Colours = {name: light for name, (light, _) in _PAIRS.items()}
DARK: Colours = {name: dark for name, (_, dark) in _PAIRS.items()}
SERIES = 8
RAMP = 8


def css(colours: Colours) -> str:
    """Custom properties that hold ``colours``."""
    return "".join(f"--{name.replace('_', '-')}:{value};" for name, value in colours.items())


def ramp(value: float, low: float, high: float) -> tuple[str, str]:
    """(fill, text) names for ``value`` on a scale from ``low`` to ``high``."""
    share = (value - low) / (high - low) if high > low else 0.5
    step = min(RAMP - 1, max(0, int(share * RAMP)))
    return f"h{step}", "on_dark" if step >= RAMP // 2 + 1 else "on_light"
