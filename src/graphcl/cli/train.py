"""`graphcl train`: from a graph to a run directory."""

import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy
import sklearn
import torch
import typer

from graphcl import __version__
from graphcl.cli.common import (
    DeviceOption,
    JsonOption,
    SetOption,
    load_graph,
    note,
    parse_settings,
    print_json,
)
from graphcl.cli.embed import rows
from graphcl.cli.logs import LogOption, epoch_log, keep_log
from graphcl.cli.probing import ProbeStepsOption, probe, probe_text
from graphcl.collection import GraphCollection
from graphcl.devices import device_name, peak_memory_bytes, reset_peak_memory, resolve_device
from graphcl.errors import GraphError
from graphcl.estimator import GraphCL
from graphcl.evaluation import MultilabelResult, ProbeResult
from graphcl.evaluation.multilabel import STEPS
from graphcl.graph import Graph
from graphcl.io import runs
from graphcl.io.run_nodes import write_nodes
from graphcl.recipes import load_recipe, recipe_names
from graphcl.report.nodes import describe_nodes
from graphcl.training import EpochMetrics


def train(
    graph: Annotated[str, typer.Argument(help="A dataset (cora, ppi, …) or an .npz.")],
    out: Annotated[
        Path | None, typer.Option(help="The run directory. (default: runs/NAME)")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="A recipe's name or a .toml. (default: the dataset's own, or default)"),
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[int, typer.Option(help="Decides weights, batches and views.")] = 0,
    probe_steps: ProbeStepsOption = STEPS,
    device: DeviceOption = "auto",
    log: LogOption = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a graph and write a run directory.

    On a labelled graph it ends with the probe's score: logistic regression on the embeddings.
    Labels are read for that alone. Of a dataset of several graphs (ppi) the training graphs alone
    are trained on; embeddings.npy holds the rows of all, the training graphs first, then those of
    validation and test.

    Examples:

        graphcl train cora

        graphcl train mine.npz --out runs/mine --set epochs=50 --set temperature=0.8

        graphcl train cora --log tensorboard
    """
    loaded = load_graph(graph)
    out = out if out is not None else Path("runs") / loaded.name
    runs.check_output(out, overwrite=overwrite)
    # By the argument, not the graph's name: somebody's own cora.npz is not Cora.
    chosen = recipe or (graph.lower() if graph.lower() in recipe_names() else "default")
    full = load_recipe(chosen).with_values(**parse_settings(settings))
    where = resolve_device(device)
    model = GraphCL(full, seed=seed, device=str(where), verbose=True)
    print(f"{loaded!r}; recipe {chosen}; {device_name(where)}", file=sys.stderr)
    if loaded.self_loops_removed:
        print(f"{loaded.self_loops_removed} self-loops removed", file=sys.stderr)
    reset_peak_memory(where)
    status = "complete"
    try:
        with _interruptible() as stop_if_asked, epoch_log(log, out) as record:
            model.fit(loaded, on_epoch=lambda metrics: (record(metrics), stop_if_asked(metrics)))
    except _InterruptedError:
        status = "interrupted"
    z = rows(model, loaded)
    result = _result(model, loaded, graph)
    try:
        score, why = _probe(z, loaded, probe_steps, where)
    except KeyboardInterrupt:  # the training is worth keeping
        status, score, why = "interrupted", None, "interrupted"
    outcome = {"status": status, "probe": asdict(score) if score else None, "probe_skipped": why}
    result |= outcome | note(loaded)
    with runs.new_run(out, overwrite=overwrite) as folder:
        model.write_to(folder, graph=graph)
        np.save(folder / runs.EMBEDDINGS, z)
        runs.write_json(folder / runs.RESULT, result)
        write_nodes(folder, describe_nodes(loaded))
        keep_log(log, out, folder)
    if status == "interrupted":
        done = f"{len(model.history_)} of {full.epochs} epochs"
        print(f"graphcl train: interrupted after {done}; saved in {out}", file=sys.stderr)
        raise typer.Exit(130)
    if as_json:
        print_json(result)
    else:
        _print_result(result, out)


def _result(model: GraphCL, graph: Graph | GraphCollection, source: str) -> dict[str, Any]:
    """Returns what `result.json` says of the training."""
    last = model.history_[-1]
    where = torch.device(model.device)
    return {
        "status": "complete",
        "graph": {
            "name": graph.name,
            "source": source,
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "features": graph.num_features,
        },
        "probe": None,
        "probe_skipped": None,
        "mode": model.mode_._asdict(),
        "epochs": last.epoch,
        "loss": last.loss,
        "mi_bound": last.mi_bound,
        "seed": model.seed,
        "recipe_hash": model.recipe_.hash,
        "train_seconds": model.seconds_,
        "peak_memory_bytes": peak_memory_bytes(where),
        "device": device_name(where),
        "versions": {
            "graphcl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def _probe(
    z: Any, graph: Graph | GraphCollection, steps: int, device: torch.device
) -> tuple[ProbeResult | MultilabelResult | None, str | None]:
    """Returns the probe's result, or the reason there is none: labels are a gift, not a duty."""
    if graph.y is None:
        return None, "the graph has no labels"
    try:
        return probe(z, graph, steps=steps, device=device), None
    except GraphError as error:
        return None, str(error)


def _print_result(result: dict[str, Any], out: Path) -> None:
    if result["probe"]:
        print(f"probe: {probe_text(result['probe'])}")
        if "note" in result:
            print(f"note: {result['note']}")
    else:
        print(f"no probe: {result['probe_skipped']}")
    print(
        f"run: {out}  ({result['epochs']} epochs in {result['train_seconds']:.1f} s, "
        f"peak memory {result['peak_memory_bytes'] / 2**30:.2f} GiB)"
    )


class _InterruptedError(Exception):
    pass


@contextmanager
def _interruptible() -> Iterator[Any]:
    """Yields an `on_epoch` that ends training at the epoch in which Ctrl-C was first pressed.

    A second Ctrl-C stops at once and writes nothing.
    """
    asked = False

    def ask(_number: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nstopping after this epoch; Ctrl-C again stops now", file=sys.stderr, flush=True)

    def stop_if_asked(_metrics: EpochMetrics) -> None:
        if asked:
            raise _InterruptedError

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, previous)
