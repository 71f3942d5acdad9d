"""The drift page of a version: one HTML file, like the report, without a script."""

from collections.abc import Mapping
from html import escape
from typing import Any

from graphcl.reporting.markup import asset, bars, card, facts_table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def drift_page(about: Mapping[str, Any], drift: Mapping[str, Any]) -> str:
    """Returns the whole page.

    Args:
        about: what `version.json` says of the version.
        drift: what `Drift.to_json` returned.
    """
    name = f"{about.get('run', 'run')}, version {about['version']}"
    title = escape(f"GraphCL drift: {name}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{asset('report.css')}</style></head><body><main>"
        f"<header><h1>{escape(name)}</h1>{_lead(about)}{_tiles(about, drift)}</header>"
        f"{_moves(drift)}{_regions(drift)}{_changes(about)}"
        "<footer>This page is one file and makes no connection.</footer></main></body></html>\n"
    )


def _lead(about: Mapping[str, Any]) -> str:
    since = f"What changed since version {about['from']}"
    how = "the model was trained on, and its space turned to the old one"
    if not about.get("retrained"):
        how = "the model is the same; nodes with changed surroundings were embedded again"
    return f'<p class="lead">{escape(f"{since}: {how}.")}</p>'


def _tiles(about: Mapping[str, Any], drift: Mapping[str, Any]) -> str:
    shown = [
        ("nodes", f"{about['nodes']:,}"),
        ("embedded again", f"{about['embedded']:,}"),
    ]
    if drift["moved"] is not None:
        shown.append(("median move", f"{100 * drift['moved']['median']:.1f} %"))
    if drift["kept"] is not None:
        shown.append(("neighbours kept", f"{100 * drift['kept']:.1f} %"))
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _moves(drift: Mapping[str, Any]) -> str:
    """Returns how far nodes moved, and which moved farthest."""
    if drift["moved"] is None:
        return card("How far nodes moved", "<p>No known node was embedded again.</p>")
    edges, counts = drift["histogram"]["up_to"], drift["histogram"]["nodes"]
    names = ["not at all", *(f"up to {100 * one:g} %" for one in edges[1:-1]), "more"]
    drawn = bars(list(zip(names, counts, strict=True)), label="Nodes by how far they moved")
    farthest = facts_table(
        (str(one["id"]), f"{100 * one['moved']:.1f} %", "") for one in drift["farthest"]
    )
    hint = (
        '<p class="hint">The distance between the new and the old embedding of a node, divided by '
        f"the length of the old one, of {sum(counts):,} nodes that were embedded again.</p>"
    )
    return card(
        "How far nodes moved",
        f'{hint}<div class="two"><figure><h3>Nodes by move</h3>{drawn}</figure>'
        f"<div><h3>Farthest</h3>{farthest}</div></div>",
    )


def _regions(drift: Mapping[str, Any]) -> str:
    """Returns a table of the regions: how many were embedded again, moved, kept, joined."""
    if not drift["regions"]:
        return ""
    head = ("region", "nodes", "embedded again", "median move", "neighbours kept", "new", "such as")
    rows = []
    for number, one in enumerate(drift["regions"], 1):
        cells = [
            str(number),
            f"{one['nodes']:,}",
            f"{100 * one['embedded']:.0f} %",
            f"{100 * one['moved']:.1f} %",
            f"{100 * one['kept']:.1f} %",
            f"{one['joined']:,}",
            ", ".join(map(str, one["examples"])),
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    hint = (
        f'<p class="hint">Regions are clusters of the old embeddings of {drift["measured"]:,} '
        f"nodes. Neighbours are the {drift['neighbours']} nearest of them by cosine.</p>"
    )
    return card(
        "Which regions changed",
        f"{hint}<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
    )


def _changes(about: Mapping[str, Any]) -> str:
    """Returns what changed in the graph, and how long the update took."""
    counts = about["changes"]
    facts = [
        ("New nodes", f"{counts['new_nodes']:,}", ""),
        ("Removed nodes", f"{counts['removed_nodes']:,}", ""),
        ("Nodes with other features", f"{counts['changed_nodes']:,}", ""),
        ("Edges", f"{counts['edges_after']:,}", f"before: {counts['edges_before']:,}"),
    ]
    if about.get("retrained"):
        facts.append(("More epochs", f"{about['retrained']['epochs']:,}", ""))
    facts += [(f"Seconds: {key}", f"{value:.2f}", "") for key, value in about["seconds"].items()]
    return card("The graph", facts_table(facts))
