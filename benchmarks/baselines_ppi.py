"""PPI: micro-F1 of the other inductive systems on the two unseen test graphs, several seeds each.

usage: python -m benchmarks.baselines_ppi --out ROWS.jsonl [--methods gaan ...] [--runs 5]
           [--budget SECONDS] [--probe-steps 4000] [--set gaan.epochs=100 ...] [--device cuda]
           [--float32]

There is one row per system and seed. Unsupervised systems are scored by the same probe as ours,
supervised ones by their own predictions. Rows are appended as runs end. Runs that already have a
row with the same settings are skipped, so the command can be repeated until all is done. Every
system runs with one seed before the next seed starts; so if the budget ends the run, the systems
have about equally many rows. A deterministic system runs only with seed 0, and its row has
`runs_identical`. On a GPU, matrix products use TF32 unless `--float32` is given.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score

from benchmarks import rows
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import peak_memory_bytes, reset_peak_memory, resolve_device
from graphcl.errors import ParameterError, TrainingError
from graphcl.evaluation import linear_probe
from graphcl.evaluation.logistic import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.graphcl import settings_of as fields_of
from graphcl.research.systems.system import Method, is_unsupervised

METHODS = (
    "graphsage-gcn",
    "graphsage-mean",
    "graphsage-lstm",
    "graphsage-pool",
    "dgi-inductive",
    "gaan",
)


def run(
    method: Method, collection: GraphCollection, *, seed: int, device: torch.device, steps: int
) -> dict[str, Any]:
    """Trains once and returns scores and cost, or the reason why it failed."""
    reset_peak_memory(device)
    began = time.perf_counter()
    try:
        if is_unsupervised(method):
            z = method.embed(collection, seed=seed, device=device)
        else:
            predicted = method.fit_predict(collection, seed=seed, device=device)
    except TrainingError as error:
        return {"failed": str(error)}
    cost = {
        "train_seconds": time.perf_counter() - began,
        "peak_memory_bytes": peak_memory_bytes(device),
    }
    if not is_unsupervised(method):
        return cost | scores(predicted, collection)
    began = time.perf_counter()
    reset_peak_memory(device)
    found = linear_probe(z, collection, steps=steps, device=str(device))
    return {
        **cost,
        **asdict(found),
        "probe_seconds": time.perf_counter() - began,
        "probe_peak_memory_bytes": peak_memory_bytes(device),
    }


def scores(predicted: np.ndarray, collection: GraphCollection) -> dict[str, Any]:
    """Returns a supervised system's scores under the names that the probe uses."""
    y, nodes = collection.y, collection.split_nodes
    val, test = slice(nodes[0], sum(nodes[:2])), slice(sum(nodes[:2]), None)

    def f1(part: slice, average: str) -> float:
        return float(f1_score(y[part], predicted[part], average=average, zero_division=0))

    return {
        "micro_f1": f1(test, "micro"),
        "macro_f1": f1(test, "macro"),
        "accuracy": float(accuracy_score(y[test].ravel(), predicted[test].ravel())),
        "val_micro_f1": f1(val, "micro"),
        "split": "given",
        "nodes": nodes,
    }


def identity(row: dict[str, Any]) -> str:
    """Returns what identifies a run: system, seed, settings and the probe's budget."""
    keys = ("method", "seed", "settings", "probe_steps", "tf32", "graph")
    return json.dumps([row[key] for key in keys], sort_keys=True)


def settings_of(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parses ``METHOD.KEY=VALUE``."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, dot, setting = text.partition(".")
        if not dot or name not in SYSTEMS:
            raise ParameterError(f"--set {text}: write METHOD.KEY=VALUE, such as gaan.epochs=100")
        for key, value in parse_settings([setting]).items():
            found.setdefault(name, {})[key] = _value(value)
    return found


def _value(text: str) -> Any:
    """Reads a number, true or false, or a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def within(budget: float) -> Callable[[float], bool]:
    """Returns a function that tells whether a run of some seconds still fits into the budget."""
    began = time.monotonic()
    return lambda seconds: time.monotonic() - began + seconds <= budget


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=sorted(SYSTEMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=float("inf"), help="total seconds")
    parser.add_argument("--probe-steps", type=int, default=STEPS)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--float32", action="store_true", help="no TF32 in matrix products on a GPU"
    )
    options = parser.parse_args(arguments)
    fits = within(options.budget)
    device = resolve_device(options.device)
    tf32 = device.type == "cuda" and not options.float32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    collection = load_dataset("ppi")
    changed = settings_of(options.settings)
    done = {identity(row) for row in rows.read(options.out)} if options.out.exists() else set()
    about = {
        "graph": collection.name,
        "probe_steps": options.probe_steps,
        "tf32": tf32,
        "note": collection.note or None,
        **rows.provenance(device),
    }
    last: dict[str, float] = {}
    left = 0
    for seed in range(options.first_seed, options.first_seed + options.runs):
        for name in options.methods:
            baseline = SYSTEMS[name]
            method = baseline.method("ppi", **changed.get(name, {}))
            settings = fields_of(method)
            row = {"method": name, "what": baseline.title, "seed": seed, "settings": settings}
            if baseline.deterministic:
                row |= {"runs_identical": True}
            if identity(row | about) in done or (baseline.deterministic and seed > 0):
                continue
            if not fits(last.get(name, 0.0)):
                left += 1
                continue
            began = time.perf_counter()
            found = run(method, collection, seed=seed, device=device, steps=options.probe_steps)
            last[name] = time.perf_counter() - began
            rows.append(options.out, row | found | {"seconds": last[name]} | about)
            print(f"{name}, seed {seed}: {_headline(found)}; {last[name]:.1f} s", flush=True)
    if left:
        print(f"{left} runs did not fit into {options.budget:.0f} s; repeat the command for them")
    if collection.note:
        print(f"note: {collection.note}")


def _headline(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"failed ({found['failed']})"
    return (
        f"micro-F1 {found['micro_f1']:.4f} (validation {found['val_micro_f1']:.4f}), "
        f"trained {found['train_seconds']:.1f} s"
    )


if __name__ == "__main__":
    main()
