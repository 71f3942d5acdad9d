"""The sections of the page and their charts as markup; every text of the user is escaped here.

A run may come from anybody, so nothing is taken for granted of the summaries of answers in it: a
section that cannot be made is left out.

Curves are SVG; bars and the confusion matrix are HTML that reflows. Colours are CSS classes and
variables, so that the page supports light and dark mode.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from graphcl.errors import counted
from graphcl.reporting.contents import Contents

MOST_BARS = 24
MOST_COLUMNS = 200
WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MOST_POINTS = 400  # drawn per curve; a chart is about as many units wide


def lead(contents: Contents) -> str:
    """Returns one sentence: the graph, the encoder, the seed and the device."""
    result, recipe = contents.result, contents.config.recipe
    source = str(result.get("graph", {}).get("source", contents.config.origin.graph))
    where = f" on <code>{escape(source)}</code>" if source else ""
    encoder = f"{recipe.get('layers', '?')}-layer {recipe.get('encoder', '')} encoder"
    state = "" if result.get("status", "complete") == "complete" else "; training was interrupted"
    return (
        f'<p class="lead">GraphCL trained{where}: a {escape(encoder)} of '
        f"{escape(str(recipe.get('dim', '?')))} dimensions, seed "
        f"{'?' if contents.config.seed is None else contents.config.seed}, on "
        f"{escape(str(result.get('device', 'an unknown device')))}{state}.</p>"
    )


def tiles(contents: Contents) -> str:
    """Returns the key figures at the top of the page."""
    result, graph = contents.result, contents.result.get("graph", {})
    probe = result.get("probe") or {}
    shown: list[tuple[str, str]] = [("nodes", f"{contents.nodes.num_nodes:,}")]
    shown += [(key, f"{graph[key]:,}") for key in ("edges", "features") if key in graph]
    if "val_micro_f1" in probe:
        shown.append(("micro-F1 on test nodes", f"{probe['micro_f1']:.3f}"))
    elif "accuracy" in probe:
        shown.append(("accuracy on test nodes", f"{100 * probe['accuracy']:.1f} %"))
    elif contents.clusters.silhouette is not None:
        shown.append(("silhouette", f"{contents.clusters.silhouette:.2f}"))
    if contents.metrics:
        shown.append(("epochs", f"{contents.metrics[-1]['epoch']:,}"))
        shown.append(("final loss", f"{contents.metrics[-1]['loss']:.3f}"))
    if "train_seconds" in result:
        shown.append(("training", _seconds(float(result["train_seconds"]))))
    return tile_list(shown)


def tile_list(shown: Iterable[tuple[str, str]]) -> str:
    """Returns figures with their names, side by side; all are escaped."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def warnings_box(contents: Contents) -> str:
    """Returns the signs that the training failed; nothing if there are none."""
    signs = contents.result.get("warnings") or []
    texts = "".join(
        f"<p><strong>Warning:</strong> {escape(str(sign.get('message', '')))}. "
        f"<br>Try {escape(str(sign.get('advice', '')))}.</p>"
        for sign in signs
        if isinstance(sign, Mapping)
    )
    return f'<div class="notes warnings" role="note">{texts}</div>' if texts else ""


def graph_section(contents: Contents) -> str:
    """Returns the graph's statistics and its degree distribution."""
    degree: Any = contents.nodes.degree
    graph = contents.result.get("graph", {})
    facts: list[tuple[str, str, str]] = [("Nodes", f"{len(degree):,}", "")]
    for key, name in (("edges", "Edges (undirected)"), ("features", "Features per node")):
        if key in graph:
            facts.append((name, f"{graph[key]:,}", ""))
    if (y := contents.nodes.classes) is not None:
        labelled = y[y >= 0]
        about = f"{len(labelled):,} nodes labelled"
        facts.append(("Classes", f"{len(np.unique(labelled)):,}", about))
    facts.append(("Mean degree", f"{degree.mean():.2f}", f"median {np.median(degree):g}"))
    facts.append(("Largest degree", f"{int(degree.max(initial=0)):,}", ""))
    facts.append(("Nodes without edges", f"{int((degree == 0).sum()):,}", ""))
    if contents.components is not None:
        facts.append(("Connected components", f"{contents.components:,}", ""))
    if contents.homophily is not None:
        share = f"{100 * contents.homophily:.0f} %"
        facts.append(("Edges within one class", share, "homophily"))
    drawn = bars(degree_rows(degree), label="Nodes by degree")
    return card(
        "The graph",
        f'<div class="two"><div>{facts_table(facts)}</div>'
        f"<figure><h3>Nodes by degree</h3>{drawn}</figure></div>{_columns(contents)}",
    )


