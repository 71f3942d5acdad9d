"""Estimates the cost of a graph of 10^9 nodes from rows, for docs/research/scaling.md.

usage: python -m benchmarks.estimate [--write | --check]

Hours are extrapolated: the work divided by a measured rate, and each line names the row of that
rate. If a row is missing, the line says so instead of giving a number.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks import rows
from graphcl.files.atomic import write_whole

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs/research/scaling.md"
BEGIN, END = "<!-- estimate -->\n", "<!-- end -->"
NODES = 10**9
HOURS_WANTED = 24


def newest(file: str, what: str) -> dict[str, Any] | None:
    """Returns the last row of a file whose `what` starts with `what`, or None."""
    path = RESULTS / file
    found = (
        [row for row in rows.read(path) if row["what"].startswith(what)] if path.exists() else []
    )
    return found[-1] if found else None


def hours() -> list[str]:
    """One line per measured rate: hours per epoch on one machine, and machines for one day."""
    lines = []
    for file, what, device in (
        ("sampled_cpu.jsonl", "sampled epoch on a CPU", "2 CPU threads"),
        ("sampled_cpu.jsonl", "sampled step on a CPU", "2 CPU threads"),
        ("sampled_gpu.jsonl", "sampled epoch on a GPU", "one GPU"),
    ):
        row = newest(file, what)
        if row is None:
            lines.append(f"| {device} | {what}: no row yet | – | – | – |")
            continue
        rate = row.get("seeds_per_second") or row["nodes"] / row["seconds"]
        alone = NODES / rate / 3600
        device = row["device"] if row["device"] != "cpu" else device
        lines.append(
            f"| {device} | {row['what']} | {rate:,.0f} | {alone:,.0f} | "
            f"{max(1, -(-int(alone) // HOURS_WANTED)):,} |"
        )
    head = f"machines for {HOURS_WANTED} h"
    return [
        f"| device | row | seeds/s | hours an epoch, alone | {head} |",
        "|---|---|---|---|---|",
        *lines,
    ]


def inference() -> str:
    row = newest("sampled_cpu.jsonl", "exact embeddings on a CPU")
    if row is None:
        return "Exact inference: no row yet."
    rate = 10**6 / row["seconds"]
    return (
        f"Exact inference at the measured {rate:,.0f} nodes/s ({row['what']}; 2 threads): "
        f"{NODES / rate / 3600:,.1f} h on one such machine, if it could hold two layers; "
        "divided by the number of machines that share the rows, plus the time to send each layer."
    )


def shares() -> list[str]:
    """What one of several GPUs does for one exact loss over all nodes, as measured on one."""
    path = RESULTS / "nt_xent_shares.jsonl"
    found = rows.read(path)
    largest = max(row["nodes"] for row in found)
    newest_rows = {row["world"]: row for row in found if row["nodes"] == largest}
    lines = []
    for world, row in sorted(newest_rows.items()):
        wire = row.get("least_gb_per_s")
        lines.append(
            f"| {world} | {row['ms'] / 1e3:,.2f} s | {row['share_of_gemm']:.0%} | "
            f"{row['peak_extra_bytes'] / 1e9:,.1f} GB | {row['wire_bytes'] / 1e9:,.1f} GB | "
            + (f"{wire:,.1f} GB/s |" if wire else "– |")
        )
    first = next(iter(newest_rows.values()))
    head = "| GPUs R | step of one | of the GEMM rate | memory | received | wire |"
    return [
        f"Forward and backward of the loss over M = {largest:,} nodes on one of R GPUs "
        f"({first['device']}, d = {first['d']}, 16 bits), measured on one GPU that is given that "
        "process's rows; nothing was sent. *Wire* is the rate at which the next table hides behind "
        "this one's products. If it does, the step of all R takes as long as that of one.",
        "",
        head,
        "|---|---|---|---|---|---|",
        *lines,
    ]


def text() -> str:
    parts = [
        "\n".join(hours()),
        inference(),
        "\n".join(shares()),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    whole = rows.placed(page, BEGIN, text(), END)
    if options.check and whole != page:
        raise SystemExit("docs/research/scaling.md is stale: python -m benchmarks.estimate --write")
    if options.write:
        write_whole(PAGE, whole)
    if not (options.check or options.write):
        print(text())


if __name__ == "__main__":
    main()
