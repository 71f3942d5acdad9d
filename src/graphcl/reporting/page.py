"""Renders the report, and the drift page of a version, as one HTML file that needs no network.

The markup is in the templates of `assets`. Every text that comes from the user (ids, classes,
graph, path) is escaped or encoded in base64. A Content-Security-Policy forbids all connections, and
all scripts but the page's own. A run may come from anybody, so nothing is taken for granted of the
summaries of answers in it: a section that cannot be made is left out.

Curves are SVG; bars and the confusion matrix are HTML that reflows. Colours are CSS classes and
variables, so that the page supports light and dark mode.

The scatter plot does not use Plotly, whose script alone takes 4.5 MB, half of the page's budget.
Ours is a few hundred lines and draws 200,000 points in one call.

The map's arrays are split into byte planes, deflated and written in base64. Planes compress well
because the high bytes of neighbouring values are alike. Base64 cannot end a script or open a tag.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.exceptions import UndefinedError
from markupsafe import Markup

from graphcl.arrays import Array
from graphcl.errors import RunError, counted, duration, option, require
from graphcl.files.atomic import check_new_file, write_whole
from graphcl.graphs.graph import Graph
from graphcl.reporting.contents import (
    DAMAGED,
    AnyGraph,
    Contents,
    Sharded,
    all_columns,
    gather,
    probe_scores,
)
from graphcl.runs import files as runs
from graphcl.runs.nodes import type_folder
from graphcl.tabular.originals import Original, originals
from graphcl.tabular.preparation import CATEGORY, TEXT
from graphcl.version import versions

MOST_ROWS = 12
LISTED = 25  # rows of the list that are there without a script, and on paper
LISTED_COLUMNS = 10
WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MOST_POINTS = 400  # drawn per curve; a chart is about as many units wide
MOST_BYTES = 10_000_000
COLUMN_BYTES = 4_000_000  # of the user's columns
FEW = 20_000  # nodes, of which numbers have all digits
SKEW = 20  # a number whose largest is so many times its median is skewed
NEIGHBOURS_SHOWN = (10, 8, 6, 4, 3)  # per node; tried in turn until the page is small enough


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


def render(contents: Contents) -> str:
    """Returns the whole page.

    Own columns come as far as `COLUMN_BYTES` reach; if the page is too large even so, none do.

    Raises:
        RunError: the page would exceed `MOST_BYTES` even with few neighbours per node. Ids of
            hundreds of characters can cause this.
    """
    order = morton_order(quantised(contents.points.places))
    points, (found, own, packed, own_packed) = _points(contents, order), _packed(contents, order)
    sizes = np.cumsum([len(str(one)) for one in own_packed])
    for few in (int((sizes <= COLUMN_BYTES).sum()), 0):
        shown, known = (*found, *own[:few]), {"channels": packed + own_packed[:few]}
        for k in NEIGHBOURS_SHOWN:
            data = points | known | _neighbours(contents, order, k)
            page = _page(contents, shown, data, [one.name for one in own[few:]])
            if len(page.encode("utf-8", "replace")) < MOST_BYTES:
                return page
    raise RunError(
        f"{contents.name}: the report would exceed {MOST_BYTES // 10**6} MB; "
        "node ids that are very long make it large: shorten them"
    )


def map_data(contents: Contents, k: int) -> dict[str, Any]:
    """Returns what the map's script reads, with `k` neighbours of each node."""
    order = morton_order(quantised(contents.points.places))
    _, _, packed, own = _packed(contents, order)
    channels = {"channels": packed + own}
    return _points(contents, order) | _neighbours(contents, order, k) | channels


def _packed(contents: Contents, order: Array) -> tuple[list[Any], ...]:
    """Returns what is known of nodes, the user's columns, and both as the script reads them."""
    own = contents.columns or originals(contents.nodes)
    both = all_columns(contents.nodes, contents.ranking, contents.assigned, own)
    rows = contents.points.rows[order]
    return (*both, *([packed_column(one, rows) for one in some] for some in both))