def _columns(contents: Contents) -> str:
    """Returns what became of the columns of the node table, if there was one."""
    if not contents.columns:
        return ""
    facts = []
    for name, became, missing in contents.columns[:MOST_COLUMNS]:
        facts.append((name, became, f"{missing:,} missing" if missing else ""))
    left = len(contents.columns) - MOST_COLUMNS
    more = f"<p class='hint'>… and {left:,} more columns</p>" if left > 0 else ""
    title = f"What became of {counted(len(contents.columns), 'column')}"
    return f"<details><summary>{title}</summary>{facts_table(facts)}{more}</details>"


def training_section(contents: Contents) -> str:
    """Returns the curves of the loss and of the bound, and the recipe."""
    epochs = [line["epoch"] for line in contents.metrics]
    curves = "<p>No epoch recorded.</p>"
    if epochs:
        losses = [line["loss"] for line in contents.metrics]
        about = "Lower is better; compare only runs of the same temperature and batch size."
        figures = _curve("Loss (NT-Xent)", "Loss", epochs, losses, about)
        bounds = [line.get("mi_bound") for line in contents.metrics]
        if None not in bounds:
            about = (
                "log k − loss, in nats: one view tells at least this much about the other. "
                "A bound below 0 tells nothing."
            )
            figures += _curve("Bound on mutual information", "Bound", epochs, bounds, about)
        curves = f'<div class="two">{figures}</div>'
    recipe = "\n".join(f"{key} = {value}" for key, value in contents.config.recipe.items())
    details = f"<details><summary>The recipe</summary><pre>{escape(recipe)}</pre></details>"
    scaling = str(contents.result.get("scaling", ""))
    said = f"<p class='hint'>{escape(scaling)}</p>" if scaling else ""
    return card("Training", curves + said + details)


def probe_section(contents: Contents) -> str:
    """Returns the probe's scores and confusion matrix, or the reason why there are none."""
    probe = contents.result.get("probe")
    if not probe:
        why = contents.result.get("probe_skipped") or "the run contains no score"
        return card("Labels", f"<p>There is no probe score: {escape(str(why))}.</p>")
    note = contents.result.get("note")
    notice = f"<p><strong>Note:</strong> {escape(str(note))}</p>" if note else ""
    train, val, test = probe["nodes"]
    first = (
        ("Micro-F1", f"{probe['micro_f1']:.4f}")
        if "val_micro_f1" in probe
        else ("Accuracy", f"{100 * probe['accuracy']:.1f} %")
    )
    facts = [
        (*first, f"{test:,} test nodes, {probe['split']} split"),
        *_majority(probe),
        ("Macro-F1", f"{probe['macro_f1']:.3f}", "mean over classes"),
        ("Trained on", f"{train:,} nodes", f"strength chosen on {val:,}"),
    ]
    text = (
        "<p class='hint'>Logistic regression on the frozen embeddings. Labels were used only for "
        "this, never in training.</p>"
    )
    table = ""
    if contents.confusion is not None:
        names = [contents.nodes.class_name(one) for one in contents.confusion.classes.tolist()]
        table = confusion_table(names, contents.confusion.counts)
    return card(
        "With labels",
        f'{notice}{text}<div class="uneven"><div>{facts_table(facts)}</div>{table}</div>',
    )


