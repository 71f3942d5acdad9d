"""Writes the tables of the README and of docs/research/speed.md from committed rows.

usage: python -m benchmarks.readme [--check]

The text between ``<!-- rows: NAME -->`` and ``<!-- end -->`` is replaced. ``--check`` only compares
it, and exits with 1 if a page does not match the rows.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks import gallery_page, rows
from graphcl.datasets import CATALOGUE
from graphcl.files.atomic import write_whole
from graphcl.recipes import load_recipe

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = (ROOT / "README.md", ROOT / "docs/research/speed.md")
PAPER = {"cora": "83.6 ± 0.5", "citeseer": "72.5 ± 0.7", "pubmed": "79.8 ± 0.5"}


def gallery_table() -> str:
    """Ours beside others on both galleries, with many labels and with 20 a class."""
    both, page = gallery_page.both_galleries(), "docs/research/gallery.md"
    parts = [
        f"{gallery_page.overview(both, labels)}\n\n{gallery_page.lead(both, labels)}"
        for labels in (None, 20)
    ]
    more = f"[Every graph, 5 labels a class, other systems, what was tried]({page})."
    return "\n\n".join([*parts, f"{gallery_page.reading(both, page)} {more}"])


def accuracy_table() -> str:
    """Test accuracy by recipe: mean ± std over seeds, beside the same recipes in float32."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.read(RESULTS / "accuracy.jsonl"):
        found[row["graph"], _shape(row)].append(row)
    for row in rows.read(RESULTS / "two_layers.jsonl"):
        epochs = row["recipe"]["epochs"]
        found[row["graph"], f"{_shape(row)}, {epochs} epochs; not the paper's choice"].append(row)
    for row in rows.read(RESULTS / "accuracy_best.jsonl"):
        name = f"{row['graph']}-best"
        if load_recipe(name).replace(**row["recipe"]) == load_recipe(name):
            found[row["graph"], f"recipe `{name}`; not the paper's"].append(row)
    exact: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.read(RESULTS / "precision.jsonl"):
        exact[row["graph"], _shape(row)].append(row)
    lines = [
        "| graph | encoder | accuracy | seeds | in float32 | paper |",
        "|---|---|---|---|---|---|",
    ]
    order = sorted(found, key=lambda key: list(PAPER).index(key[0]))
    for graph, shape in order:
        members, precise = found[graph, shape], exact[graph, shape]
        failed = sum("failed" in row for row in members)
        seeds = f"{len(members) - failed}" + (f" ({failed} failed)" if failed else "")
        paper = "–" if "not the paper's" in shape else PAPER[graph]
        lines.append(
            f"| {graph.title()} | {shape} | {_accuracy(members)} | {seeds} "
            f"| {_accuracy(precise) if precise else '–'} | {paper} |"
        )
    devices = {row["device"] for members in found.values() for row in members}
    lines.append("")
    lines.append(
        "Accuracy in % on the 1,000 test nodes of the public split, mean ± standard deviation over "
        "seeds; hyperparameters chosen on train and validation nodes alone. "
        f"{', '.join(sorted(devices))}, the loss in bf16 tiles; beside it the same seeds in full "
        "float32."
    )
    return "\n".join(lines)


def _accuracy(members: list[dict[str, Any]]) -> str:
    scores = [100 * row["accuracy"] for row in members if "failed" not in row]
    return f"{fmean(scores):.2f} ± {stdev(scores):.2f}"


def _shape(row: dict[str, Any]) -> str:
    recipe = row["recipe"]
    return f"{'one layer' if recipe['layers'] == 1 else 'two layers'}, {recipe['dim']}"


