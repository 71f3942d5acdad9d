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


def probe_text(probe: Mapping[str, Any]) -> str:
    """Returns one line: the scores of a probe, its nodes, and how it was fitted."""
    train, val, test = probe["nodes"]
    where = f"test {counted(test, 'node')}, {probe['split']} split"
    micro, macro = f"micro-F1 {probe['micro_f1']:.4f}", f"macro-F1 {probe['macro_f1']:.3f}"
    first = micro if "val_micro_f1" in probe else f"accuracy {100 * probe['accuracy']:.1f} %"
    first += _majority_text(probe, " (majority ", ")")
    if probe.get("folds"):
        each = f"{counted(test, 'labelled node')}, each held out in one of {probe['folds']} folds"
        return f"{first}{_area_text(probe)}  {macro}  ({each})"
    if "strength" not in probe:  # the predictions of a supervised baseline
        return f"{first}  {macro}  ({where}; trained on {counted(train, 'node')})"
    chosen = f"chosen on {counted(val, 'validation node')}, trained on {train:,}"
    if "steps" not in probe:
        return f"{first}  {macro}  ({where}; C = {probe['strength']:.2g} {chosen})"
    return (
        f"{first}  macro-F1 {probe['macro_f1']:.4f}  "
        f"({where}; penalty {probe['strength']:.2g}, one of {len(probe['strengths'])}, {chosen}; "
        f"{probe['steps']} steps of {probe['optimiser']})"
    )


def _area_text(scores: Mapping[str, Any]) -> str:
    area = scores.get("roc_auc")
    return "" if area is None else f"  ROC-AUC {area:.3f}"


def _majority_text(scores: Mapping[str, Any], before: str, after: str = "") -> str:
    """Returns the score of one answer for all nodes; empty if it is not known."""
    share = scores.get("majority")
    if share is None:
        return ""
    text = f"{share:.4f}" if "val_micro_f1" in scores else f"{100 * share:.1f} %"
    return f"{before}{text}{after}"


def report_text(report: dict[str, Any]) -> str:
    """Returns one line: the scores of one run, or mean ± standard deviation of several."""
    multilabel = "val_micro_f1" in report  # the paper reports F1 as a fraction, not in %
    unit, factor, digits = ("", 1, 4) if multilabel else (" %", 100, 2)
    first = ("micro_f1", "micro-F1") if multilabel else ("accuracy", "accuracy")
    texts = []
    for name, label in (first, ("macro_f1", "macro-F1")):
        score = report[name]
        shown = (score["mean"], score["std"]) if isinstance(score, dict) else (score,)
        numbers = " ± ".join(f"{factor * value:.{digits}f}" for value in shown)
        texts.append(f"{label}: {numbers}{unit}")
    runs = counted(report["runs"], "run")
    steps = f", {report['steps']} probe steps" if "steps" in report else ""
    steps += ", all identical: nothing is random" if report.get("runs_identical") else ""
    splits = f"{report['splits']} {report['split']} splits" if "splits" in report else ""
    where = splits or f"{report['split']} split"
    texts += [_majority_text(report, "majority: ")] if "majority" in report else []
    tested = "test nodes"
    if report.get("folds"):
        where = f"each held out in one of {report['folds']} folds"
        tested = counted(report["nodes"][2], "labelled node")
    return f"{'  '.join(texts)}  ({runs}, {tested}, {where}{steps})"
