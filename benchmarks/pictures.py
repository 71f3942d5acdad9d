"""Draws pictures for the documentation: Cora's embeddings, the cost of NT-Xent and of epochs.

usage: python -m benchmarks.pictures map RUN | scaling | growth | year

`map` writes cora.png from a finished run of Cora; `scaling` writes nt_xent.png and `growth` writes
growth.png from committed rows. `year` writes year.png from those of `benchmarks.year`.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from sklearn.manifold import TSNE

from benchmarks import rows, year
from graphcl.datasets import load_dataset
from graphcl.files.atomic import whole_file
from scripts.build_planetoid import CORA_CLASSES

ROOT = Path(__file__).parents[1]
IMAGES, RESEARCH = ROOT / "docs/images", ROOT / "docs/research/images"
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def draw_map(run: Path) -> None:
    """Two panels: the raw words and the embeddings, each by t-SNE, coloured by class."""
    graph = load_dataset("cora")
    z = np.load(run / "embeddings.npy")
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.2), facecolor="white")
    for axis, table, title in (
        (axes[0], graph.x.toarray(), "before: bags of words"),
        (axes[1], z, "after: GraphCL embeddings, learned without labels"),
    ):
        place = TSNE(metric="cosine", init="pca", perplexity=40, random_state=0).fit_transform(
            table
        )
        for number, (name, colour) in enumerate(zip(CORA_CLASSES, COLOURS, strict=True)):
            members = graph.y == number
            label = name.replace("_", " ").lower()
            axis.scatter(*place[members].T, s=5, color=colour, label=label, linewidths=0)
        axis.set_title(title, fontsize=12)
        axis.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncols=7,
        frameon=False,
        markerscale=3,
        fontsize=9,
        columnspacing=1.2,
        handletextpad=0.1,
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    with whole_file(IMAGES / "cora.png") as staging:
        figure.savefig(staging, dpi=110)


def draw_scaling() -> None:
    """Time and memory of NT-Xent against N, ours and the rivals', and where memory ends."""
    found = rows.read(ROOT / "benchmarks/results/nt_xent_gpu.jsonl")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), facecolor="white")
    for what, precision, label, colour, marker in (
        ("ours", "bf16", "ours, bf16", "#ee6677", "o"),
        ("ours", "tf32", "ours, tf32", "#aa3377", "s"),
        ("chunked", "tf32", "chunked autograd, tf32", "#4477aa", "^"),
        ("dense", "tf32", "dense autograd, tf32", "#222222", "D"),
        ("PyGCL", "tf32", "PyGCL's own loss, tf32", "#ccbb44", "v"),
    ):
        mine = [row for row in found if (row["what"], row["precision"]) == (what, precision)]
        mine.sort(key=lambda row: row["n_nodes"])
        alive = [row for row in mine if "failed" not in row]
        for axis, key, scale in ((axes[0], "median_ms", 1), (axes[1], "peak_extra_bytes", 1e-9)):
            x, y = [row["n_nodes"] for row in alive], [row[key] * scale for row in alive]
            axis.plot(x, y, marker=marker, color=colour, label=label, markersize=5)
            if len(alive) < len(mine):
                dead = min(row["n_nodes"] for row in mine if "failed" in row)
                axis.annotate(
                    f"out of memory\nat {dead:,}", (x[-1], y[-1]), color=colour, fontsize=8,
                    xytext=(10, 4 if what == "PyGCL" else -20), textcoords="offset points",
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
                )  # fmt: skip
    axes[0].set_ylabel("milliseconds, forward + backward")
    axes[1].set_ylabel("GB beyond the inputs")
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="nodes N (2N views, d = 512)")
        axis.grid(alpha=0.25, which="both")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.12)
    axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle(f"Exact NT-Xent over all pairs, {found[0]['device']}", fontsize=12)
    figure.tight_layout()
    with whole_file(RESEARCH / "nt_xent.png") as staging:
        figure.savefig(staging, dpi=110)


