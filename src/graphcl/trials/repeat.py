"""One recipe, many seeds."""

import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.errors import TrainingError
from graphcl.estimator import GraphCL
from graphcl.evaluation import MultilabelResult, ProbeResult, linear_probe
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe

SCORES = ("accuracy", "micro_f1", "macro_f1", "val_accuracy", "val_micro_f1")
BUDGET = ("split", "steps", "strengths", "optimiser")


def repeat(
    graph: Graph | GraphCollection,
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    device: torch.device,
    jobs: int = 1,
    probe_steps: int = STEPS,
    on_probe_step: Callable[[int], None] | None = None,
    verbose: bool = False,
) -> list[dict[str, Any]]:
    """Trains and probes once per seed.

    Args:
        graph: a labelled graph, or several.
        recipe: what to train.
        seeds: one training each, one after the other.
        device: where to train.
        jobs: processes that probe while the next training runs; worth it where training is short.
        probe_steps: the probe's budget where a node has several labels.
        on_probe_step: called after each of them where the probe runs in this process (one job).
        verbose: report each seed on stderr.

    Returns:
        One row per seed: the probe's scores, the recipe's hash, training seconds, peak memory. A
        training that failed leaves a row with the reason under ``failed`` and no scores.
    """
    rows: list[dict[str, Any]] = []
    probes: list[Future[ProbeResult | MultilabelResult] | None] = []
    options: dict[str, Any] = {"steps": probe_steps, "device": str(device)}
    if on_probe_step is not None and jobs == 1:
        options["on_step"] = on_probe_step
    with probe_pool(jobs) as pool:
        for seed in seeds:
            reset_peak_memory(device)
            row = {"graph": graph.name, "recipe_hash": recipe.hash, "seed": seed}
            try:
                model = GraphCL(recipe, seed=seed, device=str(device))
                z = model.fit_transform(graph)
                probe = pool.submit(linear_probe, z, graph, **options)
                row |= {"loss": model.history_[-1].loss, "train_seconds": model.seconds_}
            except TrainingError as error:
                probe, row = None, row | {"failed": str(error)}
            rows.append(row | {"peak_memory_bytes": peak_memory_bytes(device)})
            probes.append(probe)
            if verbose:
                report_run(len(rows), seeds, asdict(probe.result()) if probe else {})
        return [
            row | (asdict(probe.result()) if probe else {})
            for row, probe in zip(rows, probes, strict=True)
        ]


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns each score as a number for one row, else as ``{"mean": …, "std": …}``.

    The deviation is the sample's (n − 1). Failed trainings are counted and otherwise left out.

    Raises:
        TrainingError: every training failed.
    """
    scored = [row for row in rows if "failed" not in row]
    if not scored:
        raise TrainingError(rows[0]["failed"])
    about = {name: scored[0][name] for name in BUDGET if name in scored[0]}
    summary: dict[str, Any] = {**about, "failed": len(rows) - len(scored)}
    for name in SCORES:
        if name not in scored[0]:
            continue  # the probe of several labels has other scores than that of one class
        values = [row[name] for row in scored]
        summary[name] = (
            values[0]
            if len(values) == 1
            else {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
        )
    return summary


def report_run(done: int, seeds: Sequence[int], row: dict[str, Any]) -> None:
    """Prints one finished run on stderr; a row without scores is a failed one."""
    score = "failed"
    if "val_micro_f1" in row:
        score = f"micro-F1 {row['micro_f1']:.4f}"
    elif "accuracy" in row:
        score = f"accuracy {100 * row['accuracy']:.1f} %"
    text = f"run {done}/{len(seeds)}: seed {seeds[done - 1]}  {score}"
    print(text, file=sys.stderr, flush=True)


class _InProcess(Executor):
    """Runs what is submitted at once, here."""

    def submit(self, function: Any, /, *args: Any, **keywords: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args, **keywords))
        return done


@contextmanager
def probe_pool(jobs: int) -> Iterator[Executor]:
    """Yields what runs probes: this process for one job, else that many processes."""
    if jobs == 1:
        yield _InProcess()
        return
    # Spawned, not forked: a forked child cannot use CUDA. One thread each: the probe is small, and
    # a pool of processes with all cores' threads each takes several times as long.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=_single_thread) as pool:
        yield pool


def _single_thread() -> None:
    threadpool_limits(1)
