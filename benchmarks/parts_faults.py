"""Faults of hosts that train over parts: the same weights as undisturbed, or a clear error.

usage: python -m benchmarks.parts_faults [--kills 20] [--each 4] [--cases down:5 stop:10 slow …]
           [--launchers host torchrun] [--nodes 20000] [--epochs 20] [--seed 0] [--table]
           [--folder DIR] --out ROWS.jsonl

`graphcl train PARTS --resume` runs on four hosts of `benchmarks.hosts`. Each has a disk of its own
(a mount namespace) with its part alone, and its checkpoints. One training is undisturbed; the
weights of every other one are compared with its, byte by byte. What happens:

- `kill`: processes of random hosts are killed at random moments, `--each` in a training, until
  `--kills` have hit one. All start again when one dies: by `benchmarks.hosts`, as a scheduler would
  (`host`), or by torchrun on each host (`torchrun`). If torchrun itself is killed, between two
  attempts of its worker, the scheduler starts all again (`attempts`).
- `down:N`: the link of a random host is taken away for N seconds; nothing starts again.
- `stop:N`: all processes of a random host are stopped for N seconds; nothing starts again.
- `slow`: wires of 100 Mbit/s instead of 1 Gbit/s.
- `silent`: a link is away for longer than `--timeout`; every process must end with code 1 after
  that time, and the same command with `--resume` must end with the same weights.

`said` is the last line of each process that failed; `after_seconds` is how long after the fault the
last one ended. Moments and hosts follow from `seed`.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import store
from benchmarks.hosts import PORT, run_hosts
from benchmarks.namespaces import SUBNET, why_not
from benchmarks.parts_on_hosts import CPU, ONE_THREAD, summary
from benchmarks.rows import append, provenance, read
from graphcl.store.header import part_name
from graphcl.tabular.build import build_store

RESULTS = Path(__file__).parent / "results/parts_faults.jsonl"
PARTS, LIMIT = 4, 1800
FAST, SLOW = "1gbit", "100mbit"
RESTART = 10  # seconds, about: how much longer a training takes after a kill
PATIENCE, SILENT = 10, 60  # seconds of --timeout where a peer is silent for so long


@dataclass(frozen=True)
class Training:
    """A training on hosts with disks of their own, which lie below `folder`."""

    folder: Path
    nodes: int
    epochs: int

    def prepare(self) -> None:
        """Writes a store, and a part of it to the disk of each host."""
        if not (self.folder / "parts").exists():
            store.build(self.folder / "store", self.nodes)
            options: dict[str, Any] = {"out": self.folder / "parts", "parts": PARTS}
            build_store(self.folder / "store", order="neighbours", **options)
        (self.folder / "disk").mkdir(exist_ok=True)
        for rank in range(PARTS):
            disk = self.folder / f"disk-{rank}/parts"
            if not disk.exists():
                own = part_name(rank)
                shutil.copytree(self.folder / f"parts/{own}", disk / own)
                shutil.copy(self.folder / "parts/store.json", disk)

    def clear(self) -> None:
        """Removes what trainings have left."""
        for rank in range(PARTS):
            for name in ("run", "run.partial"):
                shutil.rmtree(self.folder / f"disk-{rank}/{name}", ignore_errors=True)

    def words(self, launcher: str, timeout: int) -> list[str]:
        """Returns the command of a host."""
        train = ["graphcl", "train", "parts", "--out", "run", "--resume", "--cache", "500KB"]
        train += ["--checkpoint-every", "3s", "--timeout", str(timeout), "--set", "dim=64"]
        train += ["--set", "batch_nodes=512", "--set", "steps=0"]
        train += ["--set", f"epochs={self.epochs}"]
        start = f"{sys.executable} -m"
        if launcher == "torchrun":
            start += f" torch.distributed.run --nnodes {PARTS} --nproc-per-node 1 --max-restarts 30"
            start += f" --rdzv-backend c10d --rdzv-endpoint {SUBNET}.1:{PORT} --rdzv-id faults"
            start += f" --rdzv-conf is_host=$((RANK == 0)) --local-addr {SUBNET}.$((RANK + 1)) -m"
        disk = self.folder.resolve() / "disk"
        script = f'mount --bind "{disk}-$RANK" "{disk}" && cd "{disk}" && exec {start} "$@"'
        return ["unshare", "--mount", "bash", "-c", script, "host", *train]

    def run(self, *, launcher: str = "host", timeout: int = 300, **options: Any) -> dict[str, Any]:
        """Trains; returns what the hosts did, and a checksum of the weights."""
        environment = ONE_THREAD | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        words = self.words(launcher, timeout)
        found = run_hosts(words, PARTS, seconds=LIMIT, environment=environment, **options)
        lines = [(text.strip().splitlines() or [""])[-1] for text in found["output"]]
        about = summary(found, loud=False)
        weights = self.folder / "disk-0/run/model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else None
        said = [lines[rank] for rank in about["failed"]]
        return about | {"launcher": launcher, "weights": digest, "said": said}


def kills(
    training: Training, given: argparse.Namespace, launcher: str, whole: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields rows of trainings in which processes are killed, until enough were."""
    hit, seed = 0, given.seed
    while hit < given.kills:
        training.clear()
        count = min(given.each, given.kills - hit)
        options: dict[str, Any] = {"faults": ["kill"] * count, "seed": seed, "rate": FAST}
        options["between"] = (2, whole["seconds"] + RESTART * (count - 1))
        options["restarts"] = 3 * count  # by torchrun too, where it is torchrun that was killed
        found = training.run(launcher=launcher, **options)
        landed = sum(one["hit"] for one in found["faults"])
        hit += landed
        yield {"case": "kill", "seed": seed, "kills": landed, **found}
        seed += 1