def packed_column(column: Original, rows: Any) -> dict[str, Any]:
    """Returns the values of a column as the page's script reads them.

    Of a category, the place after the last name is a missing value; of a number it is NaN. Numbers
    of many nodes have the seven digits of a float32.
    """
    about: dict[str, Any] = {"title": column.name, "kind": column.kind, "unit": column.unit}
    values = column.values[rows]
    if column.kind == TEXT:
        return about | {"values": pack_texts(["" if one is None else one for one in values])}
    if column.kind == CATEGORY:
        names = sorted({one for one in column.values.tolist() if one is not None}, key=_by_number)
        place = {name: number for number, name in enumerate(names)} | {None: len(names)}
        width = np.uint8 if len(names) < 255 else np.uint32
        codes = np.array([place[one] for one in values.tolist()], width)
        return about | {"names": names, "values": pack(codes)}
    there = column.values[np.isfinite(column.values)]
    ends = np.quantile(there, (0, 0.02, 0.5, 0.98, 1)).tolist() if len(there) else [0.0] * 5
    # Skewed numbers, such as degrees, are coloured on a logarithmic scale.
    log = ends[0] >= 0 and ends[4] > SKEW * max(ends[2], 1)
    low, high = (ends[0], ends[4]) if log else (ends[1], ends[3])
    numbers = pack(values.astype(np.float32 if len(values) > FEW else np.float64))
    return about | {"low": low, "high": high, "log": log, "values": numbers}


def _by_number(name: str) -> tuple[int, str]:
    """Sorts ``group 10`` after ``group 9``."""
    digits = name.rpartition(" ")[2]
    return (int(digits) if digits.isdecimal() and len(digits) < 9 else -1, name)


def _view(grid: Any) -> list[float]:
    """Returns the centre and the zoom that show all points but a few outliers."""
    low, high = np.quantile(grid / 65535, (0.01, 0.99), axis=0)
    side = max(float((high - low).max()) * 1.1, 0.05)
    return [*((low + high) / 2).tolist(), max(1.0, 1 / side)]


def _points(contents: Contents, order: Any) -> dict[str, Any]:
    rows = contents.points.rows[order]
    grid = quantised(contents.points.places)[order]
    return {  # what the map's script reads, with `_neighbours`
        "places": pack(grid.ravel()),
        "view": _view(grid),
        "ids": pack_texts([str(name) for name in contents.nodes.ids[rows].tolist()]),
        "ranked": pack(_places(contents, rows)),
    }


def _places(contents: Contents, rows: Any) -> Array:
    """Returns the points of the ranked nodes, the first first; the list begins with them."""
    place = np.full(contents.nodes.num_nodes, -1, np.int64)
    place[rows] = np.arange(len(rows))
    ranked = np.zeros(0, np.int64) if contents.ranking is None else place[contents.ranking.rows]
    return ranked[ranked >= 0].astype(np.uint32)


def _neighbours(contents: Contents, order: Any, k: int) -> dict[str, Any]:
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    near = position[contents.points.neighbours[order][:, :k]]
    similar = np.clip(contents.points.cosines[order][:, :k], 0, 1)
    return {
        "k": near.shape[1],
        "neighbours": pack(relative(near).ravel()),
        "cosines": pack(np.round(similar * 250).astype(np.uint8).ravel()),
    }


def _page(
    contents: Contents, columns: Sequence[Original], data: dict[str, Any], left: list[str]
) -> str:
    script, notes = joined_scripts("data.js", "scatter.js", "list.js", "map.js"), contents.notes
    if left:
        without = f"The page would be too large with all columns; without: {', '.join(left)}."
        notes = [*notes, without]
    return report(
        contents,
        columns,
        notes=notes,
        digest=script_digest(script),
        script=script,
        data=script_json(data),
    )


def map_section(contents: Contents) -> str:
    """Returns the markup of the map, which the script fills."""
    return part("map", len(contents.points.rows), contents.points.method)


def joined_scripts(*names: str) -> str:
    """Returns scripts of the pages as one."""
    return "\n".join(asset(name) for name in names)


def script_digest(script: str) -> str:
    """Returns by what a page's policy knows its own script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def pack(values: Array) -> dict[str, Any]:
    """Returns an array as ``{"type": "u2", "data": base64}``, or ``f4`` …, for `data.js`."""
    kind, width = values.dtype.kind, values.dtype.itemsize
    planes = values.astype(f"<{kind}{width}").view(np.uint8).reshape(-1, width).T
    return {"type": f"{kind}{width}", "data": _deflated(np.ascontiguousarray(planes).tobytes())}


def pack_texts(texts: list[str]) -> str:
    """Returns texts as base64 of deflated JSON."""
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    return _deflated(json.dumps(clean, ensure_ascii=False).encode())


def script_json(value: Any) -> str:
    """Returns JSON that is safe inside a script element: it contains no ``<``."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def quantised(coordinates: Array) -> Array:
    """Returns coordinates ``[N, 2]`` as uint16, scaled to 65,536 steps with their shape kept."""
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    side = float((high - low).max())
    centred = (coordinates - (low + high) / 2) / (side if side > 0 else 1) + 0.5
    return np.asarray(np.round(np.clip(centred, 0, 1) * 65535).astype(np.uint16))


