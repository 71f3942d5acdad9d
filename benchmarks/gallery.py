"""All systems on the gallery's graphs, under one protocol, and the page that shows them.

usage: python -m benchmarks.gallery --out ROWS.jsonl [--systems raw graphcl:encoder=residual ...]
           [--graphs wisconsin actor ...] [--folder FOLDER] [--runs 3] [--labels 20 5]
           [--device cuda] [--workers 8] [--budget SECONDS]
       python -m benchmarks.gallery --page [--docs docs/research]

`graphcl compare` is the same for a user. There is one row per graph, system, seed and regime (the
graph's splits, and each of `--labels`), appended as it finishes; rows that are already in
ROWS.jsonl are not computed again, and a failed one is tried again. Every system has its defaults,
or the settings behind its name. Training and probe run on one device, the
largest graphs first; trees grow in `--workers` processes. No training starts after `--budget`
seconds. The graphs are those of FOLDER, by default ``graphs/`` in the folder GRAPHCL_DATA names.
To use a large device well, start several at once, each with its own ``--graphs``.

`--page` writes gallery.md and its pictures from the committed rows, and trains nothing.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

from benchmarks.gallery_page import CLOTHED, TITLES, write_page
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.research import comparison
from graphcl.research.comparison import compare, read_systems
from graphcl.research.rows import Progress

SYSTEMS = (*TITLES, *CLOTHED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--labels", nargs="*", type=int, default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--docs", type=Path, default=Path("docs/research"))
    options = parser.parse_args()
    if options.page:
        write_page(options.docs)
        return
    if options.out is None:
        parser.error("--out ROWS.jsonl is missing")
    folder = options.folder or Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs"
    files = graph_files(folder)
    largest = sorted(options.graphs or files, key=lambda name: -files[name].stat().st_size)
    graphs = {name: partial(read_gallery_graph, files[name]) for name in largest}
    began = time.perf_counter()
    found = compare(
        graphs,
        read_systems(options.systems),
        options.out,
        seeds=range(options.runs),
        device=resolve_device(options.device),
        labels=options.labels,
        workers=options.workers,
        budget=options.budget,
        on_progress=show,
    )
    print(comparison.report_of(*comparison.regimes(found)).terminal(), flush=True)
    print(f"{len(found)} rows, {time.perf_counter() - began:.0f} s", flush=True)


def show(progress: Progress) -> None:
    """Prints one line per training."""
    print(
        f"{progress.done}/{progress.total}  {progress.elapsed:.0f} s  {progress.label}  "
        f"{progress.failed} failed, {progress.remaining:.0f} s left",
        flush=True,
    )


if __name__ == "__main__":
    main()
