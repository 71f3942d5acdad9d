"""`graphcl train`: from a graph to a run directory."""

import re
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcl.cli.options import (
    DeviceOption,
    JsonOption,
    SetOption,
    parse_settings,
    print_result,
    print_warnings,
)
from graphcl.cli.processes import ProcessesOption, interrupts, launch
from graphcl.cli.progress import ProbeStepsOption, count_progress, probe, scores_text
from graphcl.cli.table_options import print_notes, takes_tables
from graphcl.errors import DatasetError, ParameterError, counted, require
from graphcl.files.remote import named
from graphcl.runs.files import EMBEDDINGS, Origin
from graphcl.settings import PROBE_STEPS, TOPOLOGIES
from graphcl.store.header import is_parts
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
    from graphcl.estimator.partitioned import PartitionedGraph
    from graphcl.opening import AnyGraph
    from graphcl.runs.files import BaselineResult, TrainingResult

_METHOD, _RUN, _PARTS = "What is trained", "The run", "A store in parts"  # groups of options
CacheOption = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="BYTES",
        help="Memory of a process for rows of other parts that coming steps need most: 256MB, 1GB.",
        rich_help_panel=_PARTS,
    ),
]
TopologyOption = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="|".join(TOPOLOGIES),
        help="auto: map the edges of other parts where they can be read. asked: ask their owners.",
        rich_help_panel=_PARTS,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        max=10**7,
        help="How long a process waits for another before it ends. (default: 300 over parts, "
        "else 1800)",
    ),
]
PATIENCE = 300.0  # seconds
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@takes_tables
def train(
    graph: Annotated[
        str | None,
        typer.Argument(
            help="A dataset (cora, ppi, …), a store, an .npz, or a list of edges: a file "
            "(.csv, .tsv, .parquet, .graphml, …), FILE:TABLE, or an SQL query; not needed with "
            "--edges."
        ),
    ] = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    out: Annotated[
        Path | None,
        typer.Option(help="The run directory. (default: runs/NAME)", rich_help_panel=_RUN),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A recipe's name or a .toml. (default: the dataset's own, or default)",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="graphcl, or another system of the paper's tables: dgi, gcn, …",
            rich_help_panel=_METHOD,
        ),
    ] = "graphcl",
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[
        int, typer.Option(help="Decides weights, batches and views.", rich_help_panel=_METHOD)
    ] = 0,
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    device: DeviceOption = "auto",
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            help="tensorboard, csv (RUN/epochs.csv), mlflow, wandb; several with commas.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    ignore_memory: Annotated[
        bool,
        typer.Option("--ignore-memory", help="Start even where memory may not suffice."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace a run that is there.", rich_help_panel=_RUN)
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(help="Go on from the last checkpoint, if there is one.", rich_help_panel=_RUN),
    ] = False,
    checkpoint_every: Annotated[
        str,
        typer.Option(
            help="60s, 10epochs, or never: only when interrupted and at the end.",
            rich_help_panel=_RUN,
        ),
    ] = "60s",
    processes: ProcessesOption = 1,
    cache: CacheOption = "0",
    topology: TopologyOption = "auto",
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on a graph, or another system with --method, and write a run.

    On a labelled graph it ends with the probe's score: logistic regression on the embeddings.
    Labels are read for that alone. For a dataset with several graphs (ppi), only the training
    graphs are used for training; embeddings.npy contains all graphs: training, then validation,
    then test. If there are signs that the training failed, warnings on stderr say what to try.

    Until the run is complete, its checkpoints are kept in OUT.partial. Ctrl-C and SIGTERM save one
    more and exit with 130; --resume continues to the same result.

    On a store in parts, each of as many processes as parts opens its own part alone. The run has no
    embeddings then; graphcl embed writes them, a shard for each part.

    Examples:

        graphcl train cora

        graphcl train mine.npz --out runs/mine --set epochs=50 --set temperature=0.8

        graphcl train edges.csv --nodes nodes.parquet --label topic

        graphcl train --nodes author=authors.csv --nodes paper=papers.csv --edges writes=writes.csv

        graphcl train mine.npz --processes 2 --checkpoint-every 10epochs --resume

        torchrun --nproc-per-node 8 -m graphcl train mine.npz

        graphcl train PARTS --processes 4 --cache 256MB

        graphcl train cora --log tensorboard,csv

        graphcl train cora --method dgi --set patience=50
    """
    from graphcl.cli.graphs import FLATTENED, describe_store, graph_name
    from graphcl.opening import require_known
    from graphcl.recipes import load_recipe, recipe_for

    given, graph = graph, graph_name(graph, tables, "train")
    try:
        graph.encode()  # `config.toml` will name it
    except UnicodeEncodeError:
        raise DatasetError(f"{graph!a}: a name that is not UTF-8; rename it") from None
    changed = parse_settings(settings)
    if given is not None and not tables.given():
        require_known(graph)
    # By the argument, not the graph's name: somebody's own cora.npz is not Cora.
    chosen = recipe or recipe_for(graph.lower())
    values = None if method != "graphcl" else load_recipe(chosen).with_texts(**changed)
    # What is misspelt has been said by now: only what follows waits for torch.
    from graphcl.devices import device_name, resolve_device
    from graphcl.distributed import local_device
    from graphcl.estimator.model import GraphCL
    from graphcl.estimator.partitioned import PartitionedGraph
    from graphcl.training.checkpoints import Pace
    from graphcl.training.progress import parse_trackers
    from graphcl.training_run import train_run

    pace, trackers = Pace.parse(checkpoint_every), parse_trackers(log)
    if method != "graphcl":
        ours = {"--recipe": recipe is not None, "--resume": resume, "--processes": processes > 1}
        ours["--log"] = log is not None
        _check_baseline(method, graph, settings=changed, ours=ours)
    patience = None if timeout is None else timedelta(seconds=timeout)
    # Other systems train in one process, on the graph that was divided.
    data = None
    if method == "graphcl":
        data = _parts(graph, tables, cache, topology, patience)
    launch(processes)
    inductive = values is not None and values.inductive
    loaded: AnyGraph | PartitionedGraph
    if data is not None:
        parts, patience = data.store, data.patience
        # The fingerprint is that of the graph that was divided, whatever the order.
        loaded, origin = data, Origin(graph, parts.source.fingerprint, build=parts.build)
    else:
        loaded, origin = _load(graph, tables, inductive=inductive, whole=given is None)
    origin = replace(origin, graph=named(origin.graph), tables=named(origin.tables))
    where = resolve_device(device)
    if values is None and not isinstance(loaded, PartitionedGraph):
        from graphcl.research import train_baseline

        if not loaded.is_plain:
            print(f"{method}: {FLATTENED}", file=sys.stderr)
        out = out if out is not None else Path("runs") / f"{loaded.name}-{method}"
        with count_progress(method, "epoch") as show:
            baseline = train_baseline(
                method,
                loaded,
                out,
                origin=origin,
                settings=changed,
                seed=seed,
                probe_steps=probe_steps,
                device=where,
                overwrite=overwrite,
                on_epoch=show,
            )
        print_result(baseline.to_json(), _baseline_text(baseline, out), as_json=as_json)
        print_warnings(baseline.warnings)
        return
    where = local_device(where)
    # By name, not as a recipe: a training that was begun may have been with another `default`.
    model = GraphCL(
        chosen,
        seed=seed,
        device=str(where),
        verbose=True,
        ignore_memory=ignore_memory,
    )
    model.settings = {key: getattr(values, key) for key in changed}
    about = describe_store(loaded.store) if isinstance(loaded, PartitionedGraph) else repr(loaded)
    introduction = f"{about}; recipe {chosen}; {device_name(where)}"
    loops = 0 if isinstance(loaded, PartitionedGraph) else loaded.self_loops_removed
    if loops and not origin.tables:  # tables have reported them already
        introduction += f"\n{loops} self-loops removed"
    out = out if out is not None else Path("runs") / loaded.name
    with interrupts() as taken:
        result = train_run(
            model,
            loaded,
            out,
            origin=origin,
            probe=partial(probe, steps=probe_steps, device=where),
            pace=pace,
            overwrite=overwrite,
            resume=resume,
            interruption=taken,
            trackers=trackers,
            introduction=introduction,
            patience=patience,
        )
    if result is not None:
        print_result(result.to_json(), _text(result, out), as_json=as_json)
        print_warnings(result.warnings)


def _load(
    name: str, tables: TableOptions, *, inductive: bool, whole: bool
) -> "tuple[AnyGraph, Origin]":
    """Returns the graph, and what the run keeps of where it came from.

    Inductive training does not see other nodes than the training's, so neither may a preparation.
    `whole` says that all lists of edges are among the options.
    """
    from graphcl.cli.graphs import load_graph
    from graphcl.distributed import first_process
    from graphcl.runs.graph import graph_fingerprint, names_tables, read_tables

    if not names_tables(name, tables):
        loaded = load_graph(name, tables)
        return loaded, Origin(name, graph_fingerprint(loaded))
    graph, report = read_tables(None if whole else name, replace(tables, inductive=inductive))
    if first_process():
        print_notes(report)
    dated = replace(tables, until=report.until or None)  # the latest row's, if none is given
    return graph, Origin(name, graph_fingerprint(graph), dated.record())


def _text(result: "TrainingResult", out: Path) -> str:
    from graphcl.training.progress import traffic

    scores = [] if result.probe is None else [result.probe]
    scores += [] if result.probe is None else result.probe.get("others", {}).values()
    of = (f" of {one['type']}" if "type" in one else "" for one in scores)
    probe = "\n".join(f"probe{o}: {scores_text(one)}" for o, one in zip(of, scores, strict=True))
    note = f"\nnote: {result.note}" if result.note else ""
    sent = f"{traffic(**result.traffic)}\n" if result.traffic else ""
    return (
        f"{probe + note if probe else f'no probe: {result.probe_skipped}'}\n"
        f"{sent}"
        f"run: {out}  ({counted(result.epochs, 'epoch')} in {result.train_seconds:.1f} s, "
        f"peak memory {result.peak_memory_bytes / 2**30:.2f} GiB)"
    )


def parse_bytes(text: str) -> int:
    """Reads ``1000000``, ``256MB`` or ``1.5GiB``.

    Raises:
        ParameterError: it is none of these.
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-zA-Z]{0,3})", text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ParameterError(f"train: --cache must be like 256MB or 1GB; got {text!r}")
    return int(float(found[1]) * unit)


