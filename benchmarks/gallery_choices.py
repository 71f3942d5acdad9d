"""What was tried for `default`, and what each part of the former one earned: the page's end.

`embedding_parts.jsonl` has one seed of each choice of what stands side by side in an embedding. The
rows of the former `default`, its variants and the rivals beside it are among the earlier ones.
"""

from collections.abc import Mapping
from statistics import fmean, median

from benchmarks.choosing import family
from benchmarks.gallery_rows import (
    MOST,
    OURS,
    REGIMES,
    Rows,
    against,
    below_raw,
    listed,
    scores,
    short,
    signed,
)
from graphcl.research.comparison import RAW
from graphcl.research.output import markdown_table
from graphcl.research.rows import Row, number, text

BEFORE = "default before"  # the row of `embedding_parts.jsonl` that the others are compared with
UNIT = "unit rows: "  # begins the name of one whose words have the length 1
CHOSEN = f"{UNIT}principal own and smoothed in random bases"
HALF = (  # embeddings with 100 steps, and the same with 200
    ("100 steps: random own 384, smoothed 128", "random own 384, smoothed 128"),
    ("unit rows, 100 steps: principal own, smoothed", f"{UNIT}principal own, smoothed"),
)
FORMER_OTHERS = {
    "bgrl:epochs=1000": "BGRL, 1,000 epochs",
    "graphmae": "GraphMAE",
    "ep-b": "EP-B",
    "deepwalk-features": "DeepWalk + features",
    "deepwalk": "DeepWalk",
    "random-encoder": "random encoder",
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


def tried(found: Rows, graphs: set[str]) -> str:
    """Returns what each choice of what stands side by side gained, over development graphs."""
    each: dict[str, dict[str, Row]] = {}
    for row in found:
        if row["graph"] in graphs:
            each.setdefault(text(row, "embedding"), {})[text(row, "graph")] = row
    for name in [name for name in each if name.startswith(UNIT)]:
        each[name] = each[name.removeprefix(UNIT)] | each[name]  # where there are no words
    gains = {name: _regimes_gained(rows_of, each[BEFORE]) for name, rows_of in each.items()}
    lines = []
    for name in sorted(gains, key=lambda name: -sum(gains[name])):
        line = [name, str(len(each[name])), *(signed(gain) for gain in gains[name])]
        lines.append([f"**{cell}**" for cell in line] if name == CHOSEN else line)
    fewer = [
        f"{listed([signed(g) for g in _regimes_gained(each[brief], each[long])])} "
        f"(“{long}”, {len(each[brief].keys() & each[long].keys())} graphs)"
        for brief, long in HALF
    ]
    return "\n".join(
        [
            "## What was tried",
            "",
            "What should stand side by side in the embedding? One seed each. Points are the mean",
            f"difference to “{BEFORE}”, the former default (512 own columns in a random",
            "projection, two layers of 256, words divided by their sum, 200 steps), with the",
            "probe's choice of scaling. *Smoothed* are features averaged over two hops, without",
            "weights to train; of size 2 or 4: a part that weighs more; *unit rows*: words",
            "divided by the root of their sum of squares, and where a graph has no words, the same",
            "without that. Where graphs are fewer than 22, the rest was not run.",
            "",
            markdown_table(
                ("embedding", "graphs", *(short(one) for one in REGIMES)),
                lines,
            ),
            "",
            "Chosen: the line in bold, whose three gains have the largest sum of all, and with it",
            f"half as many steps, which cost {listed(fewer)}, in the same three regimes. The",
            "chosen line itself was run with 200 steps alone. Differences of 0.2 are within the",
            "spread over seeds.",
            "",
        ]
    )


def _regimes_gained(ours: Mapping[str, Row], theirs: Mapping[str, Row]) -> list[float]:
    return [
        fmean(100 * (number(ours[g], key) - number(theirs[g], key)) for g in ours if g in theirs)
        for key in ("splits", "20", "5")
    ]


def ablations(found: Rows) -> str:
    """Returns what each change of `default` gains or loses, on the graphs it was run on."""
    each, lines = scores(found), []
    ours, raw = each[OURS], each[RAW]
    for name, title in ABLATIONS.items():
        mine = {g: s for g, s in each[name].items() if g in ours}
        gain = 100 * fmean(mine[graph] - ours[graph] for graph in mine)
        below, usual = below_raw(mine, raw), below_raw({g: ours[g] for g in mine}, raw)
        setting = f"`{name.partition(':')[2]}`"
        lines.append([title, setting, str(len(mine)), signed(gain), f"{below} ({usual})"])
    columns = ("former `default` with", "setting", "graphs", "points", "over a point below raw")
    return "\n".join(
        [
            "## What each part of the former default earned",
            "",
            "This section and the next two are of the former `default`: 200 steps, half of the",
            "columns own features, no smoothed ones, words divided by their sum, and a probe that",
            "always standardised columns. Published or 10 % splits of the development graphs,",
            "three seeds. *Points* is the mean difference to it on the same graphs. In brackets:",
            "itself. A difference of 0.2 or less is within the spread over seeds.",
            "",
            markdown_table(columns, lines),
            "",
        ]
    )


def left_out(found: Rows) -> str:
    """Returns which variant the other families would choose for each family, and what it scores."""
    known = scores(found)
    whole = known[OURS]
    variants = {name: known[name] for name in (OURS, *ABLATIONS)}
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
    columns = (
        "family left out",
        "the others choose",
        "its score",
        "former `default`",
        "best variant",
    )
    return "\n".join(
        [
            "## Chosen without a family",
            "",
            "How much hangs on one kind of graph? This is no test on unseen graphs: the variants",
            "are those around the former `default`, which all families have chosen.",
            "For each family of graphs: the variant that is best",
            f"on the mean of all other families, among {len(variants)} that were run on the same",
            f"{len(ours)} graphs, and what it scores on the family that had no say. On the mean it",
            f"scores {mean}; that `default` has {100 * fmean(ours.values()):.1f}. The highest mean",
            f"of all is {highest}: {ABLATIONS.get(first, 'nothing changed')}.",
            "",
            markdown_table(columns, lines),
            "",
        ]
    )


def others(found: Rows) -> str:
    """Returns the rivals that were run beside the former `default` alone."""
    each = scores(found)
    names = sorted((OURS, *FORMER_OTHERS), key=lambda name: -fmean(each[name].values()))
    lines = []
    for name in names:
        values, gain = [100 * one for one in each[name].values()], against(each[OURS], each[name])
        ahead = "–" if name == OURS else f"{gain.ahead} of {gain.graphs}"
        title = FORMER_OTHERS.get(name, "GraphCL, former `default`")
        below = str(below_raw(each[name], each[RAW]))
        lines.append([title, f"{fmean(values):.1f}", f"{median(values):.1f}", ahead, below])
    columns = ("rival", "mean", "median", "former `default` ahead on", "over a point below raw")
    return "\n".join(
        [
            "## Rivals beside the former default",
            "",
            "Systems that were run with it, and not again.",
            "",
            markdown_table(columns, lines),
            "",
        ]
    )
