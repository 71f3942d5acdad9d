"""`graphcl predict`: labels and probabilities for nodes without a label."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    give_answer,
    is_labelled,
    nodes_folder,
    run_nodes,
)
from graphcl.cli.options import JsonOption, RunGraphOption
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphError, RunError, require
from graphcl.files.records import read_pairs, records
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.store.header import is_parts
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.prediction import KnownLabels, Predictions
    from graphcl.evaluation.calibration import PredictionError

LEARN = ("all", "train")
SHOWN = 10


@takes_tables
def predict(
    run: RunArgument,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A table of labels: .csv, .tsv or .parquet with the columns id and label. An id "
            "may have several rows. (default: the run's labels)"
        ),
    ] = None,
    learn: Annotated[
        str,
        typer.Option(help="all labels, or train: hide those of test nodes and score on them."),
    ] = "all",
    everything: Annotated[
        bool, typer.Option("--all", help="Also the labelled nodes, each as if it had no label.")
    ] = False,
    out: AnswerOption = None,
    overwrite: OverwriteOption = False,
    node_type: TypeOption = None,
    embeddings: EmbeddingsOption = None,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    seed: Annotated[int, typer.Option(help="Decides which nodes are held out together.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Predict labels of nodes without one, with probabilities, from the labelled nodes.

    Logistic regression on the run's embeddings. Labelled nodes are held out in turn: on them its
    penalties and the temperatures of its probabilities are weighed, and its error is measured. A
    probability of 0.8 should be right in 8 of 10 cases; the calibration error says how far from
    that it is. Nodes with several labels get one probability per label.

    The graph is needed only for a run without nodes.npz. Of a typed graph, the nodes are those of
    --type, or of the only type with labels. Embeddings in shards stay on disk: those of labelled
    nodes and one block of the others are held. Labels are --labels, or those of --graph PARTS.

    Examples:

        graphcl predict runs/mine --out topics.parquet

        graphcl predict runs/mine --labels ten_labels.csv --out topics.csv

        graphcl predict runs/cora --learn train --json

        graphcl predict runs/big --embeddings shards.parquet --labels some.csv --out topics.parquet
    """
    require(learn in LEARN, "predict", "--learn", " or ".join(LEARN), learn)
    check_out(out, overwrite=overwrite)
    folder = nodes_folder(run, node_type, is_labelled)
    again = ("predict", str(run))
    z, nodes = run_nodes(run, graph, tables, again=again, folder=folder, embeddings=embeddings)
    known = _known(run, nodes, labels)
    truth = known
    if learn == "train":
        if nodes.split_codes is None:
            raise RunError(f"{run}: has no split; --learn train needs train and test nodes")
        known = known.only(np.isin(nodes.split_codes, (1, 2)))
    elif known.known.all() and not everything:
        hint = "; --learn train hides those of test nodes" if nodes.split_codes is not None else ""
        raise RunError(f"{run}: all {len(z):,} nodes have a label; --all predicts them too{hint}")
    from graphcl.answers.prediction import predict_known

    found = predict_known(
        z, nodes.ids, known, nodes="all" if everything else "unlabelled", seed=seed
    )
    tested = found.score(truth) if learn == "train" else None
    give_answer(
        run,
        "predict",
        summary(found, tested),
        found.columns(),
        text=_text(found, tested),
        shown=_lines(found),
        out=out,
        as_json=as_json,
        folder=folder,
    )


def _known(run: Path, nodes: Nodes, file: Path | None) -> "KnownLabels":
    from graphcl.answers.prediction import known_labels

    if file is not None:
        pairs = read_pairs(file, ("id", "label"), RunError)
        if not pairs:
            raise RunError(f"{file}: holds no label")
        given: dict[str, list[str]] = {}
        for name, label in pairs:
            given.setdefault(name, []).append(label)
        several = any(len(set(some)) > 1 for some in given.values())
        try:
            return known_labels(
                {name: some if several else some[0] for name, some in given.items()}, nodes.ids
            )
        except GraphError as error:
            raise RunError(f"{file}: {error}") from None
    labels = nodes.y
    if labels is None:
        trained = runs.read_config(run, baselines=True).origin.graph
        parted = bool(trained) and is_parts(Path(trained))
        hint = f", or pass --graph {shlex.quote(trained)}" if parted else ""
        raise RunError(
            f"{run}: has no labels; give some with --labels FILE (columns: id and label){hint}"
        )
    return known_labels(labels.astype(np.int64), nodes.ids, nodes.class_names)


def summary(found: "Predictions", tested: "PredictionError | None") -> dict[str, Any]:
    """Returns the figures that are printed as JSON and kept for the report."""
    names = [str(name) for name in found.classes]
    return {
        "nodes": len(found),
        "classes": list(found.classes),
        "several": found.several,
        "labelled": dict(zip(names, found.labelled, strict=True)),
        "predicted": {str(name): count for name, count in found.counts().items()},
        "error": None if found.error is None else asdict(found.error),
        "test": None if tested is None else asdict(tested),
        "strength": found.strength,
        "temperature": found.temperature,
    }


def _text(found: "Predictions", tested: "PredictionError | None") -> str:
    classes = counted(found.known.shape[1], "class", "classes")
    learned = classes if not found.several else "several labels per node"
    lines = [f"{counted(len(found), 'node')} predicted; {learned}"]
    held_out = ("labelled node, held out", "labelled nodes, each held out")
    for error, what in ((found.error, held_out), (tested, ("test node", "test nodes"))):
        if error is not None:
            lines.append(error_line(asdict(error), what, several=found.several))
    if found.error is None:
        lines.append("no class has two labelled nodes: nothing says how often this is wrong")
    counts = ", ".join(f"{name} {count:,}" for name, count in _most(found.counts()))
    return "\n".join([*lines, f"predicted: {counts}"])


def _most(counts: dict[Any, int]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda pair: -pair[1])[:12]


def error_line(error: dict[str, Any], what: tuple[str, str], *, several: bool) -> str:
    """Returns one line on an error; `what` are the nodes: one of them, and several."""
    score = (
        f"accuracy {100 * error['accuracy']:.1f} ± {100 * error['standard_error']:.1f} % "
        f"(majority {100 * error['majority']:.1f} %)"
    )
    if several:
        score = f"micro-F1 {error['micro_f1']:.3f} (majority {error['majority']:.3f})"
    word = "measured" if error["how"] == "held-out nodes" else "expected"
    return (
        f"{word}: {score}  macro-F1 {error['macro_f1']:.3f}  calibration error "
        f"{error['calibration_error']:.3f}  ({counted(error['nodes'], *what)})"
    )


def _lines(found: "Predictions") -> list[str]:
    rows = records(found.columns(), slice(0, SHOWN))
    lines = ["id\tlabel" + ("" if found.several else "\tprobability")]
    for row in rows:
        label = ", ".join(map(str, row["label"])) if found.several else row["label"]
        certain = "" if found.several else f"\t{row['probability']:.3f}"
        lines.append(f"{row['id']}\t{label}{certain}")
    more = len(found) - len(rows)
    return [*lines, f"… and {more:,} more; --out writes all"] if more else lines
