"""The gallery's page and the README's first tables, from rows of `benchmarks.gallery`.

There are two galleries: graphs that `default` was chosen on (development), and graphs that nothing
was chosen by (test). A table holds the systems that have most graphs of both, on the graphs that
all of them have; ours is compared with each on all graphs that both have. The page ends with
`gallery_choices`.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import gallery_choices, noise, time_to_quality
from benchmarks.gallery_rows import (
    MOST,
    OURS,
    REGIMES,
    Rows,
    Scores,
    against,
    below_raw,
    listed,
    scores,
    short,
    signed,
)
from graphcl.files.atomic import write_whole
from graphcl.research import output, rows
from graphcl.research.comparison import RAW, score_text, summarise_rows
from graphcl.research.output import markdown_table
from graphcl.research.rows import number, text

RESULTS = Path(__file__).parent / "results"
NARROW = "graphcl:dim=512"
_DROPS = "epochs=300,edge_drop_1=0.5,edge_drop_2=0.4,feature_drop_1=0.5,feature_drop_2=0.4"
_BESIDE = "beside=true,encoder=residual,dim=512,feature_scaling=auto"
BGRL = f"bgrl:hidden=1024,dim=512,{_DROPS}"
TITLES = {
    OURS: "GraphCL, `default`",
    NARROW: "GraphCL (512 wide)",
    BGRL: "BGRL as on citation graphs",
    "cca-ssg": "CCA-SSG",
    "grace": "GRACE",
    "dgi": "DGI",
    "propagation": "propagation",
    "trees": "boosted trees",
    RAW: "raw features",
}
CLOTHED = {  # a rival in our encoder, with own features beside it: the name of the bare one
    f"cca-ssg:{_BESIDE}": "cca-ssg",
    f"grace:{_BESIDE}": "grace",
    f"bgrl:{_BESIDE},{_DROPS}": BGRL,
}
GALLERIES = ("development", "test")
CHANCE = 0.05
ON_CPU = "cora_ml"  # whose seconds on a CPU are in the table
HEAD = """# Out of the box on many graphs