def _majority(probe: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the score of one answer for all nodes, and how well two classes are told apart."""
    share, area = probe.get("majority"), probe.get("roc_auc")
    facts = []
    if area is not None:
        facts.append(("ROC-AUC", f"{area:.3f}", "0.5 means that it cannot tell the classes apart"))
    if share is not None and "val_micro_f1" in probe:
        facts.append(("Majority", f"{share:.4f}", "micro-F1 of the same labels for all nodes"))
    elif share is not None:
        facts.append(("Majority", f"{100 * share:.1f} %", "accuracy of one class for all nodes"))
    return facts


def unsupervised_section(contents: Contents) -> str:
    """Returns the measures that need no labels."""
    distance = "squared distance between two views of a node; 0 means equal, 2 unrelated"
    spread = "lower is more evenly spread; 0 means all embeddings coincide"
    directions = "directions that the embeddings use; 1 means that they coincide"
    cosine = "between two nodes; 1 means that all embeddings coincide"
    measures = (
        ("Alignment", contents.alignment, ".3f", distance),
        ("Uniformity", contents.uniformity, ".2f", spread),
        ("Effective rank", contents.effective_rank, ".1f", directions),
        ("Mean cosine", contents.mean_cosine, ".3f", cosine),
    )
    facts = [
        (name, f"{value:{how}}", about) for name, value, how, about in measures if value is not None
    ]
    if contents.agreement is not None:
        agreement = contents.agreement
        chance = _share(agreement.chance)
        about = f"of graph neighbours are among the {agreement.k} nearest; by chance {chance}"
        facts.append(("Neighbour agreement", _share(agreement.share), about))
    if contents.clusters.silhouette is not None:
        about = f"of {len(contents.clusters.sizes)} clusters; 1 means clear-cut, 0 no structure"
        facts.append(("Silhouette", f"{contents.clusters.silhouette:.3f}", about))
    sizes = contents.clusters.sizes
    rows = [(f"cluster {number}", size) for number, size in enumerate(sizes[:MOST_BARS], 1)]
    labelled = contents.nodes.classes is not None
    chosen = "as many as there are classes" if labelled else "the number chosen by the silhouette"
    drawn = bars(rows, label="Nodes by cluster", coloured=True)
    return card(
        "Without labels",
        f'<div class="two"><div>{facts_table(facts)}</div><figure><h3>Cluster sizes</h3>{drawn}'
        f"<figcaption>k-means on embeddings of length 1, {chosen}.</figcaption></figure></div>",
    )


def _curve(title: str, name: str, epochs: list[Any], values: list[Any], caption: str) -> str:
    label = f"{name} per epoch, from {values[0]:.4g} to {values[-1]:.4g}"
    chart = line_chart(epochs, values, label=label, x_label="epoch")
    below = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure><h3>{escape(title)}</h3>{chart}{below}</figure>"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"


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
        x, y = LEFT + across * (WIDTH - LEFT - RIGHT), up * (HEIGHT - TOP - BOTTOM)
        return x, HEIGHT - BOTTOM - y

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
        recall = f"<td class='recall'>{percent(counts[row, row] / whole)}</td>"
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


def card(title: str, body: str) -> str:
    """Returns a section with a heading; `body` is markup."""
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>'


def facts_table(facts: Iterable[tuple[Any, ...]]) -> str:
    """Returns rows of a name, a value and a remark; all are escaped."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}'
        f"{f'<small>{escape(about)}</small>' if about else ''}</td></tr>"
        for name, value, about in facts
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


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
            f'<span class="count">{count:,} <small>{percent(count / total)}</small></span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(label, quote=True)}">{"".join(items)}</ul>'


def percent(share: float) -> str:
    """Returns a share as markup."""
    return f"{100 * share:.0f} %" if share >= 0.0095 or share == 0 else "&lt;1 %"


def asset(name: str) -> str:
    """Returns a script or style of the pages."""
    return (resources.files("graphcl.reporting") / "assets" / name).read_text(encoding="utf-8")


MOST_ROWS = 12


def answer_sections(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a section for each answer that the run keeps, in a fixed order."""
    made: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "predict": predictions,
        "cluster": groups,
        "links": links,
    }
    found = []
    for kind, make in made.items():
        if kind in answers:
            try:
                found.append(make(answers[kind]))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError):
                continue  # damaged, or of another version
    return "".join(found)


def predictions(about: Mapping[str, Any]) -> str:
    """Returns the section on predicted labels: how many, and how often they are wrong."""
    facts = [("Nodes predicted", f"{int(about['nodes']):,}", "")]
    facts.append(("Learned from", f"{sum(map(int, about['labelled'].values())):,} labels", ""))
    for key, what in (("error", "labelled nodes, each held out"), ("test", "test nodes")):
        error = about.get(key)
        if error:
            facts += _error(error, what, several=bool(about["several"]))
    counts = sorted(about["predicted"].items(), key=lambda pair: -int(pair[1]))[:MOST_ROWS]
    drawn = bars([(str(name), int(count)) for name, count in counts], label="Nodes by label")
    text = (
        "<p class='hint'>From <code>graphcl predict</code>: logistic regression on the embeddings, "
        "with calibrated probabilities.</p>"
    )
    return card(
        "Predicted labels",
        f'{text}<div class="two"><div>{facts_table(facts)}</div>'
        f"<figure><h3>Predicted, by label</h3>{drawn}</figure></div>",
    )


def _error(error: Mapping[str, Any], what: str, *, several: bool) -> list[tuple[str, str, str]]:
    nodes = f"{int(error['nodes']):,} {what}"
    word = "Measured" if error.get("how") == "held-out nodes" else "Expected"
    if several:
        score = (f"{word} micro-F1", f"{float(error['micro_f1']):.3f}", nodes)
    else:
        spread = f" ± {100 * float(error['standard_error']):.1f}"
        accuracy = f"{100 * float(error['accuracy']):.1f}{spread} %"
        score = (f"{word} accuracy", accuracy, nodes)
    majority = float(error["majority"])
    alone = f"{majority:.3f}" if several else f"{100 * majority:.1f} %"
    return [
        score,
        ("Majority", alone, "one answer for all nodes"),
        (
            "Calibration error",
            f"{float(error['calibration_error']):.3f}",
            "how far probabilities are from the share that is right",
        ),
    ]


def groups(about: Mapping[str, Any]) -> str:
    """Returns the section on groups: their sizes, and the nodes nearest to their centres."""
    rows = []
    for number, (size, names) in enumerate(zip(about["sizes"], about["typical"], strict=True), 1):
        listed = ", ".join(escape(str(name)) for name in names)
        rows.append(
            f'<tr><th scope="row">group {number}</th><td>{int(size):,} nodes'
            f"<small>{listed}</small></td></tr>"
        )
    score = about.get("silhouette")
    said = f"{int(about['groups'])} groups by {escape(str(about['method']))}"
    said += f", silhouette {float(score):.3f}" if score is not None else ""
    if about.get("chosen_by"):
        said += f"; their number was chosen by the {escape(str(about['chosen_by']))}"
    if about.get("outside"):
        said += f"; {int(about['outside']):,} nodes are in none"
    shown = rows[:MOST_ROWS]
    more = len(rows) - len(shown)
    below = f"<p class='hint'>… and {more} smaller groups.</p>" if more else ""
    return card(
        "Groups",
        f"<p class='hint'>From <code>graphcl cluster</code>: {said}. Named are the nodes nearest "
        f'to each centre.</p><table class="facts"><tbody>{"".join(shown)}</tbody></table>{below}',
    )


def links(about: Mapping[str, Any]) -> str:
    """Returns the section on links: the likeliest, and what their scores are worth."""
    body = ""
    best = about.get("best") or []
    if best:
        rows = [
            (
                f"{one['source']} – {one['target']}",
                f"{float(one['score']):.3f}",
                str(one.get("why") or ""),
            )
            for one in best[:MOST_ROWS]
        ]
        body += f"<div><h3>Most likely, and missing</h3>{facts_table(rows)}</div>"
    worth = about.get("evaluation")
    if worth:
        rows = []
        for name, one in worth["scores"].items():
            text = f"ROC-AUC {float(one['roc_auc']):.3f}, MRR {float(one['mrr']):.3f}"
            rows.append((name.replace("_", " "), text, ""))
        said = (
            f"{int(worth['held_out']):,} linked pairs were removed before training; each is ranked "
            f"among {int(worth['negatives'])} pairs that are not linked."
        )
        caption = f"<p class='hint'>{escape(said)}</p>"
        body += f"<div><h3>What the scores are worth</h3>{facts_table(rows)}{caption}</div>"
    text = (
        "<p class='hint'>From <code>graphcl links</code>: scores, and what speaks for a link.</p>"
    )
    return card("Links", f'{text}<div class="two">{body}</div>') if body else ""