def ppi_table() -> str:
    """Micro-F1 on PPI's unseen graphs, with the controls."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.read(RESULTS / "ppi.jsonl"):
        found[row["recipe_name"], row["what"]].append(row)
    exact: dict[str, list[float]] = defaultdict(list)
    for row in rows.read(RESULTS / "precision_ppi.jsonl"):
        exact[row["recipe_name"]].append(row["micro_f1"])
    lines = [
        "| PPI, test graphs unseen | micro-F1 | seeds | peak memory | in float32 | paper |",
        "|---|---|---|---|---|---|",
    ]
    for name, paper in (("ppi", "0.659 ± 0.006"), ("ppi-wide", "–"), ("ppi-best", "–")):
        for what, label in (("trained", "GraphCL"), ("random encoder", "random encoder")):
            members = [row for row in found[name, what] if "failed" not in row]
            if not members:
                continue
            scores, width = [row["micro_f1"] for row in members], members[0]["recipe"]["dim"]
            cost = precise = "–"
            if what == "trained":
                cost = f"{max(row['peak_memory_bytes'] for row in members) / 1e9:.1f} GB"
                if name in exact:
                    precise = f"{_spread(exact[name])}, {len(exact[name])} seeds"
            lines.append(
                f"| {label}, {width:,} wide (`{name}`) | {_spread(scores)} "
                f"| {len(scores)} | {cost} | {precise} | {paper if what == 'trained' else '–'} |"
            )
    (raw,) = found["ppi", "raw features"]
    lines.append(f"| raw features | {raw['micro_f1']:.4f} | – | – | – | 0.422 |")
    lines.append("")
    lines.append(
        f"The probe: one logistic regression per label, {raw['steps']:,} full-batch steps. These "
        "PPI labels are a near-exact reconstruction (about 1 % of the positives differ from the "
        f"original): close to published scores, but not the same thing. {raw['device']}, the loss "
        "in bf16 tiles; beside it the loss in float32. The first five seeds score the same in both "
        f"to {_largest_gap(found, RESULTS / 'precision_ppi.jsonl'):.0e}."
    )
    return "\n".join(lines)


def _spread(scores: list[float]) -> str:
    return f"{fmean(scores):.4f} ± {stdev(scores):.4f}"


def _largest_gap(found: dict[tuple[str, str], list[dict[str, Any]]], path: Path) -> float:
    """Returns the largest distance between the scores of one seed in two precisions."""
    both = {
        (name, row["seed"]): row["micro_f1"]
        for (name, what), members in found.items()
        if what == "trained"
        for row in members
    }
    return max(
        abs(row["micro_f1"] - both[row["recipe_name"], row["seed"]]) for row in rows.read(path)
    )


def _milliseconds(row: dict[str, Any]) -> str:
    if "failed" in row:
        return row["failed"]
    value = row["median_ms"]
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"


def _gigabytes(row: dict[str, Any]) -> str:
    return "–" if "failed" in row else f"{row['peak_extra_bytes'] / 1e9:.2f} GB"


def loss_table() -> str:
    """Time and memory of NT-Xent on a GPU, ours and the rivals'."""
    found = rows.read(RESULTS / "nt_xent_gpu.jsonl")
    by = {(row["n_nodes"], row["what"], row["precision"]): row for row in found}
    lines = [
        "| N | ours (bf16) | extra memory | of the GEMM rate | ours (tf32) | dense (tf32) "
        "| its memory | chunked (tf32) | PyGCL (tf32) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for nodes in sorted({row["n_nodes"] for row in found}):
        ours, dense = by[nodes, "ours", "bf16"], by[nodes, "dense", "tf32"]
        chunked = by[nodes, "chunked", "tf32"]
        recorded = by.get((nodes, "ours, CUDA graph", "bf16"))
        pygcl = by.get((nodes, "PyGCL", "tf32"))
        time = _milliseconds(ours) + (f" ({_milliseconds(recorded)} recorded)" if recorded else "")
        lines.append(
            f"| {nodes:,} | {time} | {_gigabytes(ours)} | {100 * ours['share_of_gemm']:.0f} % "
            f"| {_milliseconds(by[nodes, 'ours', 'tf32'])} | {_milliseconds(dense)} "
            f"| {_gigabytes(dense)} | {_milliseconds(chunked)} "
            f"| {_milliseconds(pygcl) if pygcl else 'not run'} |"
        )
    first, shown = found[0], [row for key, row in by.items() if key[1:] == ("ours", "bf16")]
    rates = {f"{row['gemm_tflops_measured']:.0f}" for row in shown}
    copies = {f"{row['copy_gb_per_s_measured'] / 1000:.1f}" for row in shown}
    lines.append("")
    lines.append(
        f"Forward + backward, d = {first['d']}, medians; {first['device']}, torch "
        f"{first['versions']['torch']}. Measured in the same run as each size: bf16 GEMM "
        f"{' and '.join(sorted(rates))} TFLOP/s, copy {' and '.join(sorted(copies))} TB/s. The "
        "share counts three full products of 2·(2N)²·d; symmetry saves one of them, so it can pass "
        "100 %. *Recorded*: the whole step replayed from a CUDA graph, as the training loop does; "
        "a small loss that is called again and again records itself."
    )
    return "\n".join(lines)


def training_table() -> str:
    """Whole trainings on a GPU; where measured, also the time of their NT-Xent steps alone."""
    lines = [
        "| graph | epochs | ours | its NT-Xent alone | dense autograd with PyG | ratio |",
        "|---|---|---|---|---|---|",
    ]
    losses = {
        row["n_nodes"]: row["median_ms"] / 1000
        for row in rows.read(RESULTS / "nt_xent_gpu.jsonl")
        if row["what"] == "ours, CUDA graph"
    }
    by: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows.read(RESULTS / "training_gpu.jsonl"):
        by[row["graph"]][row["what"]] = row
    for graph, pair in by.items():
        ours, dense = pair["ours"], pair.get("dense autograd with PyG")
        rival = "not measured | –"
        if dense:
            ratio = dense["seconds"] / ours["seconds"]
            rival = f"{dense['seconds']:.2f} s, {dense['peak_bytes'] / 1e9:.2f} GB | {ratio:.1f}×"
        nodes = CATALOGUE[graph].nodes
        alone = f"{ours['epochs'] * losses[nodes]:.2f} s" if nodes in losses else "–"
        lines.append(
            f"| {graph.title()} | {ours['epochs']} | {ours['seconds']:.2f} s, "
            f"{ours['peak_bytes'] / 1e9:.2f} GB | {alone} | {rival} |"
        )
    return "\n".join(lines)


def cpu_table() -> str:
    """Ratios on a CPU, from the last committed `make bench`."""
    found = {row["what"]: row for row in rows.read(RESULTS / "cpu.jsonl")}
    lines = ["| on a CPU | time or memory, ours to theirs; memory of ours |", "|---|---|"]
    for what, row in found.items():
        cells = [f"{name} {value:.2f}×" for name, value in row.get("ratio", {}).items()]
        for key, label in (("peak_extra_bytes", "extra memory"), ("peak_bytes", "whole process")):
            if key in row:
                cells.append(f"{label} {row[key] / 1e9:.2f} GB")
        lines.append(f"| {what} | {'; '.join(cells)} |")
    last = list(found.values())[-1]
    lines.append("")
    lines.append(
        f"{last['threads']} threads, {last['machine']}, torch {last['versions']['torch']}."
    )
    return "\n".join(lines)


TABLES = {
    "accuracy": accuracy_table,
    "gallery": gallery_table,
    "ppi": ppi_table,
    "loss": loss_table,
    "training": training_table,
    "cpu": cpu_table,
}


def rendered(text: str) -> str:
    """Returns `text` with every marked table replaced."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- rows: (\w+) -->).*?(<!-- end -->)", table, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare; write nothing")
    check = parser.parse_args().check
    for path in PAGES:
        text = path.read_text()
        if not check:
            write_whole(path, rendered(text))
        elif rendered(text) != text:
            sys.exit(f"{path.relative_to(ROOT)}: the tables do not match the rows")
    sys.exit(0)


if __name__ == "__main__":
    main()