def disturbed(training: Training, case: str, seed: int, whole: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of a training that is disturbed, and goes on by itself, or is resumed."""
    training.clear()
    options: dict[str, Any] = {"seed": seed, "rate": SLOW if case == "slow" else FAST}
    options["between"] = (whole["seconds"] / 2, 0.8 * whole["seconds"])
    if case == "silent":
        row = training.run(timeout=PATIENCE, faults=[f"down:{SILENT}"], **options)
        ended = row["seconds"] - row["faults"][0]["at"]
        again = training.run(rate=FAST)
        row |= {"after_seconds": round(ended, 1), "timeout": PATIENCE, "resumed": again["code"]}
        row["weights"] = again["weights"]
    else:
        row = training.run(faults=[] if case == "slow" else [case], **options)
    return {"case": case, "seed": seed, **row}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of scaling.md: what happened, and what it did."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["case"] != "undisturbed":
            kinds.setdefault((row["case"], row["launcher"]), []).append(row)
    lines = []
    for (case, launcher), some in kinds.items():
        kind, _, length = case.partition(":")
        what = {
            "kill": f"{sum(row.get('kills', 0) for row in some)} kills of random processes, "
            f"started again by {'torchrun' if launcher == 'torchrun' else 'a scheduler'}",
            "down": f"a link is away for {length} s",
            "stop": f"a host is stopped for {length} s",
            "slow": "wires of 100 Mbit/s instead of 1 Gbit/s",
            "silent": f"a link is away for longer than `--timeout {PATIENCE}`; then `--resume`",
        }[kind]
        took = sum(row["seconds"] for row in some) / len(some)
        alone = sum(row["undisturbed_seconds"] for row in some) / len(some)
        ended = sum(1 for row in some if row["failed"])
        end = f"{ended} ended" if ended else "none"
        if kind == "silent":
            codes = sorted({code for row in some for code in row["code"]})
            end = f"code {', '.join(map(str, codes))} after {some[0]['after_seconds']:.0f} s"
        equal = sum(row["equal"] for row in some)
        cells = [what, f"{len(some)}", f"{equal}", end, f"{took:.0f} s", f"{alone:.0f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    head = "| what happens | trainings | with the same weights | error | took | undisturbed |"
    return [head, "|---|---|---|---|---|---|", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4, help="kills in a training")
    parser.add_argument("--cases", nargs="*", default=["down:5", "stop:10", "slow", "silent"])
    parser.add_argument("--launchers", nargs="*", default=["host"], help="host, torchrun")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps the parts")
    parser.add_argument("--table", action="store_true", help="print the table of scaling.md")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(read(RESULTS))))
        return
    if given.out is None:
        parser.error("--out is required")
    why = why_not()
    if why:
        raise SystemExit(f"parts_faults: {why}")
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory() as name:
        training = Training(Path(name), given.nodes, given.epochs)
        training.prepare()
        training.clear()
        whole = training.run(rate=FAST)

        def keep(found: dict[str, Any]) -> None:
            row = {"benchmark": "parts_faults", "nodes": given.nodes, "epochs": given.epochs}
            row |= {**found, "undisturbed_seconds": whole["seconds"]}
            row["equal"] = bool(row["weights"]) and row["weights"] == whole["weights"]
            row |= {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}
            append(given.out, row | provenance(CPU))
            print(json.dumps(row), flush=True)

        keep({"case": "undisturbed", "seed": None, **whole})
        for case in given.cases:
            keep(disturbed(training, case, given.seed, whole))
        for launcher in given.launchers if given.kills else ():
            for found in kills(training, given, launcher, whole):
                keep(found)


if __name__ == "__main__":
    main()