def morton_order(grid: Array) -> Array:
    """Returns the order of points along a Morton curve: near on the map, near in the list."""
    # A point's key interleaves the bits of x and y, so that its high bits name its quadrant.
    key = np.zeros(len(grid), np.uint64)
    x, y = grid[:, 0].astype(np.uint64), grid[:, 1].astype(np.uint64)
    for bit in range(16):
        shift = np.uint64(bit)
        key |= ((x >> shift) & np.uint64(1)) << np.uint64(2 * bit)
        key |= ((y >> shift) & np.uint64(1)) << np.uint64(2 * bit + 1)
    return np.argsort(key, kind="stable")


def relative(neighbours: Array) -> Array:
    """Returns row numbers ``[N, k]`` as offsets from their own row (uint32).

    The lowest bit holds the sign. In Morton order most offsets are small, so their high bytes are
    zero and compress well.
    """
    offset = neighbours.astype(np.int64) - np.arange(len(neighbours))[:, None]
    return np.where(offset < 0, -2 * offset - 1, 2 * offset).astype(np.uint32)


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def drift_page(about: Mapping[str, Any], drift: Mapping[str, Any]) -> str:
    """Returns the whole page.

    Args:
        about: what `version.json` says of the version.
        drift: what `Drift.to_json` returned.
    """
    name = f"{about.get('run', 'run')}, version {about['version']}"
    edges = drift["histogram"]["up_to"]
    regions = [
        {
            "region": str(number),
            "nodes": f"{one['nodes']:,}",
            "embedded again": f"{100 * one['embedded']:.0f} %",
            "median move": f"{100 * one['moved']:.1f} %",
            "neighbours kept": f"{100 * one['kept']:.1f} %",
            "new": f"{one['joined']:,}",
            "such as": ", ".join(map(str, one["examples"])),
        }
        for number, one in enumerate(drift["regions"], 1)
    ]
    return fill(
        "drift.html",
        title=f"GraphCL drift: {name}",
        heading=name,
        digest="",
        about=about,
        drift=drift,
        moves=["not at all", *(f"up to {100 * one:g} %" for one in edges[1:-1]), "more"],
        regions=regions,
    )


@dataclass(frozen=True)
class Page:
    """A page that was written.

    Attributes:
        path: the file.
        bytes: its size.
        nodes: how many are on the map.
    """

    path: Path
    bytes: int
    nodes: int


def check_page(path: Path, layout: str, *, overwrite: bool) -> None:
    """Refuses a page before any work is done for it."""
    require(layout in ("umap", "pca"), "report", option("layout"), "umap or pca", layout)
    check_new_file(path, (".html", ".htm"), RunError, overwrite=overwrite)


def write_page(
    path: Path,
    run: Path,
    graph: AnyGraph | None,
    *,
    layout: str = "umap",
    seed: int = 0,
    why: str = "",
    node_type: str | None = None,
    sharded: Sharded | None = None,
    **shown: Any,
) -> Page:
    """Writes the page of a run; see `gather` for the arguments, also those in `shown`.

    Of a run that `GraphCL.save` wrote, what a training would have noted is measured first.
    """
    result = None
    if graph is not None and not (run / runs.RESULT).is_file():
        result = _measured(run, graph, node_type)
    own = None if node_type is not None else graph
    contents = gather(
        run,
        own,
        method=layout,
        seed=seed,
        why=why,
        node_type=node_type,
        sharded=sharded,
        result=result,
        **shown,
    )
    text = render(contents).encode("utf-8", "replace")
    write_whole(path, text)
    return Page(path, len(text), len(contents.points.rows))


def _measured(run: Path, graph: AnyGraph, node_type: str | None) -> dict[str, Any]:
    """Returns what `graphcl train` would have kept as `result.json`, as far as it is known."""
    metrics, z = runs.read_metrics(run), runs.read_embeddings(type_folder(run, node_type))
    judged = graph.nodes[node_type] if isinstance(graph, Graph) and node_type else graph
    scores = probe_scores(z, None if judged.y is None else judged, "the graph has no labels")
    if scores["probe"] is not None and node_type:
        scores["probe"] = {"type": node_type, **scores["probe"]}
    return {
        "graph": asdict(runs.GraphFacts.of(graph, graph.name)),
        "seed": runs.read_config(run).seed,
        "versions": versions(),
        **({"train_seconds": metrics[-1]["seconds"]} if metrics else {}),
        **scores,
    }
