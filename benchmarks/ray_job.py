"""Workers of a Ray Train job over parts are killed: the weights of an undisturbed training.

usage: python -m benchmarks.ray_job [--nodes 20000] [--epochs 20] [--kill 1 0] [--out ROWS.jsonl]

Runs examples/clusters/ray_job.py with two workers, on a Ray of its own: on this machine's loopback,
without dashboard and usage statistics. A worker of each rank of `--kill` is killed with SIGKILL,
one after another, each after a new checkpoint; Ray starts both workers again. A training by
`graphcl train --processes 2` is undisturbed. `equal` says whether the weights have the same bytes.
`went_on` says whether the job went on from its checkpoints: epochs before a kill have the seconds
in the run that they had in the checkpoint. It needs `ray[train]`.
"""

import argparse
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import store
from benchmarks.rows import append, provenance
from graphcl.tabular.build import build_store

RESULTS = Path(__file__).parent / "results/ray_job.jsonl"
JOB = Path(__file__).parents[1] / "examples/clusters/ray_job.py"
WORKERS, LIMIT = 2, 1200  # seconds
# A Ray of its own, then the job. A folder's path is short: sockets lie in it.
DRIVER = """
import runpy, sys, ray
ray.init("local", include_dashboard=False, num_cpus=2, object_store_memory=10**8,
         _temp_dir=sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the address of this machine is then 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default: beside other work, it would hardly begin
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
OPTIONS = ("--device", "cpu", "--checkpoint-every", "1epochs")


def job(
    parts: Path, out: Path, options: Sequence[str], *, kill: Sequence[int] = ()
) -> dict[str, Any]:
    """Runs the job and kills workers; returns what happened.

    Args:
        parts: a graph in two parts.
        out: the run.
        options: of `graphcl train`.
        kill: the ranks to kill, one after another.
    """
    began, kills, histories = time.monotonic(), list[dict[str, int]](), list[Any]()
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, folder, str(JOB), str(parts), str(out), *options],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | ONE_THREAD | LOOPBACK | {"RAY_AUTH_TOKEN": secrets.token_hex(16)},
        )
        try:
            while process.poll() is None:
                if time.monotonic() > began + LIMIT:
                    raise SystemExit(f"the job took longer than {LIMIT} s:\n{_text(said)[-5000:]}")
                history = saved(out)
                if len(kills) < len(kill) and len(history) > len(histories and histories[-1]):
                    rank = kill[len(kills)]
                    # Each attempt says where its workers are.
                    workers = re.findall(rf"pid=(\d+)\) world_rank={rank},", _text(said))
                    if len(workers) == len(kills) + 1:
                        os.kill(int(workers[-1]), signal.SIGKILL)
                        histories.append(history)
                        kills.append({"rank": rank, "epoch": len(history)})
                time.sleep(0.05)
        finally:
            process.kill()
        text = _text(said)
    row: dict[str, Any] = {"code": process.returncode, "kills": kills}
    row |= {"attempts": text.count("Started training worker group"), "said": text}
    if not process.returncode:
        lines = (out / "metrics.jsonl").read_text().splitlines()
        metrics = [json.loads(line) for line in lines]
        row["went_on"] = all(metrics[: len(one)] == one for one in histories)
    return row | {"seconds": round(time.monotonic() - began, 1)}


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def saved(out: Path) -> list[Any]:
    """Returns the epochs that a training's newest checkpoint has; none where there is none."""
    for one in sorted(out.with_name(f"{out.name}.partial").glob("checkpoint-*"), reverse=True):
        with suppress(FileNotFoundError):  # it has just been replaced by a newer one
            history: list[Any] = json.loads((one / "checkpoint.json").read_text())["history"]
            return history
    return []


def undisturbed(parts: Path, out: Path, options: Sequence[str]) -> float:
    """Trains by the command alone, in as many processes; returns the seconds."""
    began = time.monotonic()
    words = [sys.executable, "-m", "graphcl", "train", str(parts), "--out", str(out), *options]
    words += ["--processes", str(WORKERS), "--quiet"]
    subprocess.run(words, env=os.environ | ONE_THREAD, check=True)
    return round(time.monotonic() - began, 1)


def weights(out: Path) -> str:
    """Returns a checksum of a run's weights."""
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--kill", type=int, nargs="*", default=[1, 0], help="ranks")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    import ray

    options = [*OPTIONS, "--set", f"epochs={given.epochs}", "--set", "dim=64"]
    options += ["--set", "batch_nodes=512", "--set", "steps=0"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store.build(folder / "store", given.nodes)
        build_store(folder / "store", out=folder / "parts", parts=WORKERS, order="neighbours")
        alone = undisturbed(folder / "parts", folder / "alone", options)
        row = job(folder / "parts", folder / "run", options, kill=given.kill)
        print(row.pop("said")[-3000:], file=sys.stderr)
        row |= {"equal": weights(folder / "run") == weights(folder / "alone")}
    row = {"benchmark": "ray_job", "nodes": given.nodes, "epochs": given.epochs, **row}
    row |= {"undisturbed_seconds": alone, "load": round(os.getloadavg()[0], 2)}
    row |= {"cores": os.cpu_count(), "ray": ray.__version__} | provenance(torch.device("cpu"))
    append(given.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
