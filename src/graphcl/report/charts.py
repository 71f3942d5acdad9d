"""Charts as markup: curves in SVG, bars and the confusion matrix in HTML that reflows.

Colours are CSS classes and variables, so that the page supports light and dark mode.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MOST_POINTS = 400  # drawn per curve; a chart is about as many units wide


def line_chart(xs: Sequence[float], ys: Sequence[float], *, label: str, x_label: str) -> str:
    """Returns a curve with axes; `label` describes it for screen readers."""
    if len(xs) > MOST_POINTS:
        kept = np.linspace(0, len(xs) - 1, MOST_POINTS).round().astype(int)
        xs, ys = [xs[i] for i in kept], [ys[i] for i in kept]
    x_low, x_high = float(min(xs)), float(max(xs))
    y_ticks = ticks(min(ys), max(ys))
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label, quote=True)}">'
    ]
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in (t for t in ticks(x_low, x_high, 5) if t == round(t) and x_low <= t <= x_high):
        x, _ = place(tick, y_low)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:,.0f}</text>'
        )
    parts.append(
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">'
        f"{escape(x_label)}</text>"
    )
    points = [place(x, y) for x, y in zip(xs, ys, strict=True)]
    if len(points) == 1:
        parts.append(f'<circle class="dot" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="4"/>')
    else:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path class="curve" d="M{path}"/>')
    return "".join(parts) + "</svg>"


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Returns round numbers that span ``low … high``: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * i, 12) for i in range(first, last + 1)]


def bars(rows: Sequence[tuple[str, int]], *, label: str, coloured: bool = False) -> str:
    """Returns horizontal bars with their counts; `coloured` gives them their colours on the map."""
    most = max((count for _, count in rows), default=1) or 1
    total = sum(count for _, count in rows) or 1
    items = []
    for number, (name, count) in enumerate(rows):
        colour = f' data-colour="{number}"' if coloured else ""
        items.append(
            f'<li><span class="name">{escape(name)}</span>'
            f'<span class="track"><span class="bar"{colour} '
            f'style="width:{100 * count / most:.2f}%"></span></span>'
            f'<span class="count">{count:,} <small>{_percent(count / total)}</small></span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(label, quote=True)}">{"".join(items)}</ul>'


def degree_rows(degree: Any) -> list[tuple[str, int]]:
    """Returns counts of nodes by degree, in ranges that double: 1, 2, 3–4, 5–8 and so on."""
    degree = np.asarray(degree)
    rows = [("0", int((degree == 0).sum())), ("1", int((degree == 1).sum()))]
    low = 2
    while low <= max(int(degree.max(initial=0)), 2):
        high = 2 if low == 2 else 2 * (low - 1)
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        rows.append((name, int(((degree >= low) & (degree <= high)).sum())))
        low = high + 1
    return rows if rows[0][1] else rows[1:]


def confusion_table(classes: Sequence[str], counts: Any) -> str:
    """Returns the confusion matrix as a table: rows true, columns predicted, shaded by row."""
    counts = np.asarray(counts)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in classes)
    body = []
    for row, name in enumerate(classes):
        whole = max(int(counts[row].sum()), 1)
        cells = "".join(
            _cell(int(count), count / whole, row == column)
            for column, count in enumerate(counts[row])
        )
        recall = f"<td class='recall'>{_percent(counts[row, row] / whole)}</td>"
        body.append(f'<tr><th scope="row">{escape(name)}</th>{cells}{recall}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">'
        "<table class='confusion'><caption>Rows: the true class. Columns: the predicted class. "
        "Last column: the share of the row that is correct.</caption>"
        f'<thead><tr><td></td>{head}<th scope="col">correct</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(count: int, share: float, right: bool) -> str:
    kind = "right" if right else "wrong"
    text = f"{count:,}" if count else "<span class='nil'>·</span>"
    return f'<td class="{kind}" style="--share:{share:.3f}">{text}</td>'


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 or share == 0 else "&lt;1 %"
