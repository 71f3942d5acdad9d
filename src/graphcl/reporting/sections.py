"""The markup of pages: templates in `assets`, and what they are given. All that is text is escaped.

A run may come from anybody, so nothing is taken for granted of the summaries of answers in it: a
section that cannot be made is left out.

Curves are SVG; bars and the confusion matrix are HTML that reflows. Colours are CSS classes and
variables, so that the page supports light and dark mode.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.exceptions import UndefinedError
from markupsafe import Markup

from graphcl.errors import counted, duration
from graphcl.reporting.contents import DAMAGED, Contents
from graphcl.tabular.originals import Original

MOST_ROWS = 12
LISTED = 25  # rows of the list that are there without a script, and on paper
LISTED_COLUMNS = 10
WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MOST_POINTS = 400  # drawn per curve; a chart is about as many units wide


def fill(template: str, **given: Any) -> str:
    """Returns a page: a template of `assets`, filled."""
    return PAGES.get_template(template).render(**given)


def part(name: str, *given: Any, template: str = "parts.html", **named: Any) -> Markup:
    """Returns a part of a page: what a macro of a template makes."""
    found: Markup = getattr(PAGES.get_template(template).module, name)(*given, **named)
    return found


def report(contents: Contents, columns: Sequence[Original], **given: Any) -> str:
    """Returns the report; `columns` are listed, and `given` is what else its template asks for."""
    nodes, ranking, title = contents.nodes, contents.ranking, contents.title or contents.name
    rows = contents.points.rows if ranking is None else ranking.rows
    known = np.zeros(0, int) if nodes.classes is None else nodes.classes[nodes.classes >= 0]
    told = () if contents.confusion is None else contents.confusion.classes.tolist()
    return fill(
        "report.html",
        contents=contents,
        title=contents.title or f"GraphCL: {title}",
        heading=title,
        columns=columns[:LISTED_COLUMNS],
        listed=rows[:LISTED].tolist(),
        answers=answer_sections(contents.answers),
        groups=answer_sections({"groups": contents.answers.get("cluster", {})}, ("groups",)),
        classes=dict(zip(*np.unique(known, return_counts=True), strict=True)),
        class_names=[nodes.class_name(one) for one in told],
        median=np.median(np.asarray(nodes.degree)),
        **given,
    )


def answer_sections(
    answers: Mapping[str, Mapping[str, Any]], kinds: Sequence[str] = ("predict", "cluster", "links")
) -> Markup:
    """Returns a section for each answer that the run keeps, in this order."""
    found = Markup()
    for kind in kinds:
        with suppress(*DAMAGED, UndefinedError):
            found += part(kind, answers[kind], template="answers.html")
    return found.strip()


def line_chart(xs: Sequence[float], ys: Sequence[float], *, label: str, x_label: str) -> Markup:
    """Returns a curve, with both ends of its axes; `label` describes it for screen readers."""
    kept = np.linspace(0, len(xs) - 1, min(len(xs), MOST_POINTS)).round().astype(int)
    x, y = np.asarray(xs, float)[kept], np.asarray(ys, float)[kept]
    across, up = (np.ptp(one) or 1.0 for one in (x, y))
    right = LEFT + (x - x.min()) / across * (WIDTH - LEFT - RIGHT)
    down = TOP + (y.max() - y) / up * (HEIGHT - TOP - BOTTOM)
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(right, down, strict=True)]
    below = HEIGHT - BOTTOM + 16
    texts = (
        (LEFT - 7, TOP + 8, "end", f"{y.max():.4g}"),
        (LEFT - 7, HEIGHT - BOTTOM, "end", f"{y.min():.4g}"),
        (LEFT, below, "start", f"{x_label} {x.min():,.0f}"),
        (WIDTH - RIGHT, below, "end", f"{x.max():,.0f}"),
    )
    return part("chart", WIDTH, HEIGHT, texts, points, label).strip()


def degree_rows(degree: Any) -> list[tuple[str, int]]:
    """Returns counts of nodes by degree, in ranges that double: 1, 2, 3–4, 5–8 and so on."""
    degree = np.asarray(degree)
    ranks = np.where(degree > 0, np.ceil(np.log2(np.maximum(degree, 1))) + 1, 0).astype(int)
    names = ["0", "1", "2"]
    names += [f"{2 ** (r - 2) + 1:,}–{2 ** (r - 1):,}" for r in range(3, ranks.max(initial=0) + 1)]
    counts = np.bincount(ranks, minlength=3).tolist()
    return [(n, c) for n, c in zip(names, counts, strict=True) if c or n != "0"]


def percent(share: float) -> str:
    """Returns a share in words."""
    return f"{100 * share:.0f} %" if share >= 0.0095 or share == 0 else "<1 %"


def asset(name: str) -> str:
    """Returns a script or style of the pages."""
    return (resources.files("graphcl.reporting") / "assets" / name).read_text(encoding="utf-8")


PAGES = Environment(
    loader=PackageLoader("graphcl.reporting", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters |= {
    "commas": "{:,}".format,
    "counted": counted,
    "duration": duration,
    "percent": percent,
}
PAGES.globals |= {
    "asset": asset,
    "degree_rows": degree_rows,
    "line_chart": line_chart,
    "most_rows": MOST_ROWS,
    "zip": zip,
}
