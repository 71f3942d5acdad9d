"""What parts on several hosts would do at 10^9 nodes, from measured parts; for research/scaling.md.

usage: python -m benchmarks.scaling_model [--write | --check]

Exact embedding: a process computes, then exchanges, so the seconds add up. Its three terms of
computing are fitted to the processors' seconds of the rows; that of the wire is not. Training
fetches the rows of the next step while it computes this one, so the longer of the two counts; the
loss comes after. Its two terms of computing, per seed node and per byte, are fitted as well. The
functions below are the formulas; the page has them in words.

Measured parts are rows of `results/parts_on_hosts.jsonl`: `phases` (seconds of computing, bytes and
seconds of exchanges) and `divided` (cut edges and boundaries of more parts). Seconds of a step on
one process are those of `sampled_cpu.jsonl` and `sampled_gpu.jsonl`. Rows of training over parts
are in `results/parts_training.jsonl` (`benchmarks.parts_training`); those without a cache and
without a limit of memory, under which rows come from the disk, are compared.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from benchmarks.estimate import newest
from benchmarks.rows import placed, read
from graphcl.files.atomic import write_whole

RESULTS = Path(__file__).parent / "results"
FILES = ("parts_on_hosts.jsonl", "parts_training.jsonl")
PAGE = Path(__file__).parents[1] / "docs/research/scaling.md"
BEGIN, END = "<!-- model -->\n", "<!-- end model -->"
NODES, EDGES, FEATURES, DIM = 10**9, 2 * 10**10, 64, 128
WORLDS, WIRES = (4, 64), (25,)  # processes, one on each host; Gbit/s
SEEDS, FAN_OUT = 512, (10, 10, 10)  # of a process and step
NUMBER, ID, CHILD = 4, 8, 4  # bytes of a feature, of a node's number, of one that was drawn
ALLOWED = 0.25
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits(rate: str) -> float:
    """Returns the bits per second of ``500mbit``."""
    return float(rate[:-4]) * UNITS[rate[-4:]]


def boundary(nodes: float, degree: float, parts: int, cut_share: float) -> float:
    """Returns the nodes of other parts that the edges of one part lead to, if ends are random.

    A part has degree · nodes / parts entries, of which the cut share leads to the other
    nodes · (1 − 1 / parts), and so misses each of them with probability e^(−entries / nodes).
    Edges that keep together meet fewer nodes: this is an upper bound.
    """
    if parts == 1:
        return 0.0
    others = nodes * (1 - 1 / parts)
    entries = degree * nodes / parts * cut_share
    return others * (1 - math.exp(-entries / others))


def outside_share(parts: int, cut_share: float, hops: int) -> float:
    """Returns the share of nodes `hops` edges away that are in another part.

    Each edge leaves its part with the probability `cut_share`, for any of the others alike.
    """
    away = 0.0
    for _ in range(hops):
        away = away * (1 - cut_share / (parts - 1)) + (1 - away) * cut_share
    return away


@dataclass(frozen=True)
class Step:
    """What a process receives for a training step, in bytes: for its sample, and for its loss."""

    sample: float
    loss: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.sample + self.loss


def step_bytes(
    parts: int,
    cut_share: float,
    *,
    hits: float = 0.0,
    seeds: float = SEEDS,
    fan_out: tuple[int, ...] = FAN_OUT,
) -> Step:
    """Returns the bytes of a step of `seeds` nodes with neighbourhoods of `fan_out`.

    At this size, nodes of a sample are all different; where they repeat, each row travels once.
    Neighbours of a node elsewhere are asked for by its number and its place, and come back as
    numbers, with how many it has; then rows of features are asked for, of which the share `hits` is
    in the cache. The loss sends the embeddings of both views of all other processes, forward and
    backward.
    """
    sample, frontier = 0.0, float(seeds)
    for hop, drawn in enumerate((*fan_out, 0)):
        away = frontier * outside_share(parts, cut_share, hop) if parts > 1 else 0.0
        asked = 2 * ID + (drawn + 1) * CHILD if drawn else 0
        sample += away * (asked + (ID + FEATURES * NUMBER) * (1 - hits))
        frontier *= drawn
    loss = 2 * (parts - 1) * 2 * seeds * DIM * NUMBER
    return Step(sample, loss)


def step_seconds(compute: float, received: Step, wire: float) -> float:
    """Returns the seconds of a step on a wire of so many bits per second."""
    return max(compute, 8 * received.sample / wire) + 8 * received.loss / wire


@dataclass(frozen=True)
class Work:
    """Seconds of a core in exact embedding: per entry of the edges, per cut entry, per byte sent.

    A cut entry has to be found in the boundary; a byte has to be gathered, sent and placed.
    """

    entry: float
    cut: float
    byte: float

    def seconds(self, entries: float, cut: float, sent: float) -> float:
        """Returns the seconds of one process with so many entries, cut entries and bytes."""
        return self.entry * entries + self.cut * cut + self.byte * sent


def fitted(measured: list[dict[str, Any]]) -> Work | None:
    """Returns the work that explains the processors' seconds of measured rows best."""
    rows = _phases(measured)
    if not any(row["parts"] == 1 for row in rows):
        return None
    amounts = np.array([_amounts(row) for row in rows])
    seconds = np.array([max(row["cpu_seconds"]) for row in rows])
    # Divided by the seconds, every row counts alike; no term is negative.
    found, _ = scipy.optimize.nnls(amounts / seconds[:, None], np.ones(len(rows)))
    return Work(*found.tolist())


