"""Measures how long the map of a report takes for N nodes.

usage: python -m benchmarks.report [--nodes 200000] [--out ROWS.jsonl]

The embeddings are generated: 40 clusters in 512 dimensions. The row contains the CPU seconds of
each step. It is printed, and appended to the file that `--out` names.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from graphcl.evaluation.unsupervised import EXACT_ROWS, nearest
from graphcl.reporting.contents import INDEX_DIMENSIONS
from graphcl.reporting.projection import NEIGHBOURS, principal, project


def embeddings(nodes: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres, plane = random.normal(size=(40, 512)), random.normal(size=(20, 512))
    z = centres[random.integers(0, 40, nodes)] + 0.3 * random.normal(size=(nodes, 20)) @ plane
    return (z + 0.3 * random.normal(size=z.shape)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    z = embeddings(arguments.nodes)
    row: dict[str, object] = {"nodes": len(z), "cores": os.cpu_count()}
    began = time.process_time()
    if len(z) > EXACT_ROWS:
        z = principal(z, INDEX_DIMENSIONS)
    row["principal_cpu_seconds"] = time.process_time() - began
    began = time.process_time()
    near = nearest(z, NEIGHBOURS)
    row["nearest_cpu_seconds"] = time.process_time() - began
    began = time.process_time()
    project(z, *near)
    row["umap_cpu_seconds"] = time.process_time() - began
    line = json.dumps(row)
    print(line)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