def draw_growth() -> None:
    """Seconds per sampled epoch and memory beyond the graph against the number of nodes."""
    found = rows.read(ROOT / "benchmarks/results/sampled_cpu.jsonl")
    found = [row for row in found if row["what"].startswith("sampled epoch")]
    nodes = np.array([row["nodes"] for row in found])
    seconds = np.array([row["seconds"] for row in found])
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.0), facecolor="white")
    axes[0].plot(nodes, seconds, marker="o", color="#ee6677", label="measured")
    axes[0].plot(
        nodes, seconds[0] * nodes / nodes[0], "--", color="#666666", label="linear from the first"
    )
    axes[0].set(yscale="log", ylabel="seconds per epoch")
    axes[0].text(
        0.97, 0.08, f"slope {found[-1]['slope_fitted']:.2f}",
        transform=axes[0].transAxes, ha="right", fontsize=11,
    )  # fmt: skip
    axes[0].legend(frameon=False, fontsize=9)
    megabytes = [row["peak_extra_bytes"] / 1e6 for row in found]
    axes[1].plot(nodes, megabytes, marker="o", color="#4477aa")
    axes[1].set(ylabel="MB beyond the graph, at most", ylim=(0, 1.3 * max(megabytes)))
    for axis in axes:
        axis.set(xscale="log", xlabel="nodes")
        axis.grid(alpha=0.25, which="both")
        axis.spines[["top", "right"]].set_visible(False)
    what = found[0]["what"]
    title = f"{what[0].upper()}{what[1:]}; {found[0]['threads']} threads"
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    with whole_file(RESEARCH / "growth.png") as staging:
        figure.savefig(staging, dpi=110)


def draw_year() -> None:
    """A service minute by minute: latency, memory and open files, versions."""
    found = year.last_year(rows.read(year.RESULTS))
    found = [row for row in found if row["what"] == "minute"]
    minutes = [row["minute"] for row in found]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), facecolor="white")
    for key, colour in (("p50_ms", "#4477aa"), ("p99_ms", "#ee6677")):
        values = [row.get(key, np.nan) for row in found]
        axes[0].plot(minutes, values, color=colour, label=key.removesuffix("_ms"))
    axes[0].set(yscale="log", ylabel="milliseconds")
    for key, label, colour in (
        ("memory", "of all processes", "#ee6677"),
        ("memory_shared", "shared pages once", "#4477aa"),
    ):
        axes[1].plot(minutes, [row[key] / 1e6 for row in found], color=colour, label=label)
    axes[1].set(ylabel="MB", ylim=(0, None))
    files = axes[1].twinx()
    files.plot(minutes, [row["files"] for row in found], ":", color="#666666")
    files.set(ylabel="open files (dotted)", ylim=(0, None))
    newest = [row["newest_version"] for row in found]
    answered = [max(row["answered_by"], default=0) for row in found]
    axes[2].plot(minutes, newest, color="#bbbbbb", label="in use")
    axes[2].plot(minutes, answered, "--", color="#228833", label="answers")
    axes[2].set(ylabel="version")
    for axis in axes:
        axis.set(xlabel="minute")
        axis.legend(frameon=False, fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    with whole_file(IMAGES / "year.png") as staging:
        figure.savefig(staging, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("map", "scaling", "growth", "year"))
    parser.add_argument("run", nargs="?", type=Path, help="the run of Cora that `map` draws")
    given = parser.parse_args()
    if (given.what == "map") != (given.run is not None):
        parser.error("map takes the folder of a run; the others take nothing")
    IMAGES.mkdir(parents=True, exist_ok=True)
    if given.what == "map":
        draw_map(given.run)
    else:
        {"scaling": draw_scaling, "growth": draw_growth, "year": draw_year}[given.what]()


if __name__ == "__main__":
    main()
