"""Compares variants of PPI's recipes by validation micro-F1 only.

usage: python -m benchmarks.search_ppi --out ROWS.jsonl [--recipe ppi] [--seed 100]
           [--probe-steps 1500] [--device cuda] VARIANT ...

A VARIANT is a list of recipe keys: `edge_drop=0.05,feature_drop=0.05`; `-` is the recipe itself.
The rows contain no test score. The probe takes fewer steps than for reported scores, which is
enough to rank variants.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import rows
from benchmarks.ppi import Probe, trained
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.recipes import load_recipe

KEPT = ("val_micro_f1", "strength", "steps", "loss", "train_seconds", "peak_memory_bytes", "failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="ppi")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--probe-steps", type=int, default=1500)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    torch.set_float32_matmul_precision("high")
    collection = load_dataset("ppi")
    for variant in options.variants:
        settings = parse_settings(variant.split(",")) if variant != "-" else {}
        recipe = load_recipe(options.recipe).with_texts(**settings)
        probe = Probe(collection, recipe, device, options.probe_steps)
        found = trained(collection, recipe, options.seed, device, probe)
        row = {"recipe_name": options.recipe, "variant": variant, "seed": options.seed}
        row |= {key: found[key] for key in KEPT if key in found}
        print(
            f"{options.recipe} {variant}: {row.get('val_micro_f1', row.get('failed'))}", flush=True
        )
        rows.append(options.out, row | {"recipe": asdict(recipe), **rows.provenance(device)})


if __name__ == "__main__":
    main()
