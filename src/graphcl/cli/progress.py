"""Progress on stderr, a bar on a terminal and plain lines elsewhere; the probe, and its scores."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.errors import counted, duration
from graphcl.settings import LINE_EVERY_SECONDS, PROBE_STEPS

if TYPE_CHECKING:
    from graphcl.evaluation.logistic import MultilabelResult
    from graphcl.evaluation.probe import ProbeResult
    from graphcl.graphs.collection import Labelled
    from graphcl.research import Progress as RunProgress

BAR_EVERY_SECONDS = 0.2
ProbeStepsOption = Annotated[
    int,
    typer.Option(
        min=1, help=f"Probe steps, used with several labels per node; {PROBE_STEPS} converge."
    ),
]


@contextmanager
def count_progress(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback for ``(done, total)``, which may serve several counts one after another.

    Nothing is shown if all is done before the first line is due.

    Args:
        label: the work being done: ``probe``.
        unit: what is counted, in the singular: ``step``.
    """
    began = last = 0.0
    with _shown(label, unit) as (show, every):

        def count(done: int, total: int) -> None:
            nonlocal began, last
            now = time.perf_counter()
            if done == 1:  # a new count begins
                began = last = now
            if now - last < every:
                return
            last, rate = now, (done - 1) / (now - began)
            show(done, total, f"{rate:.2f} {unit}s/s  ETA {duration((total - done) / rate)}")

        yield count


@contextmanager
def run_progress(label: str) -> "Iterator[Callable[[RunProgress], None]]":
    """Yields an `on_progress` callback for `graphcl.research.rows.execute`.

    It shows the first and the last run, and some in between.
    """
    with _shown(label, "run") as (show, every):
        last = -every

        def shown(run: "RunProgress") -> None:
            nonlocal last
            if run.done == run.total or run.elapsed - last >= every:
                last = run.elapsed
                show(run.done, run.total, _status(run))

        yield shown


@contextmanager
def _shown(label: str, unit: str) -> Iterator[tuple[Callable[[int, int, str], None], float]]:
    """Yields what shows how many of how many are done with a text, and the seconds in between."""
    if not sys.stderr.isatty():

        def line(done: int, total: int, text: str) -> None:
            print(f"{label}: {unit} {done}/{total}  {text}", file=sys.stderr, flush=True)

        yield line, LINE_EVERY_SECONDS
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
    status = TextColumn("{task.fields[status]}")
    with Progress(*columns, status, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False, status="")
        yield (
            lambda done, total, text: bar.update(
                task, completed=done, total=total, status=text, visible=True
            ),
            BAR_EVERY_SECONDS,
        )


def _status(run: "RunProgress") -> str:
    failed = f"  {run.failed} failed" if run.failed else ""
    rate = f"{60 * run.done / run.elapsed:.1f} runs/min"
    return f"{run.label}{failed}  {rate}  ETA {duration(run.remaining)}"


def probe(
    z: Any, graph: "Labelled", *, steps: int, device: Any
) -> "ProbeResult | MultilabelResult":
    """Returns the probe's result and shows its progress on stderr."""
    from graphcl.evaluation.probe import linear_probe

    with probe_progress(steps) as show:
        return linear_probe(z, graph, steps=steps, device=str(device), on_step=show)


@contextmanager
def probe_progress(steps: int) -> Iterator[Callable[[int], None]]:
    """Yields an `on_step` callback, which may serve several probes one after another."""
    with count_progress("probe", "step") as show:
        yield lambda step: show(step, steps)


def scores_text(scores: Mapping[str, Any]) -> str:
    """Returns one line: the scores of a probe or of predictions, their nodes, and how it was done.

    A score of several runs is its mean ± standard deviation. Accuracies are in %, F1 is a fraction,
    as in the paper.
    """
    several = "val_micro_f1" in scores
    unit, factor, digits = ("", 1, 4) if several else (" %", 100, 1)

    def shown(name: str, digits: int, factor: int = 1) -> str:
        values = scores[name].values() if isinstance(scores[name], dict) else (scores[name],)
        return " ± ".join(f"{factor * value:.{digits}f}" for value in values)

    name = ("micro-F1", "micro_f1") if several else ("accuracy", "accuracy")
    text = f"{name[0]} {shown(name[1], digits, factor)}{unit}"
    if scores.get("majority") is not None:
        text += f" (majority {shown('majority', digits, factor)}{unit})"
    if scores.get("roc_auc") is not None:
        text += f"  ROC-AUC {shown('roc_auc', 3)}"
    train, val, test = scores["nodes"]
    how = [counted(scores["runs"], "run")] if scores.get("runs", 1) > 1 else []
    if scores.get("folds"):
        nodes = counted(test, "labelled node")
        how.append(f"{nodes}, each held out in one of {scores['folds']} folds")
    else:
        splits = f"{scores['splits']} {scores['split']} splits" if "splits" in scores else ""
        how.append(f"test {counted(test, 'node')}, {splits or scores['split'] + ' split'}")
        trained = f"trained on {counted(train, 'node')}"
        if "strength" in scores:  # of a probe
            sign, of = "C =", ""
            if "steps" in scores:
                sign, of = "penalty", f", one of {len(scores['strengths'])},"
            chosen = f"{sign} {scores['strength']:.2g}{of} chosen on"
            trained = f"{chosen} {counted(val, 'validation node')}, trained on {train:,}"
        how.append(trained)
        how += [f"{scores['steps']} steps of {scores['optimiser']}"] if "steps" in scores else []
    how += ["all identical: nothing is random"] if scores.get("runs_identical") else []
    return f"{text}  macro-F1 {shown('macro_f1', 4 if several else 3)}  ({'; '.join(how)})"