def _parts(
    graph: str, tables: TableOptions, cache: str, topology: str, patience: timedelta | None
) -> "PartitionedGraph | None":
    """Returns the graph in parts that a training is of; None if `graph` is something else.

    A store in one part is a store, and trained as one.

    Raises:
        ParameterError: what is given does not go together.
    """
    size = parse_bytes(cache)
    if not is_parts(Path(graph)):
        require(not size, "train", "--cache", "left out unless GRAPH is in parts", cache)
        known = topology == TOPOLOGIES[0]
        require(known, "train", "--topology", "left out unless GRAPH is in parts", topology)
        return None
    from graphcl.estimator.partitioned import PartitionedGraph

    require(not tables.given(), "train", "GRAPH", "tables if table options are given", graph)
    return PartitionedGraph(Path(graph), size, topology, patience or timedelta(seconds=PATIENCE))


def _check_baseline(
    name: str, source: str, *, settings: dict[str, str], ours: dict[str, bool]
) -> None:
    """Refuses, before any work, what a baseline does not know.

    Args:
        name: the baseline.
        source: the graph, as the command line names it.
        settings: the fields to change.
        ours: options that are GraphCL's alone, and whether each was given.
    """
    from graphcl.research import dataset_of, find_system

    find_system(name).method(dataset_of(source), **settings)
    for option, given in ours.items():
        if given:
            raise ParameterError(f"{option} is graphcl's alone; {name} does not take it")


def _baseline_text(result: "BaselineResult", out: Path) -> str:
    what = "probe" if (out / EMBEDDINGS).exists() else "predictions"
    scores = f"no {what} scored: {result.scores_skipped}"
    if result.scores:
        scores = f"{what}: {scores_text(result.scores)}"
    note = f"\nnote: {result.note}" if result.note else ""
    return f"{scores}{note}\nrun: {out}  ({result.train_seconds:.1f} s)"