Every system with its defaults on every graph of two galleries: real graphs of many kinds. The
protocol is that of [`graphcl compare`](comparing.md#the-protocol). `default` was chosen on the
*development* graphs. On the *test* graphs nothing is ever chosen, and each frozen version runs on
them once: [the rule](comparing.md#the-gallery).
"""

EVERY = """## Every graph

Mean over seeds ± sample standard deviation; without it there was one seed, or every seed gives the
same. The best of each graph is bold. *Lead* is `default` minus the best rival of that graph: in it
and in *distance to the best rival* we leave ourselves out, so that ours can be negative, and the
512 wide variant too. Rivals in our clothes are above.
"""

Both = tuple[Rows, Rows]  # the rows of development and of test


def both_galleries() -> Both:
    """Reads the committed rows of both galleries."""
    return rows.read(RESULTS / "gallery.jsonl"), rows.read(RESULTS / "gallery_test.jsonl")


def write_page(docs: Path) -> None:
    """Writes gallery.md and its pictures from the committed rows."""
    both = both_galleries()
    former = rows.read(RESULTS / "earlier/gallery.jsonl")
    timed = rows.read(time_to_quality.RESULTS)
    (docs / "images").mkdir(parents=True, exist_ok=True)
    output.save(draw(both), docs / "images/gallery.png")
    output.save(time_to_quality.draw(timed), docs / "images/time_to_quality.png")
    parts = [HEAD]
    for labels in REGIMES:
        parts += [overview(both, labels), "", f"{lead(both, labels)}\n"]
    parts += [
        reading(both),
        "",
        "![Points between each system and ours, per graph](images/gallery.png)\n",
    ]
    parts += [behind(both), clothes(both), EVERY]
    for gallery, found in zip(GALLERIES, both, strict=True):
        parts += [each_graph(found, labels, gallery) for labels in REGIMES]
    parts += [
        gallery_choices.tried(
            rows.read(RESULTS / "embedding_parts.jsonl"), set(scores(both[0])[OURS])
        ),
        gallery_choices.ablations(former),
        gallery_choices.left_out(former),
        gallery_choices.others(former),
        noise.section(rows.read(noise.RESULTS)),
        time_to_quality.section(timed),
    ]
    write_whole(docs / "gallery.md", "\n".join(parts))


def complete(both: Both) -> list[str]:
    """Returns the systems that have most graphs of both galleries, ours first."""
    found = [scores(one) for one in both]
    return [
        name
        for name in TITLES
        if all(len(one.get(name, {})) >= MOST * len(one[OURS]) for one in found)
    ]


def common(both: Both, labels: int | None) -> list[list[str]]:
    """Returns the graphs of each gallery that all systems of the table have."""
    shown, found = complete(both), [scores(one, labels) for one in both]
    return [sorted(set.intersection(*(set(one[name]) for name in shown))) for one in found]


def overview(both: Both, labels: int | None) -> str:
    """Returns a line per system: means and medians, and ours against it."""
    found, graphs = [scores(one, labels) for one in both], common(both, labels)
    on_cpu = [row for row in rows.read(time_to_quality.RESULTS) if row["graph"] == ON_CPU]
    lines = []
    for name in complete(both):
        line = [TITLES[name], width(both, name)]
        for one, shared in zip(found, graphs, strict=True):
            values = [100 * one[name][graph] for graph in shared]
            line += [f"{fmean(values):.1f}", f"{median(values):.1f}"]
        gains = [against(one[OURS], one[name]) for one in found]
        below = "; ".join(str(below_raw(one[name], one[RAW])) for one in found)
        line += (
            ["–", "–"]
            if name == OURS
            else ["; ".join(f"{g.ahead} of {g.graphs}" for g in gains), _chance(gains[1].p)]
        )
        line += ["–" if name == RAW else below]
        if labels is None:
            line += [seconds(both[0], name), seconds(on_cpu, name, "cpu")]
        lines.append([f"**{cell}**" for cell in line] if name == OURS else line)
    columns = [REGIMES[labels], "width"]
    for name, shared in zip(("dev.", "test"), graphs, strict=True):
        columns += [f"mean, {len(shared)} {name} graphs", "median"]
    columns += [
        "`default` ahead on (dev.; test)",
        "p (test)",
        "over a point below raw (dev.; test)",
    ]
    columns += ["s on a GPU", "s on a CPU"] if labels is None else []
    return markdown_table(columns, lines)


def width(both: Both, name: str) -> str:
    """Returns how many columns a system's embeddings have, if that is a setting of it."""
    mine = [row for found in both for row in found if row["system"] == name]
    settings: list[Any] = [row.get("settings") or {} for row in mine]
    found = sorted({one["dim"] for one in settings if "dim" in one})
    return " and ".join(f"{one:,}" for one in found) or "–"


def seconds(found: Rows, name: str, device: str | None = None) -> str:
    """Returns the median over graphs of a training's seconds, on a GPU unless a device is named."""
    each: dict[str, list[float]] = {}
    for row in found:
        there = row["device"] == device if device else row["device"] != "cpu"
        if row["system"] == name and there and "failed" not in row:
            each.setdefault(text(row, "graph"), []).append(number(row, "train_seconds"))
    middle = median(fmean(values) for values in each.values()) if each else None
    return "–" if middle is None else "< 0.1" if middle < 0.1 else f"{middle:.1f}"


def lead(both: Both, labels: int | None) -> str:
    """Says how far ours is ahead of the best rival on the test graphs."""
    found, graphs = scores(both[1], labels), common(both, labels)[1]
    rivals = [name for name in complete(both) if name not in (OURS, NARROW)]
    best = max(rivals, key=lambda name: fmean(found[name][graph] for graph in graphs))
    gain = against(found[OURS], found[best])
    verdict = "" if gain.p is not None and gain.p < CHANCE else ": not beyond chance"
    return (
        f"On the test graphs, the rival with the best mean is {TITLES[best]}. Against it: "
        f"{signed(gain.mean)} on the mean, {signed(gain.median)} on the median graph, ahead on "
        f"{gain.ahead} of {gain.graphs}, p = {_chance(gain.p)}{verdict}."
    )


def reading(both: Both, page: str = "") -> str:
    """Says how to read the tables; `page` is the one with the seconds on a CPU."""
    graphs = [len(scores(one)[OURS]) for one in both]
    commits = sorted({text(row, "commit") for row in both[1] if row["system"] == OURS})
    return (
        "In %: accuracy, ROC-AUC for two classes, or the mean AUC of several labels; logistic "
        "regression on frozen embeddings, the same for all; trees learn from the labels "
        f"themselves. `default` was chosen on the {graphs[0]} development graphs; by the "
        f"{graphs[1]} test graphs nothing was, and commit {listed(commits)} was run on them once. "
        "Rivals have the settings that their authors published, BGRL those for citation graphs. "
        "p is Wilcoxon's, paired, two-sided, not corrected for several tests. Seconds on "
        "a GPU are medians over development graphs on one H200, with other trainings beside: a "
        "rough order; on a CPU, those of cora_ml alone on two cores, where measured. More are in "
        f"[score against seconds]({page}#score-against-seconds)."
    )


def draw(both: Both) -> Any:
    """Draws how far each system of the table is from ours on each graph, a panel per gallery."""
    systems = [name for name in complete(both) if name not in (OURS, NARROW)]
    lines = [
        {
            "graph": graph,
            "system": TITLES[name].replace("`", ""),
            "mean": 100 * (known[name][graph] - known[OURS][graph]),
            "std": None,
            "panel": f"{gallery.capitalize()} graphs",
        }
        for gallery, known in zip(GALLERIES, map(scores, both), strict=True)
        for name in systems
        for graph in sorted(known[OURS])
        if graph in known[name]
    ]
    xlabel = "points to GraphCL, published splits or 10 %"
    return output.plot(lines, x="graph", by="system", panel="panel", xlabel=xlabel)


def best_rivals(found: Scores) -> dict[str, str]:
    """Returns the best rival of each graph that ours has."""
    rivals = [name for name in TITLES if name not in (OURS, NARROW) and name in found]
    return {
        graph: max(rivals, key=lambda name: found[name].get(graph, 0.0))
        for graph in sorted(found[OURS])
    }


def behind(both: Both) -> str:
    """Says on which graphs a rival is better than ours, and by how much."""
    said = []
    for labels, regime in REGIMES.items():
        for gallery, rows_of in zip(GALLERIES, both, strict=True):
            found = scores(rows_of, labels)
            gaps = [
                (100 * (found[OURS][graph] - found[rival][graph]), graph, TITLES[rival])
                for graph, rival in best_rivals(found).items()
            ]
            worse = [f"{graph} {signed(gap)} ({rival})" for gap, graph, rival in sorted(gaps)]
            count = sum(gap < 0 for gap, _, _ in gaps)
            said.append(
                f"- {regime}, {gallery}, {count} of {len(gaps)}: {', '.join(worse[:count])}."
            )
    return "\n".join(
        [
            "## Where ours is behind",
            "",
            "In points, and behind which rival: the best of all of them on each graph, which by",
            "chance alone is often ahead.",
            "",
            *said,
            "",
        ]
    )


def clothes(both: Both) -> str:
    """Says what rivals gain from our encoder and from own features, and what ours has beyond."""
    lines = []
    each: dict[str, list[list[float]]] = {bare: [] for bare in CLOTHED.values()}
    for gallery, found in zip(GALLERIES, both, strict=True):
        for name, bare in CLOTHED.items():
            three, known = (bare, name, OURS), scores(found)
            lines.append([TITLES[bare], gallery, *_beside(found, three), *_gains(found, name)])
            means = [100 * fmean(known[n][g] for g in known[name]) for n in three]
            each[bare].append([means[1] - means[0], means[2] - means[0]])
    said = [
        f"{' and '.join(f'{signed(gain)} of {gap:.1f}' for gain, gap in gains)} for {TITLES[bare]}"
        for bare, gains in each.items()
    ]
    rest = [gap - gain for gains in each.values() for gain, gap in gains]
    failed = sum(row["system"] in CLOTHED and "failed" in row for found in both for row in found)
    columns = ("", "gallery", "graphs", *(f"{short(one)}: bare, clothed, ours" for one in REGIMES))
    return "\n".join(
        [
            "## The method, or its clothes?",
            "",
            "On the published or 10 % splits, our clothes are worth, in points of our lead over",
            f"the bare rival on development and test graphs: {listed(said)}.",
            f"What remains, {min(rest):.1f} to {max(rest):.1f} points, is the method, with those",
            "parts of the embedding that the clothes lack.",
            "",
            "A rival in our clothes has our encoder and scaling, and own features beside it, and",
            "is 1,024 wide: 512 own in a random projection, 512 of its last layer. It has neither",
            "our first layer nor smoothed features nor principal directions, and one seed.",
            "",
            markdown_table((*columns, "`default` ahead of clothed", "p"), lines),
            "",
            f"{failed} rows of rivals in our clothes failed on development graphs: a defect of the",
            "command, mended since. The rows stay.",
            "",
        ]
    )


def _beside(found: Rows, names: Sequence[str]) -> list[str]:
    """Returns how many graphs all of them have, and their means there in each regime."""
    cells, counts = [], []
    for labels in REGIMES:
        each = scores(found, labels)
        graphs = set.intersection(*(set(each[name]) for name in names))
        counts.append(len(graphs))
        means = (100 * fmean(each[name][graph] for graph in graphs) for name in names)
        cells.append(", ".join(f"{mean:.1f}" for mean in means))
    return [str(max(counts)), *cells]


def _gains(found: Rows, name: str) -> list[str]:
    """Returns on how many graphs ours is ahead of it, and p, in each regime."""
    each = [scores(found, labels) for labels in REGIMES]
    gains = [against(one[OURS], one[name]) for one in each]
    return ["; ".join(str(g.ahead) for g in gains), "; ".join(_chance(g.p) for g in gains)]


def each_graph(found: Rows, labels: int | None, gallery: str) -> str:
    """Returns a line per graph, the best score in bold, and what is between ours and a rival."""
    known = scores(found, labels)
    names = [name for name in TITLES if name in known]
    summary = summarise_rows([row for row in found if row["system"] in names], names, labels)
    whole = [name for name in names if len(known[name]) >= MOST * len(known[OURS])]
    shared = sorted(set.intersection(*(set(known[name]) for name in whole)))
    rivals, lines = best_rivals(known), []
    for graph in sorted(known[OURS]):
        best = max(known[name].get(graph, 0.0) for name in names)
        cells = [score_text(summary.cells[graph, name], best) for name in names]
        gap = signed(100 * (known[OURS][graph] - known[rivals[graph]][graph]))
        lines.append([graph, *cells, gap])
    best_of = {graph: known[rivals[graph]][graph] for graph in shared}
    for title, of in (
        (f"Mean of {len(shared)}", lambda name, graph: known[name][graph]),
        ("Distance to the best rival", lambda name, graph: best_of[graph] - known[name][graph]),
    ):
        means = [
            f"{100 * fmean(of(name, graph) for graph in shared):.1f}" if name in whole else "–"
            for name in names
        ]
        lines.append([title, *(mean.replace("-", "−") for mean in means), ""])
    title = f"{gallery.capitalize()}: {short(labels)}"
    return markdown_table((title, *(TITLES[name] for name in names), "lead"), lines) + "\n"


def _chance(p: float | None) -> str:
    if p is None:
        return "–"
    return (
        "< 0.0001"
        if p < 1e-4
        else f"{p:.4f}"
        if p < 1e-3
        else f"{p:.3f}"
        if p < 0.1
        else f"{p:.2f}"
    )
