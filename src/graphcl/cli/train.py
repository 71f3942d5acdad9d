"""`graphcl train`: from a graph to a run directory."""

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from graphcl.cli._shared.graphs import (
    graph_facts,
    graph_fingerprint,
    load_graph,
    names_tables,
    note,
)
from graphcl.cli._shared.interrupts import interrupts
from graphcl.cli._shared.launch import ProcessesOption, agree, launch
from graphcl.cli._shared.logs import LogOption, epoch_log, keep_log
from graphcl.cli._shared.options import (
    DeviceOption,
    JsonOption,
    SetOption,
    parse_settings,
    print_json,
)
from graphcl.cli._shared.probing import ProbeStepsOption, probe, probe_text
from graphcl.cli._shared.tables import print_notes, takes_tables
from graphcl.cli._shared.train_baseline import check_baseline, train_baseline
from graphcl.cli._shared.unfinished import begin, completed, every, saved
from graphcl.cli.embed import embed_rows
from graphcl.devices import device_name, peak_memory_bytes, reset_peak_memory, resolve_device
from graphcl.distributed import any_of, first_process, group, local_device, restarted
from graphcl.errors import DatasetError, GraphError
from graphcl.estimator import GraphCL
from graphcl.evaluation import MultilabelResult, ProbeResult
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe, recipe_for
from graphcl.runs import files as runs
from graphcl.runs.describe import describe_nodes
from graphcl.runs.nodes import write_nodes
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from graphcl.training import Checkpoints
from graphcl.trials.rows import versions


@takes_tables
def train(
    graph: Annotated[
        str,
        typer.Argument(
            help="A dataset (cora, ppi, …), a store, an .npz, or a list of edges: a file "
            "(.csv, .tsv, .parquet, .graphml, …), FILE:TABLE, or an SQL query."
        ),
    ],
    tables: TableOptions,
    out: Annotated[
        Path | None, typer.Option(help="The run directory. (default: runs/NAME)")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="A recipe's name or a .toml. (default: the dataset's own, or default)"),
    ] = None,
    method: Annotated[
        str, typer.Option(help="graphcl, or another system of the paper's tables: dgi, gcn, …")
    ] = "graphcl",
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[int, typer.Option(help="Decides weights, batches and views.")] = 0,
    probe_steps: ProbeStepsOption = STEPS,
    device: DeviceOption = "auto",
    log: LogOption = None,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Start even where memory may not suffice.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is there.")] = False,
    resume: Annotated[
        bool, typer.Option(help="Go on from the last checkpoint, if there is one.")
    ] = False,
    checkpoint_every: Annotated[
        str, typer.Option(help="60s, 10epochs, or never but when stopped and at the end.")
    ] = "60s",
    processes: ProcessesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a graph, or another system with --method, and write a run.

    On a labelled graph it ends with the probe's score: logistic regression on the embeddings.
    Labels are read for that alone. Of a dataset of several graphs (ppi) the training graphs alone
    are trained on; embeddings.npy holds the rows of all, the training graphs first, then those of
    validation and test.

    Until the run is complete its checkpoints lie in OUT.partial. Ctrl-C and SIGTERM save one more
    and exit with 130; --resume goes on to the same result.

    Examples:

        graphcl train cora

        graphcl train mine.npz --out runs/mine --set epochs=50 --set temperature=0.8

        graphcl train edges.csv --nodes nodes.parquet --label topic

        graphcl train mine.npz --processes 2 --checkpoint-every 10epochs --resume

        torchrun --nproc-per-node 8 -m graphcl train mine.npz

        graphcl train cora --log tensorboard

        graphcl train cora --method dgi --set patience=50
    """
    pace = every(checkpoint_every)
    try:
        graph.encode()  # `config.toml` will name it
    except UnicodeEncodeError:
        raise DatasetError(f"{graph!a}: a name that is not UTF-8; rename it") from None
    if method != "graphcl":
        ours = {"--recipe": recipe is not None, "--resume": resume, "--processes": processes > 1}
        ours["--log"] = log is not None
        check_baseline(method, graph, settings=parse_settings(settings), ours=ours)
    launch(processes)
    origin = {"graph": graph}
    loaded: Graph | GraphCollection
    if names_tables(graph, tables):
        loaded, report = load_tables(graph, tables)
        if first_process():
            print_notes(report)
        origin["tables"] = tables.record(report)
    else:
        loaded = load_graph(graph, tables)
    origin["fingerprint"] = graph_fingerprint(loaded)
    if method != "graphcl":
        train_baseline(
            method,
            loaded,
            source=graph,
            origin=origin,
            out=out,
            settings=parse_settings(settings),
            seed=seed,
            probe_steps=probe_steps,
            device=resolve_device(device),
            overwrite=overwrite,
            as_json=as_json,
        )
        return
    out = out if out is not None else Path("runs") / loaded.name
    # By the argument, not the graph's name: somebody's own cora.npz is not Cora.
    chosen = recipe or recipe_for(graph.lower())
    full = load_recipe(chosen).with_values(**parse_settings(settings))
    where = local_device(resolve_device(device))
    model = GraphCL(full, seed=seed, device=str(where), verbose=True, ignore_memory=ignore_memory)
    with ExitStack() as stack:
        share = stack.enter_context(group(where))
        resume = any_of(resume or restarted(), share)  # of several hosts only one may know
        taken = stack.enter_context(interrupts())
        result = None
        if resume and not overwrite:
            result = agree(lambda: completed(out, model, origin), share)
        if result is None:
            folder = agree(lambda: begin(stack, out, overwrite=overwrite, resume=resume), share)
            if share.first:
                print(f"{loaded!r}; recipe {chosen}; {device_name(where)}", file=sys.stderr)
                if loaded.self_loops_removed and "tables" not in origin:  # of those it was said
                    print(f"{loaded.self_loops_removed} self-loops removed", file=sys.stderr)
            reset_peak_memory(where)
            checkpoints = Checkpoints(folder, **pace, stop=taken)
            with saved(checkpoints, share):
                taken.patient = True
                with epoch_log(log if share.first else None, checkpoints.folder) as record:
                    model.fit(loaded, checkpoints=checkpoints, resume=resume, on_epoch=record)
                taken.patient = False
                z = embed_rows(model, loaded, scratch=_existing(out))
                if not share.first:
                    return
                score, why = _probe(z, loaded, probe_steps, where)
                result = _result(model, loaded, graph) | note(loaded)
                result |= {"probe": asdict(score) if score else None, "probe_skipped": why}
                with runs.new_run(out, overwrite=overwrite, within=checkpoints.folder) as staging:
                    model.write_to(staging, **origin)
                    np.save(staging / runs.EMBEDDINGS, z)
                    runs.write_json(staging / runs.RESULT, result)
                    write_nodes(staging, describe_nodes(loaded))
                    keep_log(log, checkpoints.folder, staging)
    if share.first and as_json:
        print_json(result)
    elif share.first:
        _print_result(result, out)


def _existing(path: Path) -> Path:
    """Returns the nearest folder above `path` that is there already."""
    return next(folder for folder in path.absolute().parents if folder.exists())


def _result(model: GraphCL, graph: Graph | GraphCollection, source: str) -> dict[str, Any]:
    """Returns what `result.json` says of the training."""
    last = model.history_[-1]
    where = torch.device(model.device)
    return {
        "status": "complete",
        "graph": graph_facts(graph, source),
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
        "versions": versions(),
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
