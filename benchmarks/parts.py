"""A store in parts: seconds, memory, cut edges, and exact inference over parts beside one process.

usage: python -m benchmarks.parts [--nodes 1000000] [--edges 10000000] [--out ROWS.jsonl]

The graph is generated: 100 communities, 64 features. `graphcl build` divides it in each order,
and `graphcl embed` embeds it, whole in one process and in parts in one process each. Weights are
those of an encoder after one epoch on a small graph; what they are does not change the work. Memory
is the peak of anonymous memory of the largest process, which leaves out mapped files, not
what imports take. `boundary_rows` is what the processes receive together before a layer.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import append, provenance
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator.model import GraphCL
from graphcl.partitioned.boundary import outside
from graphcl.store.header import ORDERS, read_store
from graphcl.store.reader import Part, open_part

FEATURES, COMMUNITIES, DIM = 64, 100, 128


def measure(arguments: list[str]) -> dict[str, Any]:
    """Runs `graphcl` with these arguments; returns its seconds, its memory and its JSON."""
    command = [sys.executable, "-m", "graphcl", *arguments, "--json"]
    began, peaks = time.perf_counter(), {0: 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        while process.poll() is None:
            for pid in _family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), _anonymous(pid))
            time.sleep(0.05)
        assert process.stdout is not None
        assert process.returncode == 0, command
        found = json.loads(process.stdout.read())
    seconds = round(time.perf_counter() - began, 1)
    return {"seconds": seconds, "peak_bytes": max(peaks.values()), "said": found}


def _family(pid: int) -> list[int]:
    """Returns a process and all that descend from it."""
    found, new = [], [pid]
    while new:
        found += new
        new = [
            int(child) for one in new for child in _read(f"/proc/{one}/task/{one}/children").split()
        ]
    return found


def _anonymous(pid: int) -> int:
    held = re.search(r"RssAnon:\s+(\d+) kB", _read(f"/proc/{pid}/status"))
    return 1024 * int(held[1]) if held else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has ended
        return ""


def difference(folder: Path, whole: Any, shards: Path) -> float:
    """Returns the largest difference between shards and the embeddings of the whole graph."""
    worst = 0.0
    for number in range(len(read_store(folder))):
        (part,), z = (
            open_part(folder, number).nodes.values(),
            np.load(shards / f"part-{number:05d}.npy"),
        )
        rows = part.fields.get("node_ids", np.arange(part.nodes.start, part.nodes.stop))
        worst = max(worst, float(np.abs(z - whole[np.asarray(rows)]).max()))
    return worst


def boundary_rows(part: Part) -> int:
    """Returns how many nodes of other parts the edges of a part of a plain graph lead to."""
    (nodes,), (edges,) = part.nodes.values(), part.edges.values()
    return len(outside(nodes, [edges["indices"]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10**6)
    parser.add_argument("--edges", type=int, default=10**7)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    about = {"nodes": given.nodes, "edges": given.edges, "features": FEATURES, "dim": DIM}

    def row(case: str, **values: Any) -> None:
        measured = {"benchmark": "parts", "case": case, **about, **values}
        measured |= {"cores": os.cpu_count(), **provenance(torch.device("cpu"))}
        append(given.out, measured)
        print(json.dumps(measured), flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synthetic_graph(given.nodes, given.edges, FEATURES, COMMUNITIES).save(folder / "store")
        small = synthetic_graph(2000, 20_000, FEATURES, 10)
        GraphCL("default", epochs=1, dim=DIM, device="cpu").fit(small).save(folder / "run")
        embed = ["embed", str(folder / "run")]
        found = measure(
            [*embed, str(folder / "store"), "--device", "cpu", "--out", f"{folder}/z.npy"]
        )
        whole = np.load(folder / "z.npy", mmap_mode="r")
        row("embed, whole", processes=1, **{k: found[k] for k in ("seconds", "peak_bytes")})
        for order in ORDERS:
            parts, shards = folder / order, folder / f"z-{order}"
            options = ["--parts", str(given.parts), "--order", order, "--out", str(parts)]
            found = measure(["build", str(folder / "store"), *options])
            said = found.pop("said")
            row("partition", order=order, parts=given.parts, cut_share=said["cut_share"], **found)
            options = ["--processes", str(given.parts), "--out", str(shards)]
            found = measure([*embed, str(parts), *options])
            found.pop("said")
            rows = sum(boundary_rows(open_part(parts, part)) for part in range(given.parts))
            found |= {"boundary_rows": rows, "largest_value": float(np.abs(whole).max())}
            found["difference"] = difference(parts, whole, shards)
            row("embed, in parts", order=order, parts=given.parts, processes=given.parts, **found)


if __name__ == "__main__":
    main()
