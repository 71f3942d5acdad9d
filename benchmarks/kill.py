"""Kills a training with SIGKILL at random moments and resumes it, again and again.

usage: python -m benchmarks.kill [--kills 50] [--out ROWS.jsonl]

After each kill the training is resumed and runs to its end. Its weights must be bit-identical to
those of an uninterrupted training, and no other files may remain. It trains on Cora for a few
epochs on a CPU, with a checkpoint after every epoch.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows

RUN = "run"
SETTINGS = {"epochs": 12, "dim": 64}


def train(graph: str, settings: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    """Starts a training that continues from the last checkpoint, if there is one."""
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "graphcl", "train", graph, "--out", str(folder / RUN)]
    return subprocess.Popen(
        [*command, "--resume", "--checkpoint-every", "1epochs", "--device", "cpu", *changes],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # The number of threads decides the order of sums, so it is fixed.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finished(process: subprocess.Popen[str]) -> None:
    """Waits for a training that must succeed."""
    _, err = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"a training that was not killed ended with {process.returncode}: {err}")


def outputs(folder: Path) -> list[bytes]:
    """Returns the weights and embeddings of the run, as bytes."""
    return [(folder / RUN / name).read_bytes() for name in ("model.safetensors", "embeddings.npy")]


def reached(folder: Path) -> int:
    """Returns the epoch of the newest checkpoint, or −1 if there is none."""
    saved = sorted(folder.glob("run.partial/checkpoint-*"))
    return int(saved[-1].name.split("-")[1]) if saved else -1


def wait_until(epoch: int, process: subprocess.Popen[str], folder: Path) -> None:
    """Waits for a checkpoint of `epoch`, or for the end of the training."""
    while process.poll() is None and reached(folder) < epoch:
        time.sleep(0.001)


def killed_and_resumed(
    graph: str, settings: dict[str, Any], *, kills: int, seed: int, folder: Path
) -> dict[str, Any]:
    """Returns a row: how many killed and resumed trainings gave the uninterrupted result.

    A kill comes a random time after the checkpoint of a random epoch, between the start of the
    process and the writing of the run. A kill that comes after the end is not counted.
    """
    draw, epochs = random.Random(seed), settings["epochs"]
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    marks = [began]
    first = train(graph, settings, folder)
    for epoch in (0, 1, epochs):
        wait_until(epoch, first, folder)
        marks.append(time.monotonic())
    finished(first)
    tail = time.monotonic() - marks[-1]
    epoch_seconds = (marks[-1] - marks[-2]) / max(1, epochs - 1)
    whole, files = outputs(folder), sorted(path.name for path in (folder / RUN).iterdir())
    equal, stray, landed, attempts = 0, [], [], 0
    while len(landed) < kills and attempts < 3 * kills:
        attempts += 1
        shutil.rmtree(folder / RUN)
        process = train(graph, settings, folder)
        target = draw.randrange(-1, epochs + 1)
        wait_until(target, process, folder)
        longest = {-1: marks[1] - began, epochs: tail}.get(target, epoch_seconds)
        time.sleep(draw.uniform(0, longest))
        alive = process.poll() is None
        process.kill()
        process.communicate()
        position = reached(folder)
        finished(train(graph, settings, folder))
        left = [path.name for path in folder.iterdir() if path.name != RUN]
        left += [path.name for path in (folder / RUN).iterdir() if path.name not in files]
        if alive:
            landed.append(position)
            equal += outputs(folder) == whole
            stray += left
    return {
        "what": "kill -9 at random moments of a training, each resumed to its end",
        "graph": graph,
        "settings": settings,
        "kills": len(landed),
        "epoch_of_the_newest_checkpoint": {str(n): landed.count(n) for n in sorted(set(landed))},
        "bitwise_equal": equal == len(landed) == kills,
        "equal": equal,
        "stray": stray,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = killed_and_resumed(
            "cora", SETTINGS, kills=options.kills, seed=options.seed, folder=Path(folder)
        )
    print(json.dumps(row, indent=2))
    if options.out:
        rows.append(options.out, row | rows.provenance(torch.device("cpu")))
    if not row["bitwise_equal"] or row["stray"]:
        raise SystemExit("a killed training did not give the uninterrupted result")


if __name__ == "__main__":
    main()
