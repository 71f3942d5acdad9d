"""`graphcl predict`: labels and probabilities for nodes without a label."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    AnswerOption,
    EmbeddingsOption,
    OverwriteOption,
    RunArgument,
    TypeOption,
    check_out,
    give_answer,
    open_run,
)
from graphcl.cli.options import JsonOption, RunGraphOption
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphError, RunError, require
from graphcl.files.records import read_pairs, records
from graphcl.run import Run
from graphcl.runs.nodes import is_labelled
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.prediction import Predictions

_EVALUATION = "How far to trust it"  # a group of options
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
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="With --after: score labels that came later.",
            rich_help_panel=_EVALUATION,
        ),
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Train, embed and learn as of this day, and predict the labels that came later.",
            rich_help_panel=_EVALUATION,
        ),
    ] = None,
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

        graphcl predict runs/mine --evaluate --after 2026-03-31

        graphcl predict runs/big --embeddings shards.parquet --labels some.csv --out topics.parquet
    """
    both = evaluate == (after is not None)
    require(both, "predict", "--evaluate and --after", "given together", after)
    alone = after is None or not (labels or everything or graph or tables.given() or embeddings)
    require(alone, "predict", "--after", "given with --type and --seed alone", after)
    check_out(out, overwrite=overwrite)
    asked = open_run(run, ("predict",), graph, tables, embeddings=embeddings)
    folder = asked.type_folder(node_type, is_labelled)
    how: dict[str, Any] = {"node_type": asked.type_of(folder), "seed": seed}
    if after is not None:
        found = asked.predict_later(after, verbose=True, **how)
    else:
        how |= {"nodes": "all" if everything else "unlabelled", "learn": learn}
        how["on_note"] = lambda text: print(f"predict: {text}", file=sys.stderr)
        found = _predicted(asked, labels, **how)
    give_answer(
        asked,
        "predict",
        summary(found),
        found.columns(),
        text=_text(found),
        shown=_lines(found),
        out=out,
        as_json=as_json,
        keep=after is None,
        folder=folder,
    )


def _predicted(run: Run, file: Path | None, **how: Any) -> "Predictions":
    """Returns what the run predicts from its labels, or from those in a file."""
    if file is None:
        return run.predict(**how)
    given: dict[str, list[str]] = {}
    for name, label in read_pairs(file, ("id", "label"), RunError):
        given.setdefault(name, []).append(label)
    if not given:
        raise RunError(f"{file}: holds no label")
    several = any(len(set(some)) > 1 for some in given.values())
    labels = {name: some if several else some[0] for name, some in given.items()}
    try:
        return run.predict(labels, **how)
    except GraphError as error:
        raise RunError(f"{file}: {error}") from None


def summary(found: "Predictions") -> dict[str, Any]:
    """Returns the figures that are printed as JSON and kept for the report."""
    names = [str(name) for name in found.classes]
    return {
        "nodes": len(found),
        "classes": list(found.classes),
        "several": found.several,
        "labelled": dict(zip(names, found.labelled, strict=True)),
        "predicted": {str(name): count for name, count in found.counts().items()},
        "error": None if found.error is None else asdict(found.error),
        "test": None if found.test is None else asdict(found.test),
        "evidence": {name: round(share, 4) for name, share in found.evidence.items()},
        "strength": found.strength,
        "temperature": found.temperature,
    }


def _text(found: "Predictions") -> str:
    classes = counted(found.known.shape[1], "class", "classes")
    learned = classes if not found.several else "several labels per node"
    lines = [f"{counted(len(found), 'node')} predicted; {learned}"]
    held_out = ("labelled node, held out", "labelled nodes, each held out")
    tested = ("test node", "test nodes")
    if found.test is not None and "later" in found.test.how:
        tested = ("label that came later", "labels that came later")
    for error, what in ((found.error, held_out), (found.test, tested)):
        if error is not None:
            lines.append(error_line(asdict(error), what, several=found.several))
    if found.error is None:
        lines.append("no class has two labelled nodes: nothing says how often this is wrong")
    rests = sorted(found.evidence.items(), key=lambda pair: -pair[1])
    named = ", ".join(f"{name} {share:.0%}" for name, share in rests if share >= 0.01)
    lines += [f"rests on: {named}"] if named else []
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
