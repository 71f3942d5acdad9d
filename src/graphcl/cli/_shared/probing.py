"""The probe on the command line: its progress, and its scores as text."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer

from graphcl.cli._shared.progress import count_progress
from graphcl.evaluation import MultilabelResult, ProbeResult, linear_probe
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph

ProbeStepsOption = Annotated[
    int,
    typer.Option(min=1, help=f"Probe steps, used with several labels per node; {STEPS} converge."),
]


def probe(
    z: Any, graph: Graph | GraphCollection, *, steps: int, device: torch.device
) -> ProbeResult | MultilabelResult:
    """Returns the probe's result and shows its progress on stderr."""
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
    where = f"test {test:,} nodes, {probe['split']} split"
    if "strength" not in probe:  # the predictions of a supervised baseline
        first = (
            f"micro-F1 {probe['micro_f1']:.4f}"
            if "val_micro_f1" in probe
            else f"accuracy {100 * probe['accuracy']:.1f} %"
        )
        return f"{first}  macro-F1 {probe['macro_f1']:.3f}  ({where}; trained on {train:,} nodes)"
    chosen = f"chosen on {val:,} validation nodes, trained on {train:,}"
    if "steps" not in probe:
        return (
            f"accuracy {100 * probe['accuracy']:.1f} %  macro-F1 {probe['macro_f1']:.3f}  "
            f"({where}; C = {probe['strength']:.2g} {chosen})"
        )
    return (
        f"micro-F1 {probe['micro_f1']:.4f}  macro-F1 {probe['macro_f1']:.4f}  "
        f"({where}; penalty {probe['strength']:.2g}, one of {len(probe['strengths'])}, {chosen}; "
        f"{probe['steps']} steps of {probe['optimiser']})"
    )


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
    runs = f"{report['runs']} runs" if report["runs"] > 1 else "1 run"
    steps = f", {report['steps']} probe steps" if "steps" in report else ""
    steps += ", all identical: nothing is random" if report.get("runs_identical") else ""
    return f"{'  '.join(texts)}  ({runs}, test nodes, {report['split']} split{steps})"
