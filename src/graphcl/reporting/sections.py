"""The sections of the page and their charts as markup; every text of the user is escaped here.

A run may come from anybody, so nothing is taken for granted of the summaries of answers in it: a
section that cannot be made is left out.

Curves are SVG; bars and the confusion matrix are HTML that reflows. Colours are CSS classes and
variables, so that the page supports light and dark mode.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from graphcl.errors import counted
from graphcl.reporting.channels import DAMAGED
from graphcl.reporting.contents import Contents
from graphcl.tabular.originals import Original

MOST_ROWS = 12
LISTED = 25  # rows of the list that are there without a script, and on paper
LISTED_COLUMNS = 10
ASK = "graphcl predict RUN"
MADE = '<h2 class="part">How this was made</h2>'
MOST_COLUMNS = 200
WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 30
MOST_POINTS = 400  # drawn per curve; a chart is about as many units wide


def lead(contents: Contents) -> str:
    """Returns one sentence on what the page is about."""
    graph, nodes = contents.result.get("graph", {}), contents.nodes.num_nodes
    linked = f" and {counted(int(graph['edges']), 'link')} between them" if "edges" in graph else ""
    source = str(graph.get("source", contents.config.origin.graph))
    where = f", from <code>{escape(source)}</code>" if source else ""
    return f'<p class="lead">About {counted(nodes, "node")}{linked}{where}.</p>'


def headline(contents: Contents) -> str:
    """Returns the answer in a sentence or two: who comes first, and what groups there are."""
    said = [f"No predictions are kept. {ASK} gives them, and a list to act on."]
    ranking, groups = contents.ranking, contents.answers.get("cluster", {})
    if ranking is not None:
        rows = ranking.rows[:3].tolist()
        each = (f"{contents.nodes.ids[row]} ({ranking.columns[0].text(row)})" for row in rows)
        words = str(contents.answers.get("predict", {}).get("text", "")).splitlines()
        said = [f"Highest {ranking.columns[0].name}: {', '.join(each)}."]
        said += [f"How far to trust this: {line}." for line in words[1:2]]
    with suppress(*DAMAGED):
        told = enumerate(groups["profiles"][:3], 1)
        apart = [f"{one[0]['what']} (group {n})" for n, one in told if one]
        by = f"; what sets them apart: {', '.join(apart)}" if apart else ""
        if int(groups["groups"]) > 1:
            said.append(f"There are {int(groups['groups'])} groups of similar nodes{by}.")
    return "".join(f'<p class="headline">{escape(one)}</p>' for one in said)


def list_section(contents: Contents, columns: Sequence[Original]) -> str:
    """Returns the list: ranked nodes first; a script searches and sorts it, and shows more."""
    ranking, nodes = contents.ranking, contents.nodes
    rows = contents.points.rows if ranking is None else ranking.rows
    shown = columns[:LISTED_COLUMNS]
    head = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in shown)
    body = []
    for row in rows[:LISTED].tolist():
        cells = "".join(f"<td>{escape(one.text(row))}</td>" for one in shown)
        body.append(f'<tr><th scope="row">{escape(str(nodes.ids[row]))}</th>{cells}</tr>')
    title, how = "All nodes", "Press an id for all that is known of a node, and its neighbours."
    if ranking is not None:
        how = f"Sorted by {ranking.columns[0].name}, highest first. {how}"
        title = "To look at first"
    return (
        f'<section class="card" aria-labelledby="list-title"><h2 id="list-title">{title}</h2>'
        f'<p class="hint">{escape(how)}</p><form class="controls" id="sift" role="search"><label>'
        'Search <input id="sought" type="search" autocomplete="off" spellcheck="false"></label>'
        '<span id="sifted" class="hint" role="status"></span></form>'
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="list-title">'
        f'<table id="list" class="list"><thead><tr><th scope="col">id</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<button id="more" type="button" hidden>Show more</button>'
        '<dialog id="node" aria-label="A node"></dialog></section>'
    )


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
    if not contents.fates:
        return ""
    facts = (
        (name, became, f"{missing:,} missing" if missing else "")
        for name, became, missing in contents.fates[:MOST_COLUMNS]
    )
    left = len(contents.fates) - MOST_COLUMNS
    more = f"<p class='hint'>… and {left:,} more columns</p>" if left > 0 else ""
    title = f"What became of {counted(len(contents.fates), 'column')}"
    return f"<details><summary>{title}</summary>{facts_table(facts)}{more}</details>"


def training_section(contents: Contents) -> str:
    """Returns the curves of the loss and of the bound, and the recipe."""
    epochs = [line["epoch"] for line in contents.metrics]
    curves = "<p>No epoch recorded.</p>"
    result, recipe = contents.result, contents.config.recipe
    encoder = f"{recipe.get('layers', '?')}-layer {recipe.get('encoder', '')} encoder"
    state = "" if result.get("status", "complete") == "complete" else "; training was interrupted"
    took = f" in {_seconds(float(result['train_seconds']))}" if "train_seconds" in result else ""
    device = str(result.get("device", "an unknown device"))
    about = (
        f"GraphCL, a {encoder} of {recipe.get('dim', '?')} dimensions, seed "
        f"{'?' if contents.config.seed is None else contents.config.seed}: "
        f"{counted(len(epochs), 'epoch')}{took} on {device}{state}."
    )
    said = f"<p class='hint'>{escape(about)}</p>"
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
    listed = "\n".join(f"{key} = {value}" for key, value in recipe.items())
    details = f"<details><summary>The recipe</summary><pre>{escape(listed)}</pre></details>"
    scaling = str(contents.result.get("scaling", ""))
    said += f"<p class='hint'>{escape(scaling)}</p>" if scaling else ""
    return card("Training", said + curves + details)


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
        ("Macro-F1", f"{probe['macro_f1']:.3f}", "mean over classes"),
        ("Trained on", f"{train:,} nodes", f"strength chosen on {val:,}"),
    ]
    if probe.get("majority") is not None:
        share = f"{100 * probe['majority']:.1f} %"
        facts.insert(1, ("Majority", share, "of the same answer for all nodes"))
    if probe.get("roc_auc") is not None:
        area = f"{probe['roc_auc']:.3f}"
        facts.insert(1, ("ROC-AUC", area, "0.5 means that it cannot tell the classes apart"))
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


def unsupervised_section(contents: Contents) -> str:
    """Returns the measures that need no labels."""
    measures = (
        (
            "Alignment",
            contents.alignment,
            ".3f",
            "squared distance between two views of a node; 0 means equal, 2 unrelated",
        ),
        (
            "Uniformity",
            contents.uniformity,
            ".2f",
            "lower is more evenly spread; 0 means all embeddings coincide",
        ),
        (
            "Effective rank",
            contents.effective_rank,
            ".1f",
            "directions that the embeddings use; 1 means that they coincide",
        ),
        (
            "Mean cosine",
            contents.mean_cosine,
            ".3f",
            "between two nodes; 1 means that all embeddings coincide",
        ),
    )
    facts = [
        (name, f"{value:{how}}", about) for name, value, how, about in measures if value is not None
    ]
    if contents.agreement is not None:
        share, chance = (
            _share(one) for one in (contents.agreement.share, contents.agreement.chance)
        )
        about = (
            f"of graph neighbours are among the {contents.agreement.k} nearest; by chance {chance}"
        )
        facts.append(("Neighbour agreement", share, about))
    return card("Without labels", facts_table(facts))


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
    written = "".join(
        f'<text x="{a}" y="{b}" text-anchor="{anchor}">{escape(text)}</text>'
        for a, b, anchor, text in texts
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{written}'
        f'<path class="curve" d="M{"L".join(points)}"/></svg>'
    )


def degree_rows(degree: Any) -> list[tuple[str, int]]:
    """Returns counts of nodes by degree, in ranges that double: 1, 2, 3–4, 5–8 and so on."""
    degree = np.asarray(degree)
    ranks = np.where(degree > 0, np.ceil(np.log2(np.maximum(degree, 1))) + 1, 0).astype(int)
    names = ["0", "1", "2"]
    names += [f"{2 ** (r - 2) + 1:,}–{2 ** (r - 1):,}" for r in range(3, ranks.max(initial=0) + 1)]
    counts = np.bincount(ranks, minlength=3).tolist()
    return [(n, c) for n, c in zip(names, counts, strict=True) if c or n != "0"]


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


def bars(rows: Sequence[tuple[str, int]], *, label: str) -> str:
    """Returns horizontal bars with their counts."""
    most = max((count for _, count in rows), default=1) or 1
    total = sum(count for _, count in rows) or 1
    items = []
    for name, count in rows:
        items.append(
            f'<li><span class="name">{escape(name)}</span>'
            '<span class="track"><span class="bar" '
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


def answer_sections(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a section for each answer that the run keeps, in a fixed order."""
    made: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "predict": predictions,
        "cluster": groups,
        "links": links,
    }
    found = []
    for kind, make in made.items():
        with suppress(*DAMAGED):
            found.append(make(answers[kind]))
    return "".join(found)


