"""PPI: micro-F1 on the two unseen test graphs over several seeds, with controls.

usage: python -m benchmarks.ppi --out ROWS.jsonl [--recipe ppi] [--seeds 10] [--trained-only]
           [--probe-steps 4000] [--set KEY=VALUE ...] [--device cuda] [--float32]

Each seed gives a row for the trained encoder and one for the same encoder at its initial weights.
One more row is for the raw features. All are scored by the same probe. Training, embedding and
probe stay on the device. On a GPU, matrix products use TF32 unless `--float32` is given; the rows
record it. A training that fails gives a row with the reason.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import rows
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import peak_memory_bytes, reset_peak_memory, resolve_device
from graphcl.encoders import build_encoder
from graphcl.errors import TrainingError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.logistic import multilabel_probe
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.recipes import Recipe, load_recipe
from graphcl.seeding import generator
from graphcl.settings import PROBE_STEPS

Embed = Callable[[Features, Adjacency], Tensor]


class Probe:
    """The three splits of the collection on the device, ready to be embedded and probed."""

    def __init__(
        self, collection: GraphCollection, recipe: Recipe, device: torch.device, steps: int
    ) -> None:
        splits = (collection.train, collection.val, collection.test)
        self._device, self._steps = device, steps
        self._graphs = [
            [
                graph_tensors(graph, device=device, feature_scaling=recipe.feature_scaling)
                for graph in graphs
            ]
            for graphs in splits
        ]
        self._labels = tuple(
            torch.cat([torch.tensor(graph.y, dtype=torch.uint8, device=device) for graph in graphs])
            for graphs in splits
        )

    @torch.no_grad()
    def __call__(self, embed: Embed) -> dict[str, Any]:
        """Embeds each graph with `embed` and returns the probe's result and cost."""
        reset_peak_memory(self._device)
        began = time.perf_counter()
        z = tuple(torch.cat([embed(*graph) for graph in graphs]) for graphs in self._graphs)
        result = multilabel_probe(z, self._labels, steps=self._steps, device=self._device)
        return asdict(result) | {
            "probe_seconds": time.perf_counter() - began,
            "probe_peak_memory_bytes": peak_memory_bytes(self._device),
        }


def trained(
    collection: GraphCollection, recipe: Recipe, seed: int, device: torch.device, probe: Probe
) -> dict[str, Any]:
    """Trains once and returns score and cost, or the reason why it failed."""
    reset_peak_memory(device)
    model = GraphCL(recipe, seed=seed, device=str(device))
    try:
        model.fit(collection)
    except TrainingError as error:
        return {"failed": str(error)}
    about = {
        "loss": model.history_[-1].loss,
        "train_seconds": model.seconds_,
        "peak_memory_bytes": peak_memory_bytes(device),
    }
    return about | probe(model.encoder_.eval())


def untrained(recipe: Recipe, num_features: int, seed: int, device: torch.device) -> nn.Module:
    """Returns the encoder that the training with this seed starts from."""
    encoder = build_encoder(
        recipe.encoder,
        num_features,
        dim=recipe.dim,
        layers=recipe.layers,
        generator=generator(seed, "weights"),
    )
    return encoder.to(device).eval()


def raw_features(x: Features, _adjacency: Adjacency) -> Tensor:
    """Returns the features, dense, as the embeddings."""
    return x if isinstance(x, Tensor) else x.to_dense()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="ppi")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trained-only", action="store_true", help="leave the controls out")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--probe-steps", type=int, default=PROBE_STEPS)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--float32", action="store_true", help="no TF32 in matrix products on a GPU"
    )
    options = parser.parse_args()
    device = resolve_device(options.device)
    tf32 = device.type == "cuda" and not options.float32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    recipe = load_recipe(options.recipe).with_texts(**parse_settings(options.settings))
    if options.epochs is not None:
        recipe = recipe.replace(epochs=options.epochs)
    collection = load_dataset("ppi")
    probe = Probe(collection, recipe, device, options.probe_steps)
    about = {
        "graph": collection.name,
        "recipe_name": options.recipe,
        "recipe_hash": recipe.hash,
        "tf32": tf32,
        "note": collection.note or None,
        "recipe": asdict(recipe),
        **rows.provenance(device),
    }
    scores: dict[str, list[float]] = {}

    def report(what: str, seed: int | None, found: dict[str, Any]) -> None:
        rows.append(options.out, {"what": what, "seed": seed, **found, **about})
        if "failed" in found:
            print(f"{what}, seed {seed}: {found['failed']}", flush=True)
            return
        scores.setdefault(what, []).append(found["micro_f1"])
        cost = f"trained {found['train_seconds']:.1f} s, " if "train_seconds" in found else ""
        print(
            f"{what}, seed {seed}: micro-F1 {found['micro_f1']:.4f} (validation "
            f"{found['val_micro_f1']:.4f} at {found['strength']:.0e}); {cost}"
            f"probed {found['probe_seconds']:.1f} s",
            flush=True,
        )

    if not options.trained_only:
        report("raw features", None, probe(raw_features))
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        report("trained", seed, trained(collection, recipe, seed, device, probe))
        if not options.trained_only:
            initial = untrained(recipe, collection.num_features, seed, device)
            report("random encoder", seed, probe(initial))
    for what, values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        mean = statistics.fmean(values)
        print(f"{what}: {mean:.4f} ± {spread:.4f} over {len(values)} ({options.recipe})")
    if collection.note:
        print(f"note: {collection.note}")


if __name__ == "__main__":
    main()
