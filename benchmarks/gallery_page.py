"""The gallery's page and the README's first table, from rows of `benchmarks.gallery`.

The systems of the page are those that were scored on every graph; one that was not is listed below
it, beside ours on the same graphs. Variants of our `default` are no systems of their own: what they
change is in a second table, and a third says which of them would have been chosen without the
graphs of a family.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from benchmarks import time_to_quality
from benchmarks.choosing import family
from graphcl.files.atomic import write_whole
from graphcl.research import comparison, output
from graphcl.research.comparison import POINT, RAW, Summary, summarise_rows
from graphcl.research.output import markdown_table
from graphcl.research.rows import Row, number, text

OURS = "GraphCL, default"
_FORMER = (
    "dim=512,normalisation=none,side_by_side=false,own_features=0,feature_scaling=row,"
    "batch_nodes=4096,epochs=100,learning_rate=0.001,temperature=0.5"
)
FORMER = f"graphcl:encoder=mean,{_FORMER}"
FORMER_RESIDUAL = f"graphcl:encoder=residual,{_FORMER}"
_BGRL = (
    "bgrl:hidden=1024,dim=512,epochs=300,edge_drop_1=0.5,edge_drop_2=0.4,feature_drop_1=0.5,"
    "feature_drop_2=0.4"
)
TITLES = {
    "graphcl": OURS,
    FORMER: "GraphCL, first default",
    FORMER_RESIDUAL: "GraphCL, first default, residual",
    "propagation": "propagation, no training",
    "random-encoder": "random encoder",
    "deepwalk": "DeepWalk",
    "deepwalk-features": "DeepWalk + features",
    "ep-b": "EP-B",
    "dgi": "DGI",
    "grace": "GRACE",
    "bgrl": "BGRL",
    "bgrl:epochs=1000": "BGRL, 1,000 epochs",
    _BGRL: "BGRL, as on citation graphs",
    "cca-ssg": "CCA-SSG",
    "graphmae": "GraphMAE",
}
ABLATIONS = {
    "graphcl:own_features=0": "no own features beside the layers; these are twice as wide",
    "graphcl:side_by_side=false": "own features and the last layer, not all layers",
    "graphcl:normalisation=none": "hidden layers not normalised",
    "graphcl:feature_scaling=row": "features scaled by rows, whatever they are",
    "graphcl:repeat_own=false": "few features not repeated; the layers take their columns",
    "graphcl:encoder=mean": "layers that take the mean over a node and its neighbours",
    "graphcl:layers=3": "three layers",
    "graphcl:learning_rate=0.001,temperature=0.5": "learning rate 0.001 and temperature 0.5",
    "graphcl:learning_rate=0.002,temperature=0.5": "learning rate 0.002 and temperature 0.5",
    "graphcl:learning_rate=0.002": "learning rate 0.002",
    "graphcl:learning_rate=0.005": "learning rate 0.005",
    "graphcl:learning_rate=0.002,temperature=0.2": "learning rate 0.002 and temperature 0.2",
    "graphcl:temperature=0.2": "temperature 0.2",
    "graphcl:temperature=0.4": "temperature 0.4",
    "graphcl:feature_drop=0.3": "30 % of the features dropped, not 50 %",
    "graphcl:feature_drop=0.6": "60 % of the features dropped",
    "graphcl:feature_drop=0.7": "70 % of the features dropped",
    "graphcl:edge_drop=0.1": "10 % of the edges dropped, not 20 %",
    "graphcl:edge_drop=0.4": "40 % of the edges dropped",
    "graphcl:steps=100": "half as many steps",
    "graphcl:steps=300": "half as many steps again",
    "graphcl:own_features=0.4": "fewer columns of own features, more for the layers",
    "graphcl:dim=1536,own_features=0.33334": "layers twice as wide",
    "graphcl:learning_rate=0.002,own_features=0.3333": "learning rate 0.002, layers a third wider",
}
MOST = 0.7  # of the graphs: a variant with fewer is not among those to choose from
HEAD = """# Out of the box on many graphs