def predictions(about: Mapping[str, Any]) -> str:
    """Returns what the command said of its predictions, counts, and plain rivals beside them."""
    predicted = about.get("predicted") or {}  # numbers have no counts
    counts = sorted(predicted.items(), key=lambda pair: -int(pair[1]))[:MOST_ROWS]
    drawn = bars([(str(name), int(count)) for name, count in counts], label="Nodes by label")
    shown = f"<figure><h3>Predicted, by label</h3>{drawn}</figure>" if counts else ""
    if about.get("rivals"):
        shown += f"<figure><h3>Beside plain rivals</h3>{table(about['rivals'])}</figure>"
    words = paragraphs(str(about["text"]))
    return card("How far to trust the predictions", f'{words}<div class="two">{shown}</div>')


def paragraphs(text: str) -> str:
    """Returns a paragraph for each line, escaped."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines() if line.strip())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows of named values as a table; all are escaped."""
    heads = list(rows[0])
    head = "".join(f'<th scope="col">{escape(str(one).replace("_", " "))}</th>' for one in heads)
    body = []
    for row in rows:
        values = ["" if row.get(one) is None else row[one] for one in heads]
        texts = [f"{one:.3f}" if isinstance(one, float) else str(one) for one in values]
        cells = "".join(f"<td>{escape(one)}</td>" for one in texts[1:])
        body.append(f'<tr><th scope="row">{escape(texts[0])}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="list"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def groups(about: Mapping[str, Any]) -> str:
    """Returns the section on groups: sizes, what sets each apart, and nodes near its centre."""
    again = about.get("stability") or {}
    cards, sizes = [], [int(one) for one in about["sizes"]]
    for number, (size, names) in enumerate(zip(sizes, about["typical"], strict=True)):
        stays = f"; found again by {100 * again['groups'][number]:.0f} %" if again else ""
        share = percent(size / max(1, sum(sizes) + int(about.get("outside") or 0)))
        told = (about.get("profiles") or [[]] * len(sizes))[number]
        apart = "<p>Nothing sets it apart beyond chance.</p>"
        apart = table([_apart(one) for one in told]) if told else apart
        named = "".join(
            f'<li><button type="button" data-node="{escape(str(one), quote=True)}">'
            f"{escape(str(one))}</button></li>"
            for one in names
        )
        cards.append(
            f'<div class="group"><h3><span class="swatch" data-colour="{number}"></span>group '
            f"{number + 1} <small>{counted(size, 'node')}, {share}{escape(stays)}</small></h3>"
            f'{apart}<ul class="names" aria-label="Typical nodes of group {number + 1}">{named}'
            "</ul></div>"
        )
    return card(
        "Groups",
        f"{paragraphs(str(about['text']))}<p class='hint'>Below: what sets a group apart from all "
        "other nodes, beyond chance, the clearest first; and the nodes nearest to its centre.</p>"
        f'<div class="groups">{"".join(cards)}</div>',
    )


def _apart(one: Mapping[str, Any]) -> dict[str, str]:
    """Returns what sets a group apart as a row: what, in the group, elsewhere, and the effect."""
    effect, (inside, outside) = float(one["effect"]), (str(side) for side in one["sides"])
    row = {"what": f"{'▲' if effect > 0 else '▽'} {one['what']}"}
    if one["kind"] in ("number", "date"):
        return row | {"group": f"mean {inside}", "others": outside, "effect": f"d {effect:+.1f}"}
    counts = ((one["inside"], one["known"]), (one["outside"], one["known_outside"]))
    shares = [f"{100 * float(some) / max(1, int(of)):.0f} %" for some, of in counts]
    row |= {"group": f"{shares[0]} ({inside})", "others": f"{shares[1]} ({outside})"}
    return row | {"effect": f"log odds {effect:+.1f}"}


def links(about: Mapping[str, Any]) -> str:
    """Returns the section on links: the likeliest with their reasons, and what scores are worth."""
    body = ""
    if about.get("best"):
        body += f"<div><h3>Most likely, and missing</h3>{table(about['best'][:MOST_ROWS])}</div>"
    worth = about.get("evaluation")
    if worth:
        scores = worth["scores"].items()
        rows = [{"score": name.replace("_", " "), **one} for name, one in scores]
        said = (
            f"{int(worth['held_out']):,} linked pairs were removed before training; each is ranked "
            f"among {int(worth['negatives'])} pairs that are not linked."
        )
        caption = f"<p class='hint'>{escape(said)}</p>"
        body += f"<div><h3>What the scores are worth</h3>{table(rows)}{caption}</div>"
    return card("Links", f'<div class="two">{body}</div>') if body else ""
