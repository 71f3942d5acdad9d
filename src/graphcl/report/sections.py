"""The sections of the page as markup; every text that comes from the user is escaped here."""

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from graphcl.report.charts import bars, confusion_table, degree_rows, line_chart
from graphcl.report.contents import Contents

MOST_BARS = 24


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
    shown: list[tuple[str, str]] = [("nodes", f"{len(contents.nodes):,}")]
    if "edges" in graph:
        shown.append(("edges", f"{graph['edges']:,}"))
    if "features" in graph:
        shown.append(("features", f"{graph['features']:,}"))
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
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def graph_section(contents: Contents) -> str:
    """Returns the graph's statistics and its degree distribution."""
    degree, graph = contents.nodes.degree, contents.result.get("graph", {})
    facts: list[tuple[str, str, str]] = [("Nodes", f"{len(degree):,}", "")]
    if "edges" in graph:
        facts.append(("Edges (undirected)", f"{graph['edges']:,}", ""))
    if "features" in graph:
        facts.append(("Features per node", f"{graph['features']:,}", ""))
    if contents.nodes.y is not None:
        labelled = contents.nodes.y[contents.nodes.y >= 0]
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
    return _card(
        "The graph",
        f'<div class="two"><div>{_facts(facts)}</div>'
        f"<figure><h3>Nodes by degree</h3>{drawn}</figure></div>",
    )


def training_section(contents: Contents) -> str:
    """Returns the curves of the loss and of the bound, and the recipe."""
    epochs = [line["epoch"] for line in contents.metrics]
    figures = []
    if epochs:
        losses = [line["loss"] for line in contents.metrics]
        label = f"Loss per epoch, from {losses[0]:.4g} to {losses[-1]:.4g}"
        figures.append(
            _figure(
                "Loss (NT-Xent)",
                line_chart(epochs, losses, label=label, x_label="epoch"),
                "Lower is better; compare only runs of the same temperature and batch size.",
            )
        )
        given = [line.get("mi_bound") for line in contents.metrics]
        bounds = [bound for bound in given if bound is not None]
        if len(bounds) == len(epochs):
            label = f"Bound per epoch, from {bounds[0]:.4g} to {bounds[-1]:.4g}"
            figures.append(
                _figure(
                    "Bound on mutual information",
                    line_chart(epochs, bounds, label=label, x_label="epoch"),
                    "log k − loss, in nats: one view tells at least this much about the other. "
                    "A bound below 0 tells nothing.",
                )
            )
    curves = (
        f'<div class="two">{"".join(figures)}</div>' if figures else "<p>No epoch recorded.</p>"
    )
    recipe = "\n".join(f"{key} = {value}" for key, value in contents.config.recipe.items())
    details = f"<details><summary>The recipe</summary><pre>{escape(recipe)}</pre></details>"
    return _card("Training", curves + details)


def probe_section(contents: Contents) -> str:
    """Returns the probe's scores and confusion matrix, or the reason why there are none."""
    probe = contents.result.get("probe")
    if not probe:
        why = contents.result.get("probe_skipped") or "the run contains no score"
        return _card("Labels", f"<p>There is no probe score: {escape(str(why))}.</p>")
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
    text = (
        "<p class='hint'>Logistic regression on the frozen embeddings. Labels were used only for "
        "this, never in training.</p>"
    )
    table = ""
    if contents.confusion is not None:
        names = [f"class {number}" for number in contents.confusion.classes.tolist()]
        table = confusion_table(names, contents.confusion.counts)
    return _card(
        "With labels",
        f'{notice}{text}<div class="uneven"><div>{_facts(facts)}</div>{table}</div>',
    )


def unsupervised_section(contents: Contents) -> str:
    """Returns the measures that need no labels."""
    facts: list[tuple[str, str, str]] = []
    if contents.alignment is not None:
        about = "squared distance between two views of a node; 0 means equal, 2 unrelated"
        facts.append(("Alignment", f"{contents.alignment:.3f}", about))
    if contents.uniformity is not None:
        about = "lower is more evenly spread; 0 means all embeddings coincide"
        facts.append(("Uniformity", f"{contents.uniformity:.2f}", about))
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
    chosen = (
        "as many as there are classes"
        if contents.nodes.y is not None
        else "the number chosen by the silhouette"
    )
    drawn = bars(rows, label="Nodes by cluster", coloured=True)
    return _card(
        "Without labels",
        f'<div class="two"><div>{_facts(facts)}</div><figure><h3>Cluster sizes</h3>{drawn}'
        f"<figcaption>k-means on embeddings of length 1, {chosen}.</figcaption></figure></div>",
    )


def _card(title: str, body: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>'


def _figure(title: str, chart: str, caption: str) -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure><h3>{escape(title)}</h3>{chart}{below}</figure>"


def _facts(facts: Iterable[tuple[Any, ...]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}'
        f"{f'<small>{escape(about)}</small>' if about else ''}</td></tr>"
        for name, value, about in facts
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