Every system with its defaults on every graph of a gallery: real graphs of many kinds. The protocol
is that of [`graphcl compare`](comparing.md): the graph's own splits, all of them, else three random
ones of 10 % / 10 % / 80 % of each class; accuracy, ROC-AUC for two classes, the mean AUC of the
labels where a node has several. Made from rows by `python -m benchmarks.gallery --page`.
"""


def write_page(found: Sequence[Row], docs: Path, timed: Sequence[Row] = ()) -> None:
    """Writes gallery.md and its pictures; `timed` are rows of `benchmarks.time_to_quality`."""
    (docs / "images").mkdir(parents=True, exist_ok=True)
    summary = compared(found)
    output.save(comparison.draw(summary), docs / "images/gallery.png")
    parts = [HEAD, overall_table(found), "", *(f"{note}\n" for note in partial(found))]
    parts += [f"{note}\n" for note in (honestly(found),) if note]
    shown = comparison.report_of(summary)
    parts.append("![Score per graph and system](images/gallery.png)\n")
    parts.append(replace(shown, draw=None).markdown)
    if any(row["system"] in ABLATIONS for row in found):
        parts += [ablations(found), left_out(found)]
    if timed:
        output.save(time_to_quality.draw(timed), docs / "images/time_to_quality.png")
        parts.append(time_to_quality.section(timed))
    write_whole(docs / "gallery.md", "\n".join(parts))


def compared(found: Iterable[Row]) -> Summary:
    """Returns the systems that were scored on every graph, under the names of the page."""
    systems = [row for row in found if not is_variant(text(row, "system"))]
    graphs = {text(row, "graph") for row in systems}
    whole = {name for name in names(systems) if set(scores(systems, name)) == graphs}
    shown = [
        row | {"system": TITLES.get(text(row, "system"), text(row, "system"))}
        for row in systems
        if row["system"] in whole
    ]
    overall = summarise_rows(shown).overall
    best_first = sorted(overall, key=lambda one: -one.mean)
    return summarise_rows(shown, [one.system for one in best_first])


def is_variant(name: str) -> bool:
    """Whether it is our `default` with something changed."""
    return name.startswith("graphcl:") and name not in TITLES


def names(found: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(text(row, "system") for row in found))


def scores(found: Iterable[Row], system: str) -> dict[str, float]:
    """Returns a system's mean score on each graph."""
    each: dict[str, list[float]] = {}
    for row in found:
        if row["system"] == system and "failed" not in row:
            each.setdefault(text(row, "graph"), []).append(number(row, "score"))
    return {graph: fmean(values) for graph, values in each.items()}


def overall_table(found: Sequence[Row]) -> str:
    """Returns a line per system, the best first."""
    summary = compared(found)
    best = summary.overall[0].system if summary.overall else ""
    lines = []
    for one in summary.overall:
        cells = [c for c in summary.cells if c.system == one.system]
        runs = "–" if cells[0].identical else _range(c.runs for c in cells)
        line = [one.system, f"{100 * one.mean:.1f}", f"{100 * one.distance:.1f}"]
        line += ["–" if one.system == RAW else str(one.losses), runs]
        lines.append([f"**{cell}**" for cell in line] if one.system == best else line)
    columns = (
        f"On {len(summary.common)} graphs, out of the box",
        "mean score",
        "mean distance to the best",
        "graphs over a point below raw features",
        "seeds",
    )
    return markdown_table(columns, lines)


def honestly(found: Sequence[Row]) -> str:
    """Says how the table came about: who chose, what carries the mean, and how wide each one is."""
    titles = {name: TITLES.get(name, name) for name in names(found)}
    shown = compared(found)
    mine = [one.system for one in shown.overall if one.system.startswith("GraphCL")]
    rivals = [one.system for one in shown.overall if one.system not in (*mine, RAW)]
    if OURS not in mine or not rivals:
        return ""
    ours, next_best = (
        {graph: shown.cell(graph, one).mean or 0.0 for graph in shown.common}
        for one in (OURS, rivals[0])
    )
    gains = [100 * (ours[graph] - next_best[graph]) for graph in shown.common]
    wide: dict[bool, set[int]] = {True: set(), False: set()}
    for row in found:
        width = (row.get("settings") or {}).get("dim")
        if width and titles[text(row, "system")] in (OURS, *rivals):
            wide[titles[text(row, "system")] == OURS].add(width)
    widths = ""
    if wide[True] and wide[False]:
        widths = (
            f" Embeddings are as wide as each system has them: ours {max(wide[True]):,} numbers, "
            f"rivals' {min(wide[False]):,} to {max(wide[False]):,}."
        )
    return (
        "`default` was chosen on these graphs, so this is no test on graphs that nobody has seen. "
        f"Against {rivals[0]}, the best rival: {fmean(gains):+.1f} points on the mean and "
        f"{median(gains):+.1f} on the median graph, ahead on {sum(gain > 0 for gain in gains)} of "
        f"{len(gains)}; some graphs carry the mean. The best of a graph may be ourselves.{widths}"
    )


