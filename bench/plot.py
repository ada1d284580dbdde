"""Plots as SVG, by hand: bars and lines are a page of code, and a plotting library is a hundred megabytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 880
MARGIN = 16
BAR_HEIGHT = 18
LABEL_WIDTH = 120
VALUE_WIDTH = 70
TITLE_HEIGHT = 34
LINES_HEIGHT = 220
LEGEND_HEIGHT = 24

COLORS = {
    "relay": "#1b6ca8",
    "relay-sqlite": "#4a94c9",
    "relay-redis": "#8cbfe3",
    "asgi": "#2b8a4b",
    "asgi-sqlite": "#5fb37c",
    "asgi-redis": "#9fd4b2",
    "baseline": "#c0392b",
    "nchan": "#8e5ea2",
    "node": "#e08e2b",
}
"""One hue per kind of server: a door of the relay keeps its hue in all stores."""

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:13px}"
    ".small{font-size:10px;fill:#666}.axis{stroke:#ddd}"
)


@dataclass(frozen=True)
class Bars:
    """A panel: one bar per name, on a scale from zero."""

    title: str
    unit: str
    values: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Lines:
    """A panel: one line per name through (size, cost), both on logarithmic scales."""

    title: str
    unit: str
    lines: dict[str, list[tuple[int, float]]]


def bars(panels: Sequence[Bars]) -> str | None:
    """Panels one below the other; None if there are none."""
    parts: list[str] = []
    y = float(MARGIN)
    for panel in panels:
        parts.append(_text(MARGIN, y + 14, panel.title, "title"))
        parts.append(_text(WIDTH - MARGIN, y + 14, panel.unit, "small", anchor="end"))
        y += TITLE_HEIGHT - 8
        room = WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH
        most = max(value for _, value in panel.values)
        for name, value in panel.values:
            length = max(1.0, room * value / most) if most else 1.0
            left = MARGIN + LABEL_WIDTH
            parts.append(_text(left - 8, y + 13, name, anchor="end"))
            parts.append(f'<rect x="{left}" y="{y + 2:.0f}" width="{length:.1f}" height="14" fill="{_color(name)}"/>')
            parts.append(_text(left + length + 6, y + 13, _short(value)))
            y += BAR_HEIGHT
        y += MARGIN
    return _svg(y, parts) if panels else None


def lines(panels: Sequence[Lines]) -> str | None:
    """Panels in two columns, with one legend; None if there are none."""
    if not panels:
        return None
    names = [name for name in COLORS if any(name in panel.lines for panel in panels)]
    parts = list(_legend(names))
    column = (WIDTH - 3 * MARGIN) / 2
    for number, panel in enumerate(panels):
        x = MARGIN + (number % 2) * (column + MARGIN)
        y = MARGIN + LEGEND_HEIGHT + (number // 2) * (LINES_HEIGHT + MARGIN)
        parts += _panel(panel, x, y, column)
    rows = math.ceil(len(panels) / 2)
    return _svg(MARGIN + LEGEND_HEIGHT + rows * (LINES_HEIGHT + MARGIN), parts)


def _panel(panel: Lines, x: float, y: float, width: float) -> Iterable[str]:
    points = [point for line in panel.lines.values() for point in line]
    sizes = sorted({size for size, _ in points})
    # Whole powers of ten above and below, so that a flat line looks flat and not like noise.
    low = math.floor(math.log10(min(cost for _, cost in points)))
    high = max(math.ceil(math.log10(max(cost for _, cost in points))), low + 1)
    left, right, top, bottom = x + 40, x + width - 12, y + 28, y + LINES_HEIGHT - 22
    span = math.log10(sizes[-1] / sizes[0]) or 1.0

    def across(size: int) -> float:
        return left + (right - left) * math.log10(size / sizes[0]) / span

    def up(cost: float) -> float:
        return bottom - (bottom - top) * (math.log10(cost) - low) / (high - low)

    yield _text(x, y + 14, f"{panel.title}, {panel.unit}", "title")
    for power in range(low, high + 1):
        level = up(10.0**power)
        yield f'<line class="axis" x1="{left:.1f}" x2="{right:.1f}" y1="{level:.1f}" y2="{level:.1f}"/>'
        yield _text(left - 6, level + 4, f"{10.0**power:,g}", "small", anchor="end")
    for size in sizes:
        yield _text(across(size), bottom + 16, f"{size:,}", "small", anchor="middle")
    for name, line in panel.lines.items():
        path = " ".join(f"{across(size):.1f},{up(cost):.1f}" for size, cost in line)
        yield f'<polyline points="{path}" fill="none" stroke="{_color(name)}" stroke-width="2"/>'
        for size, cost in line:
            tip = escape(f"{name}: {_short(cost)} at {size:,}")
            yield (
                f'<circle cx="{across(size):.1f}" cy="{up(cost):.1f}" r="3" fill="{_color(name)}">'
                f"<title>{tip}</title></circle>"
            )


def _legend(names: Sequence[str]) -> Iterable[str]:
    step = (WIDTH - 2 * MARGIN) / max(len(names), 1)
    for number, name in enumerate(names):
        x = MARGIN + number * step
        yield f'<rect x="{x:.1f}" y="{MARGIN}" width="10" height="10" fill="{_color(name)}"/>'
        yield _text(x + 14, MARGIN + 9, name, "small")


def _svg(height: float, parts: Iterable[str]) -> str:
    box = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {box}><style>{STYLE}</style>'
    return "\n".join([opening, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _color(name: str) -> str:
    return COLORS.get(name, "#888")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
