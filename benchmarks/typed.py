"""Typed graphs: ours beside raw features, the flattened graph, propagation and supervised models.

usage: python -m benchmarks.typed --out ROWS.jsonl [--graphs acm_hgb acm_heco relation ...]
           [--systems typed flattened raw propagation rgcn hgt] [--seeds 10] [--first-seed 0]
           [--device cuda] [--set key=value ...] [--variant NAME] [--test]

`acm_hgb` and `acm_heco` are read from ``graphs`` in the folder `GRAPHCL_DATA`; the others are
generated (`benchmarks.typed_graphs`). Embeddings are judged by logistic regression: its
strength is the one with the best mean macro-F1 over the validation nodes of the split and of five
others drawn from training and validation nodes. `acm_hgb` has no validation nodes: a fifth of the
training nodes of each class are, drawn once. `acm_heco` has three splits, each a row. Without
``--test`` the test nodes are not looked at: that is how settings are chosen. A row that is there is
not computed again. ``--table`` prints the means of a file and computes nothing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.rows import append, provenance, read
from benchmarks.typed_graphs import ONLY, telling_graph
from benchmarks.typed_systems import EMBEDDINGS, supervised
from graphcl.devices import resolve_device
from graphcl.evaluation.logistic import fit_logistic_batch
from graphcl.evaluation.probe import STRENGTHS, f1, redraw, standardiser
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.npz import read_graph
from graphcl.memory import peak_resident_bytes
from graphcl.research.output import markdown_table

GENERATED = {only.replace(" ", "-"): only for only in ONLY}
GRAPHS = ("acm_hgb", "acm_heco", *GENERATED)
SUPERVISED = ("rgcn", "hgt")
SYSTEMS = (*EMBEDDINGS, *SUPERVISED)
REDRAWN = 5
NODES = 2000  # of a generated graph

Array = npt.NDArray[Any]
Split = tuple[str, Array, Array, Array]


def load(name: str) -> Graph:
    """Returns a graph by name."""
    if name in GENERATED:
        return telling_graph(GENERATED[name], NODES)
    folder = Path(os.environ.get("GRAPHCL_DATA", "."))
    return read_graph(folder / "graphs" / f"{name}.npz")


def splits(nodes: Nodes) -> Iterator[Split]:
    """Yields the training, validation and test nodes of each split, with a name for it."""
    assert nodes.y is not None
    if nodes.splits is not None:
        for masks in nodes.splits:
            train, val, test = (np.flatnonzero(mask) for mask in masks)
            least = np.bincount(nodes.y[train]).min()
            yield f"{least} a class", train, val, test
        return
    assert nodes.train_mask is not None
    assert nodes.test_mask is not None
    train, test = np.flatnonzero(nodes.train_mask), np.flatnonzero(nodes.test_mask)
    if nodes.val_mask is not None:
        yield "given", train, np.flatnonzero(nodes.val_mask), test
        return
    held = np.zeros(nodes.num_nodes, np.bool_)
    for label in np.unique(nodes.y[train]):
        own = np.random.default_rng(0).permutation(train[nodes.y[train] == label])
        held[own[: len(own) // 5]] = True
    yield "given, validation drawn", train[~held[train]], train[held[train]], test


def judge(
    z: Array, y: Array, split: Split, *, test_nodes: bool, device: torch.device
) -> dict[str, float]:
    """Returns the scores of logistic regression on embeddings."""
    _, train, val, test = split
    pool, random = np.concatenate([train, val]), np.random.default_rng(0)
    pairs = [(train, val)]
    for _ in range(REDRAWN):
        chosen = pool[redraw(y[pool], np.isin(pool, train), random)]
        pairs.append((chosen, np.setdiff1d(pool, chosen)))
    targets = np.eye(int(y.max()) + 1, dtype=np.float32)

    def rows(nodes: Array, standard: Any) -> torch.Tensor:
        return torch.tensor(standard(z[nodes]), dtype=torch.float32, device=device)

    standards = [standardiser(z[fitted]) for fitted, _ in pairs]
    problems = [
        (rows(fitted, standard), torch.tensor(targets[y[fitted]], device=device))
        for (fitted, _), standard in zip(pairs, standards, strict=True)
    ]
    fitted = list(fit_logistic_batch(problems, STRENGTHS, softmax=True))
    on_val = np.mean(
        [
            [f1(y[held], scores.argmax(1).cpu().numpy()) for scores in one.scores(rows(held, how))]
            for one, (_, held), how in zip(fitted, pairs, standards, strict=True)
        ],
        axis=0,
    )
    place = int(np.argmax(on_val))
    found = {"val_macro_f1": float(on_val[place]), "strength": STRENGTHS[place]}
    if test_nodes:
        guess = fitted[0].scores(rows(test, standards[0]))[place].argmax(1).cpu().numpy()
        found |= scores_of(y[test], guess)
    return found


def scores_of(y: Array, guess: Array) -> dict[str, float]:
    """Returns macro- and micro-F1."""
    return {"macro_f1": f1(y, guess), "micro_f1": f1(y, guess, "micro")}


def measure(graph: Graph, system: str, seed: int, options: Any, device: Any) -> list[Any]:
    """Returns a row of scores for each split."""
    name = graph.labelled_type
    nodes, found = graph.nodes[name], []
    assert nodes.y is not None
    began = time.perf_counter()
    if system in SUPERVISED:
        for split in splits(nodes):
            scores = supervised(system, graph, name, split[1:3], seed, device)
            row = {"val_macro_f1": f1(nodes.y[split[2]], scores[split[2]].argmax(1))}
            if options.test:
                row |= scores_of(nodes.y[split[3]], scores[split[3]].argmax(1))
            found.append({"split": split[0], **row})
    else:
        settings = dict(one.split("=", 1) for one in options.set)
        settings = {key: _value(text) for key, text in settings.items()}
        z, _ = EMBEDDINGS[system](graph, name, seed, device, settings)
        for split in splits(nodes):
            row = judge(z, nodes.y, split, test_nodes=options.test, device=device)
            found.append({"split": split[0], **row})
    seconds = time.perf_counter() - began
    return [row | {"seconds": round(seconds, 2)} for row in found]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def table(path: Path) -> str:
    """Returns the means of a file of rows."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in read(path):
        key = tuple(str(row[column]) for column in ("graph", "split", "system", "variant"))
        groups.setdefault(key, []).append(row)
    lines = []
    for key, members in groups.items():
        shown = []
        for column in ("val_macro_f1", "macro_f1", "micro_f1"):
            values = [100 * row[column] for row in members if column in row]
            spread = f" ± {pstdev(values):.1f}" if len(values) > 1 else ""
            shown.append(f"{fmean(values):.1f}{spread}" if values else "–")
        lines.append([*key, str(len(members)), *shown])
    columns = ("graph", "split", "system", "variant", "runs", "validation", "macro-F1", "micro-F1")
    return markdown_table(columns, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--variant", default="default")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    device = resolve_device(options.device)
    for graph_name in options.graphs:
        graph = load(graph_name)
        for system in options.systems:
            first = options.first_seed
            for seed in range(first, first + 1 if system == "raw" else first + options.seeds):
                about = {"graph": graph_name, "system": system, "variant": options.variant}
                about |= {"seed": seed, "test": options.test}
                if any(about.items() <= row.items() for row in read(options.out)):
                    continue
                found: list[Any]
                try:
                    found = measure(graph, system, seed, options, device)
                except Exception as error:
                    found = [{"split": "", "failed": f"{type(error).__name__}: {error}"[:300]}]
                extra = {"settings": options.set, "peak_memory_bytes": peak_resident_bytes()}
                for row in found:
                    append(options.out, about | row | extra | provenance(device))
                    print(about | row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