def _phases(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in measured if row["case"] == "phases" and not row["failed"]]


def _amounts(row: dict[str, Any]) -> tuple[float, float, float]:
    """Returns entries, cut entries and bytes sent of a process."""
    entries = 2 * row["edges"] / row["parts"]
    # What crosses the wire has headers beside the rows: TCP's, some 0.3 %.
    sent = max(row["sent_bytes"]) if row["parts"] > 1 else 0
    return entries, entries * row["cut_share"], sent


def embed_seconds(computing: float, sent: float, wire: float) -> float:
    """Returns the seconds of exact embedding: a process computes and sends in turn.

    Args:
        computing: seconds of a process.
        sent: bytes of the process that sends most.
        wire: bits per second.
    """
    return computing + 8 * sent / wire


def checked(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns measured rows of embedding with the seconds that the model gives for them.

    Processes share the cores of one machine, and others may use them, too: how much slower a
    process is than its core is measured with one process, and taken for all.
    """
    work, rows = fitted(measured), _phases(measured)
    slower = {
        row["nodes"]: max(row["total_seconds"]) / max(row["cpu_seconds"])
        for row in rows
        if row["parts"] == 1
    }
    found = []
    for row in (row for row in rows if row["nodes"] in slower and work is not None):
        amounts = _amounts(row)
        sharing = max(1, row["parts"] / row["cores"]) * slower[row["nodes"]]
        computing = work.seconds(*amounts) * sharing
        seconds = embed_seconds(computing, amounts[2], bits(row["rate"]))
        found.append({**row, "modelled": seconds, "measured": max(row["total_seconds"])})
    return found


@dataclass(frozen=True)
class StepWork:
    """Seconds of a core in a training step: per seed node of the process, per byte it sends.

    A byte is a part of a question or of an answer: it has to be found, sent and placed. Exchanges
    have a cost of their own in every step, whatever they carry.
    """

    seed: float
    byte: float
    exchanges: float

    def seconds(self, seeds: float, sent: float) -> float:
        """Returns the seconds of one process with so many seeds and bytes for samples."""
        return self.seed * seeds + (self.byte * sent + self.exchanges if sent else 0.0)


def fitted_steps(measured: list[dict[str, Any]]) -> StepWork | None:
    """Returns the work that explains the processors' seconds of measured steps best."""
    rows = _steps(measured)
    if not any(row["parts"] == 1 for row in rows):
        return None
    amounts = np.array(
        [
            (row["batch_nodes"] / row["parts"], row["sent_bytes"], float(row["parts"] > 1))
            for row in rows
        ]
    )
    seconds = np.array([row["compute_seconds"] for row in rows])
    found, _ = scipy.optimize.nnls(amounts / seconds[:, None], np.ones(len(rows)))
    return StepWork(*found.tolist())


def _steps(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the steps that the model is for; of equal measurements the last counts."""
    keys = ("nodes", "parts", "order", "rate", "batch_nodes")
    plain = [row for row in measured if row["case"] == "step" and not row["failed"]]
    plain = [row for row in plain if not row["cache_bytes"] and not row["memory_limit"]]
    return list({tuple(row[key] for key in keys): row for row in plain}.values())


def checked_training(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns measured rows of training with the seconds that the model gives for their steps.

    How much longer than its core a process takes is measured with one process, as for embedding.
    """
    work, rows = fitted_steps(measured), _steps(measured)
    one = [row for row in rows if row["parts"] == 1]
    ratios = [row["step_seconds"] / row["compute_seconds"] for row in one]
    slower = {row["nodes"]: float(np.mean(ratios)) for row in one}
    found = []
    for row in (row for row in rows if row["nodes"] in slower and work is not None):
        sharing = max(1, row["parts"] / row["cores"]) * slower[row["nodes"]]
        computing = work.seconds(row["batch_nodes"] / row["parts"], row["sent_bytes"]) * sharing
        rest = max(0.0, row["wire_bytes"] - row["sent_bytes"])  # losses and gradients
        seconds = step_seconds(computing, Step(row["sent_bytes"], rest), bits(row["rate"]))
        found.append({**row, "modelled": seconds, "measured": row["step_seconds"]})
    return found


def agreement(measured: list[dict[str, Any]], training: list[dict[str, Any]]) -> str:
    """Returns how far the model is from the measurements, in words."""
    parts = []
    for what, rows in (("embedding", checked(measured)), ("a step", checked_training(training))):
        off = [100 * (row["modelled"] / row["measured"] - 1) for row in rows]
        if off:
            parts.append(f"{what} {min(off):+.0f} to {max(off):+.0f} % ({len(off)} rows)")
    return f"{', '.join(parts) or 'no row yet'}."


def cut_shares(measured: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """Returns the share of cut edges by order and number of parts."""
    return {(row["order"], row["parts"]): row["cut_share"] for row in measured}


def check_table(measured: list[dict[str, Any]], training: list[dict[str, Any]]) -> list[str]:
    lines = []
    for what, rows in (("embedding", checked(measured)), ("a step", checked_training(training))):
        for row in rows:
            wire = row["rate"] if row["parts"] > 1 else "–"
            off = 100 * (row["modelled"] / row["measured"] - 1)
            cells = [what, f"{row.get('nodes', 0):,}", f"{row['parts']}", f"`{row['order']}`", wire]
            cells += [f"{row['modelled']:.2f} s", f"{row['measured']:.2f} s", f"{off:+.0f} %"]
            lines.append(f"| {' | '.join(cells)} |")
    head = "| what | nodes | processes | order | wire | model | measured | difference |"
    return [head, "|---|---|---|---|---|---|---|---|", *lines]


def boundary_table(measured: list[dict[str, Any]]) -> list[str]:
    """Measured boundaries beside the formula, by order and number of parts."""
    newest_rows = {
        (row["nodes"], row["order"], row["parts"]): row for row in measured if row["parts"] > 1
    }
    lines = []
    for (nodes, order, parts), row in sorted(newest_rows.items()):
        degree = 2 * row["edges"] / row["nodes"]
        formula = boundary(row["nodes"], degree, parts, row["cut_share"])
        lines.append(
            f"| {nodes:,} | `{order}` | {parts} | {100 * row['cut_share']:.0f} % | "
            f"{row['boundary_rows'] / parts:,.0f} | {formula:,.0f} |"
        )
    head = "| nodes | order | parts | edges cut | boundary of a part | formula |"
    return [head, "|---|---|---|---|---|---|", *lines]


def training_table(
    shares: dict[tuple[str, int], float], training: list[dict[str, Any]]
) -> list[str]:
    work, lines = fitted_steps(training) or StepWork(0.0, 0.0, 0.0), []
    devices = (
        ("2 CPU threads", "sampled_cpu.jsonl", "sampled epoch on a CPU"),
        ("one H200", "sampled_gpu.jsonl", "sampled epoch on a GPU"),
    )
    for device, file, what in devices:
        row = newest(file, what)
        if row is None:
            continue
        rate = row.get("seeds_per_second") or row["nodes"] / row["seconds"]
        compute = SEEDS / rate
        for order in ("neighbours", "hash"):
            for parts in WORLDS:
                share = 1 - 1 / parts if order == "hash" else shares.get((order, parts))
                if share is None:
                    continue
                received = step_bytes(parts, share)
                cells = [f"{device}", f"`{order}`", f"{parts}", f"{received.total / 1e6:,.0f} MB"]
                # By a core; a GPU does not wait for it.
                handling = work.seconds(0, received.sample)
                busy = max(compute, handling) if "H200" in device else compute + handling
                for wire in WIRES:
                    seconds = step_seconds(busy, received, wire * 1e9)
                    sample, loss = (8 * b / (wire * 1e9) for b in (received.sample, received.loss))
                    times = {"computing": compute, "bytes": handling, "wire": sample, "loss": loss}
                    binds = max(times, key=lambda name: times[name])
                    cells.append(f"{1 / seconds:,.1f}, {binds}")
                lines.append(f"| {' | '.join(cells)} |")
    wires = " | ".join(f"steps/s at {wire} Gbit/s, what binds" for wire in WIRES)
    head = f"| a process has | order | P | received a step | {wires} |"
    return [head, "|---|---|---|---|---|---|", *lines]


def embedding_table(measured: list[dict[str, Any]]) -> list[str]:
    work = fitted(measured)
    if work is None:
        return ["No row of one process yet."]
    widths = FEATURES + DIM // 4  # as measured: 64 features, and a layer of 32
    shares, lines = cut_shares(measured), []
    for order in ("neighbours", "hash"):
        for parts in WORLDS:
            share = 1 - 1 / parts if order == "hash" else shares.get((order, parts))
            if share is None:
                continue
            away = boundary(NODES, 2 * EDGES / NODES, parts, share)
            sent = away * widths * NUMBER
            entries = 2 * EDGES / parts
            own = work.seconds(entries, share * entries, sent)
            table = (NODES / parts + away) * FEATURES * NUMBER
            cells = [f"`{order}`", f"{parts}", f"{own / 3600:,.1f} h", f"{sent / 1e9:,.0f} GB"]
            cells += [f"{8 * sent / (wire * 1e9):,.0f} s" for wire in WIRES]
            lines.append(f"| {' | '.join([*cells, f'{table / 1e9:,.0f} GB'])} |")
    wires = " | ".join(f"sending at {wire} Gbit/s" for wire in WIRES)
    head = f"| order | P | computing | sent by a process | {wires} | largest table |"
    return [head, "|---|---|---|---|---|---|---|", *lines]


def text() -> str:
    """Returns the section's tables."""
    measured, training = (read(RESULTS / name) for name in FILES)
    lines = [
        "The model beside measurements, as hosts on one machine with two cores, which others used "
        "at the same time: " + agreement(measured, training),
        "",
        f"**Training** at N = 10⁹, 2·10¹⁰ edges, {FEATURES} features: {SEEDS} seeds per process "
        f"and step, neighbourhoods of {'-'.join(map(str, FAN_OUT))}, no cache.",
        "",
        *training_table(cut_shares(measured), training),
        "",
        "**Exact embedding** of the same graph, one core for each process:",
        "",
        *embedding_table(measured),
        "",
    ]
    return "\n".join(lines)


def page() -> str:
    """Returns the page with the section's tables as they should be."""
    return placed(PAGE.read_text(), BEGIN, text(), END)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the section of the page")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page differs")
    given = parser.parse_args()
    if given.write:
        write_whole(PAGE, page())
    elif given.check:
        sys.exit(int(page() != PAGE.read_text()))
    else:
        measured, training = (read(RESULTS / name) for name in FILES)
        print(text(), *check_table(measured, training), "", *boundary_table(measured), sep="\n")


if __name__ == "__main__":
    main()