def _range(values: Iterable[int]) -> str:
    ordered = sorted(values)
    return "–".join(str(value) for value in dict.fromkeys((ordered[0], ordered[-1])))


def partial(found: Sequence[Row]) -> list[str]:
    """Says of each system that lacks graphs how it does on those it has."""
    shown, ours, raw = compared(found).systems, scores(found, "graphcl"), scores(found, RAW)
    notes = []
    for name in names(found):
        title = TITLES.get(name, name)
        mine = {g: s for g, s in scores(found, name).items() if g in ours and g in raw}
        if is_variant(name) or title in shown or not mine:
            continue
        means = [100 * fmean(one[graph] for graph in mine) for one in (mine, ours, raw)]
        notes.append(
            f"{title} was run on {len(mine)} of the graphs: {means[0]:.1f}, where `default` has "
            f"{means[1]:.1f} and the raw features {means[2]:.1f}."
        )
    return notes


def ablations(found: Sequence[Row]) -> str:
    """Returns what each change of `default` gains or loses, on the graphs it was run on."""
    ours, raw = scores(found, "graphcl"), scores(found, RAW)
    lines = []
    for name, title in ABLATIONS.items():
        mine = {g: s for g, s in scores(found, name).items() if g in ours}
        if not mine:
            continue
        gain = 100 * fmean(mine[graph] - ours[graph] for graph in mine)
        below = sum(mine[graph] < raw[graph] - POINT for graph in mine if graph in raw)
        usual = sum(ours[graph] < raw[graph] - POINT for graph in mine if graph in raw)
        setting = f"`{name.partition(':')[2]}`"
        shown = f"{gain:+.1f}".replace("-", "−")
        lines.append([title, setting, str(len(mine)), shown, f"{below} ({usual})"])
    columns = ("`default` with", "setting", "graphs", "points", "over a point below raw")
    return "\n".join(
        [
            "## What each part earns",
            "",
            "Three seeds each. *Points* is the mean difference to `default` on the same graphs. In",
            "brackets: `default` itself. A difference of 0.2 or less is within the spread over",
            "seeds.",
            "",
            markdown_table(columns, lines),
            "",
        ]
    )


def left_out(found: Sequence[Row]) -> str:
    """Returns which variant the other families would choose for each family, and what it scores."""
    whole = scores(found, "graphcl")
    variants = {"graphcl": whole} | {name: scores(found, name) for name in ABLATIONS}
    variants = {name: each for name, each in variants.items() if len(each) >= MOST * len(whole)}
    common = set.intersection(*(set(each) for each in variants.values()))
    ours = {graph: score for graph, score in whole.items() if graph in common}
    families: dict[str, list[str]] = {}
    for graph in sorted(ours):
        families.setdefault(family(graph), []).append(graph)
    lines, chosen_scores = [], []
    for name, members in families.items():
        others = [graph for graph in ours if graph not in members]
        chosen = max(variants, key=lambda one: fmean(variants[one][graph] for graph in others))
        got = [variants[chosen][graph] for graph in members]
        chosen_scores += got
        best = [max(each[graph] for each in variants.values()) for graph in members]
        lines.append(
            [
                name,
                ABLATIONS.get(chosen, "nothing changed"),
                *(f"{100 * fmean(v):.1f}" for v in (got, [ours[g] for g in members], best)),
            ]
        )
    mean = f"{100 * fmean(chosen_scores):.1f}"
    first = max(variants, key=lambda one: fmean(variants[one][graph] for graph in ours))
    highest = f"{100 * fmean(variants[first][graph] for graph in ours):.1f}"
    columns = ("family left out", "the others choose", "its score", "`default`", "best variant")
    return "\n".join(
        [
            "## Chosen without a family",
            "",
            "How much hangs on one kind of graph? This is no test on unseen graphs: the variants",
            "are those around `default`, which all families have chosen.",
            "For each family of graphs: the variant that is best",
            f"on the mean of all other families, among {len(variants)} that were run on the same",
            f"{len(ours)} graphs, and what it scores on the family that had no say. On the mean it",
            f"scores {mean}; `default` has {100 * fmean(ours.values()):.1f}. The highest mean",
            f"of all is {highest}: {ABLATIONS.get(first, 'nothing changed')}.",
            "",
            markdown_table(columns, lines),
            "",
        ]
    )
