"""`graphcl predict`: labels and probabilities for nodes without a label."""

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
    first_rows,
    give_answer,
    has_node,
    open_run,
    say,
)
from graphcl.cli.options import JsonOption, RunGraphOption
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphError, ParameterError, RunError, require
from graphcl.files.records import aligned, read_pairs
from graphcl.run import Run
from graphcl.runs.nodes import is_labelled
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.answers.predicted import Estimates, Predictions

_EVALUATION = "How far to trust it"  # a group of options
SHOWN = 10
TWO, HOW = "Of two classes", "How it is learned and said"  # panels of the help
RIVAL_COLUMNS = ("accuracy", "macro_f1", "log_loss", "mae", "rmse")
HELD_OUT = ("labelled node, held out", "labelled nodes, each held out")
TEST = ("test node", "test nodes")


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
    wanted: Annotated[
        str | None,
        typer.Option(
            help="Of two classes: the one to look for, which comes first. (the rarer)",
            rich_help_panel=TWO,
        ),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            help="Of two classes: call wanted whom is right so often, as in 0.8.",
            rich_help_panel=TWO,
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            metavar="ALARM:MISS",
            help="Of two classes: what a false alarm costs, and a wanted node that is missed: 1:5.",
            rich_help_panel=TWO,
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS=SHARE,…",
            help="How frequent classes are among all nodes, if labelled nodes are others.",
            rich_help_panel=HOW,
        ),
    ] = None,
    using: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="RIVAL",
            help="Predict by a plain rival of the table.",
            rich_help_panel=HOW,
        ),
    ] = None,
    rivals: Annotated[
        bool,
        typer.Option(
            help="Measure plain models on the same columns, beside it.", rich_help_panel=HOW
        ),
    ] = True,
    why: Annotated[
        bool,
        typer.Option(
            help="Give reasons: what an answer rests on, columns, similar nodes.",
            rich_help_panel=HOW,
        ),
    ] = True,
    label_kind: Annotated[
        str,
        typer.Option(
            help="What labels are: classes, a number, or auto, which looks at them.",
            rich_help_panel=HOW,
        ),
    ] = "auto",
    level: Annotated[
        float,
        typer.Option(
            help="Of a number: how often it is to be within its interval.", rich_help_panel=HOW
        ),
    ] = 0.9,
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

    It weighs the embedding, own columns and those of neighbours by labelled nodes that are held
    out in turn, and smooths over edges where that helps. On them its error is measured, and that
    of plain models beside it. A probability of 0.8 should be right in 8 of 10 cases; the
    calibration error says how far from that it is. Two classes are a ranking, whose first nodes
    are most probably wanted. A number is predicted with an interval.

    Without its graph, a run has its embeddings alone. Of a typed graph, the nodes are those of
    --type, or of the only type with labels. Embeddings in shards stay on disk: those of labelled
    nodes and one block of the others are held. Labels are --labels, or those of --graph PARTS.

    Examples:

        graphcl predict runs/mine --out topics.parquet

        graphcl predict runs/mine --labels ten_labels.csv --out topics.csv

        graphcl predict runs/mine --wanted bad --precision 0.8 --out calls.csv

        graphcl predict runs/cora --learn train --json

        graphcl predict runs/mine --evaluate --after 2026-03-31

        graphcl predict runs/big --embeddings shards.parquet --labels some.csv --out topics.parquet
    """
    both = evaluate == (after is not None)
    require(both, "predict", "--evaluate and --after", "given together", after)
    given = (labels, everything, graph, embeddings, wanted, precision, cost, shares, using)
    alone = after is None or not (any(given) or tables.given())
    require(alone, "predict", "--after", "given with --type and --seed alone", after)
    check_out(out, overwrite=overwrite)
    asked = open_run(run, ("predict",), graph, tables, embeddings=embeddings)
    folder = asked.type_folder(node_type, is_labelled)
    how: dict[str, Any] = {"node_type": asked.type_of(folder), "seed": seed}
    found: Predictions | Estimates
    if after is not None:
        found = asked.predict_later(after, verbose=True, **how)
    else:
        how |= {"wanted": wanted, "precision": precision, "cost": _costs(cost), "why": why}
        how |= {"shares": _shares(shares), "using": using, "rivals": rivals}
        how |= {"label_kind": label_kind, "level": level}
        how |= {"nodes": "all" if everything else "unlabelled", "learn": learn}
        how["on_note"] = say("predict")
        found = _predicted(asked, labels, **how)
    ranking, columns = getattr(found, "ranking", None), found.columns()
    shown = "probability" if ranking is None else f"p:{ranking.wanted}"
    give_answer(
        asked,
        "predict",
        summary(found),
        columns,
        text=_text(found),
        shown=first_rows(columns, ("id", "label", shown, "value", "low", "high", "why"), SHOWN),
        out=out,
        as_json=as_json,
        keep=after is None,
        folder=folder,
    )


def _predicted(run: Run, file: Path | None, **how: Any) -> "Predictions | Estimates":
    """Returns what the run predicts from its labels, or from those in a file."""
    if file is None:
        return run.predict(**how)
    from graphcl.graphs.validation import spelled_alike

    given: dict[str, list[str]] = {}
    for name, label in read_pairs(file, ("id", "label"), RunError, has_node(run)):
        given.setdefault(name, []).append(label)
    alike = spelled_alike(label for some in given.values() for label in some)
    if alike:
        say("predict")(f"classes that differ in case or spaces alone: {', '.join(alike)}")
    if not given:
        raise RunError(f"{file}: holds no label")
    several = any(len(set(some)) > 1 for some in given.values())
    labels: Any = {name: some if several else some[0] for name, some in given.items()}
    if not several and how["label_kind"] != "classes":
        labels = _numbers(labels, how["label_kind"])
    try:
        return run.predict(labels, **how)
    except GraphError as error:
        raise RunError(f"{file}: {error}") from None


def _numbers(labels: dict[str, str], kind: str) -> dict[str, Any]:
    """Returns labels as numbers, if they are a number to predict."""
    from graphcl.graphs.validation import is_number

    try:
        numbers = {name: float(text) for name, text in labels.items()}
    except ValueError:
        return dict(labels)
    values = np.array(list(numbers.values()))
    return dict(numbers if kind == "number" or is_number(values) else labels)


def _costs(text: str | None) -> list[float] | None:
    """Returns the two costs of ``1:5``."""
    alarm, _, miss = (text or "").partition(":")
    return _floats(text, [alarm, miss], "--cost: must be two numbers, as in 1:5")


def _shares(text: str | None) -> dict[str, float] | None:
    """Returns the shares of ``good=0.95,bad=0.05``."""
    pairs = [one.rpartition("=") for one in (text or "").split(",")]
    form = "--shares: must be CLASS=SHARE,CLASS=SHARE, as in good=0.95,bad=0.05"
    shares = _floats(text, [share for _, _, share in pairs], form)
    names = (name.strip() for name, _, _ in pairs)
    return None if shares is None else dict(zip(names, shares, strict=True))


def _floats(text: str | None, parts: list[str], form: str) -> list[float] | None:
    """Returns the numbers in the text of an option; None if it was not given."""
    try:
        return None if text is None else [float(one) for one in parts]
    except ValueError:
        raise ParameterError(f"{form}; got {text}") from None


def summary(found: "Predictions | Estimates") -> dict[str, Any]:
    """Returns the figures that are printed as JSON and kept for the report."""
    from graphcl.answers.predicted import Estimates

    rivals = [{"name": one.name, "score": one.score, **asdict(one.error)} for one in found.rivals]
    about: dict[str, Any] = {
        "nodes": len(found),
        "error": None if found.error is None else asdict(found.error),
        "test": None if found.test is None else asdict(found.test),
        "evidence": found.evidence,
        "rivals": [{key: one[key] for key in one if key != "by_class"} for one in rivals],
    }
    if isinstance(found, Estimates):
        return about
    names = [str(name) for name in found.classes]
    return about | {
        "classes": list(found.classes),
        "several": found.several,
        "labelled": dict(zip(names, found.labelled, strict=True)),
        "predicted": {str(name): count for name, count in found.counts().items()},
        "ranking": None if found.ranking is None else asdict(found.ranking),
        "strength": found.strength,
        "temperature": found.temperature,
    }


def _text(found: "Predictions | Estimates") -> str:
    from graphcl.answers.predicted import Estimates

    if isinstance(found, Estimates):
        lines = [f"{counted(len(found), 'number')} predicted"]
        for number, what in ((found.error, HELD_OUT), (found.test, TEST)):
            if number is not None:
                lines.append(_number_line(asdict(number), what))
        return "\n".join([*lines, *_beside(found)])
    classes = counted(found.known.shape[1], "class", "classes")
    learned = classes if not found.several else "several labels per node"
    lines = [f"{counted(len(found), 'node')} predicted; {learned}"]
    tested = TEST
    if found.test is not None and "later" in found.test.how:
        tested = ("label that came later", "labels that came later")
    for error, what in ((found.error, HELD_OUT), (found.test, tested)):
        if error is not None:
            lines.append(error_line(asdict(error), what, several=found.several))
    if found.error is None:
        lines.append("no class has two labelled nodes: nothing says how often this is wrong")
    most = sorted(found.counts().items(), key=lambda pair: -pair[1])[:12]
    counts = ", ".join(f"{name} {count:,}" for name, count in most)
    lines += [f"predicted: {counts}", *_beside(found)]
    return "\n".join([*lines, *([] if found.ranking is None else ranking_lines(found.ranking))])


def _beside(found: "Predictions | Estimates") -> list[str]:
    """Returns what the answers rest on, and the plain rivals in a table."""
    most = sorted(found.evidence.items(), key=lambda pair: -pair[1])
    rests = ", ".join(f"{name} {100 * one:.0f} %" for name, one in most if one >= 0.05)
    lines = [f"rests on: {rests}"]
    if not found.rivals:
        return lines
    error = found.rivals[0].error
    word = error.headline[0]
    others = [name for name in RIVAL_COLUMNS if hasattr(error, name) and name != word]
    rows = [["on held-out nodes", word, *(name.replace("_", " ") for name in others)]]
    for one in found.rivals:
        own = [f"{getattr(one.error, name):.4g}" for name in others]
        rows.append([one.name, f"{one.score:.3f}", *own])
    lines += aligned(rows)
    better = found.better
    if better is not None:
        lines.append(f"{better.name} is better here; it predicts with: --with '{better.name}'")
    return lines


def ranking_lines(ranking: Any) -> list[str]:
    """Returns what a ranking is worth."""
    share = f"{100 * ranking.share:.1f} % of the labelled nodes"
    lines = [
        f"looked for: {ranking.wanted} ({share}); average precision {ranking.average_precision:.3f}"
    ]
    tops = [
        f"{100 * one.share:.0f} %: {100 * one.precision:.0f} % right (lift {one.lift:.1f})"
        for one in ranking.top
    ]
    lines += [f"of the first {', '.join(tops)}"] if tops else []
    if ranking.threshold is not None:
        lines.append(
            f"called {ranking.wanted} from a probability of {ranking.threshold:.3f}: "
            f"{100 * ranking.precision:.0f} % right, {100 * ranking.found:.0f} % of them found"
        )
    return lines


def _number_line(error: dict[str, Any], what: tuple[str, str]) -> str:
    word = "measured" if error["how"] == "held-out nodes" else "expected"
    inside = ""
    if error["coverage"] is not None:
        wanted = f"{100 * error['level']:.0f} %"
        inside = f"  within the interval {100 * error['coverage']:.0f} % of {wanted}"
    return (
        f"{word}: R² {error['r2']:.3f}  mean error {error['mae']:.4g} (median for all "
        f"{error['baseline_mae']:.4g}){inside}  ({counted(error['nodes'], *what)})"
    )


def error_line(error: dict[str, Any], what: tuple[str, str], *, several: bool) -> str:
    """Returns one line on an error; `what` are the nodes: one of them, and several."""
    score = (
        f"accuracy {100 * error['accuracy']:.1f} ± {100 * error['standard_error']:.1f} % "
        f"(majority {100 * error['majority']:.1f} %)"
    )
    if several:
        score = f"micro-F1 {error['micro_f1']:.3f} (majority {error['majority']:.3f})"
    if error.get("roc_auc") is not None:
        score = f"ROC-AUC {error['roc_auc']:.3f}  {score}"
    word = "measured" if error["how"] == "held-out nodes" else "expected"
    return (
        f"{word}: {score}  macro-F1 {error['macro_f1']:.3f}  calibration error "
        f"{error['calibration_error']:.3f}  ({counted(error['nodes'], *what)})"
    )
