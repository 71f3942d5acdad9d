"""The model of links beside each thing alone, on graphs of the gallery.

usage: python -m benchmarks.links_model rows --data FOLDER --out ROWS.jsonl [--device cuda]
           [--graphs cora_ml ...] [--seeds 0 1 2]
       python -m benchmarks.links_model page [--check]

One row per graph and seed: a tenth of the linked pairs is removed, an encoder is trained on the
rest by the recipe `default`, and each removed pair is ranked among 100 pairs that are not linked.
Rows that are already in ROWS.jsonl are not computed again. FOLDER has the graphs as `.npz` files.
`page` writes the table in docs/research/answers.md from the committed rows: MRR by the model and by
each thing alone, the mean over seeds.
"""

import argparse
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append, placed, provenance, read
from graphcl.answers.linking import evaluate_links
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import TrainingWarning
from graphcl.estimator.model import GraphCL
from graphcl.files.atomic import write_whole

GRAPHS = (
    *("wisconsin", "nba", "chameleon_filtered", "fb100_reed", "usa_airports_uat", "cora_ml"),
    *("acm_amgcn", "twitch_engb", "actor", "amazon_photo"),
)
PAGE = Path(__file__).parents[1] / "docs/research/answers.md"
ROWS = Path(__file__).parent / "results/links_model.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rows", "page"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    if options.what == "page":
        text = page(PAGE.read_text())
        if options.check:
            raise SystemExit(0 if text == PAGE.read_text() else f"{PAGE} is stale")
        write_whole(PAGE, text)
        return
    if options.data is None or options.out is None:
        parser.error("--data and --out are required")
    warnings.simplefilter("ignore", TrainingWarning)
    files, device = graph_files(options.data), resolve_device(options.device)
    known = read(options.out) if options.out.exists() else []
    done = {(row["graph"], row["seed"]) for row in known}
    for name in options.graphs:
        graph = read_gallery_graph(files[name])
        for seed in options.seeds:
            if (name, seed) in done:
                continue
            began = time.perf_counter()
            model = GraphCL("default", seed=seed, device=options.device)
            found = evaluate_links(model, graph, seed=seed)
            row = {"graph": name, **asdict(found), "edges": graph.num_edges}
            row["seconds"] = round(time.perf_counter() - began, 3)
            row["recipe"] = asdict(model.complete_recipe())
            append(options.out, {**row, **provenance(device)})
            shown = {key: round(one.mrr, 3) for key, one in found.scores.items()}
            print(name, seed, shown, row["seconds"], flush=True)
    print("\n".join(table(read(options.out))))


def page(text: str) -> str:
    """Returns the page with its table made anew from the committed rows."""
    made = "\n".join(["", *table(read(ROWS)), "", ""])
    return placed(text, "<!-- rows: links -->\n", made, "<!-- end of rows -->")


def table(rows: list[Any]) -> list[str]:
    """Returns lines of a table: MRR, the mean over seeds, and what the model gains."""
    names = [name for name in rows[0]["scores"] if name != "model"]
    lines = [f"| MRR | model | {' | '.join(names)} | gain |".replace("_", " ")]
    lines.append(f"| {' | '.join(['---'] * (len(names) + 3))} |")
    means = []
    for graph in dict.fromkeys(row["graph"] for row in rows):
        own = [row["scores"] for row in rows if row["graph"] == graph]
        mrr = [np.mean([one[name]["mrr"] for one in own]) for name in ("model", *names)]
        means.append([*mrr, mrr[0] - max(mrr[1:])])
        lines.append(_line(graph, means[-1]))
    return [*lines, _line("mean", np.mean(means, axis=0).tolist())]


def _line(name: str, values: list[Any]) -> str:
    cells = [*(f"{one:.3f}" for one in values[:-1]), f"{values[-1]:+.3f}"]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
