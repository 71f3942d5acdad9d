"""Is what `predict` says of itself so? Simulations on labels whose truth is known.

usage: python -m benchmarks.honesty intervals --out ROWS.jsonl [--draws 200]
       python -m benchmarks.honesty precision --out ROWS.jsonl [--draws 100]
       python -m benchmarks.honesty rivals --out ROWS.jsonl [--draws 100]
       python -m benchmarks.honesty calibration --out ROWS.jsonl [--draws 2]

`--only` names some of the numbers of labels, worlds or graphs, where all would take too long.

Each row sums up the draws of one setting. A draw has labelled nodes of two classes and others, on
which the truth is measured. `rivals` calls `graphcl.predict`; `intervals` and `precision` call the
probe and the measures that it is made of, on embeddings alone.

`intervals`: how often the printed intervals of the accuracy and of the ROC-AUC hold the true one,
for 12, 60 and 150 labels. Classes are as frequent among labels as among all nodes, or they are not,
and `shares` says so.

`precision`: how often `precision=` is kept, how often it is promised at all, and the mean
precision.

`rivals`: how often some rival is called better, how often that is so (`right`), and how far the
score of `using=` the rival with the highest score is from its true one (`bias`, with its standard
error). In the world `none` labels are drawn at random; in the others they depend on a step in one
column, or on one column and on the embedding.

`calibration`: the calibration error and the mean confidence on unlabelled nodes of real graphs with
20 labels a class, where predictions are smoothed over edges, and the same without the sharpening
that follows the smoothing (`exponent` 1). Embeddings are trained by the recipe `default`.
GRAPHCL_DATA names the folder of the graphs.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphcl
from benchmarks.rows import append, provenance
from graphcl.answers.answering import reweighted
from graphcl.answers.predicted import rank
from graphcl.errors import GraphError
from graphcl.evaluation.calibration import fit_calibrated
from graphcl.evaluation.prediction_error import measure
from graphcl.evaluation.probe import standardiser
from graphcl.graphs.graph import Graph

OTHERS, FEWER_OTHERS = 2000, 500  # unlabelled nodes
DIM = 8
APART = 2.4  # distance of the classes in the first column of the embedding, in deviations
RARE = 1 / 8
FREQUENCIES = {"balanced": 0.5, "7:1": RARE}
WORLDS = {"none": (60, 1.0), "step": (120, 0.3), "both": (120, 0.3)}  # labels, share of the draws


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=sorted(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--only", nargs="+", help="numbers of labels, worlds or graphs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    part, draws, settings = PARTS[options.what]
    began = time.perf_counter()
    chosen = [one for one in settings if options.only is None or str(one) in options.only]
    for row in part(options.draws or draws, chosen):
        seconds = round(time.perf_counter() - began, 1)
        about = {"what": options.what, "settings": {"others": OTHERS}, **row, "seconds": seconds}
        append(options.out, about | provenance(torch.device("cpu")))
        print(row, flush=True)
        began = time.perf_counter()


@dataclass(frozen=True, eq=False)
class Draw:
    """A draw of two classes, and what a probe says that was fitted to its labelled nodes.

    Attributes:
        held_out: probabilities of the labelled nodes, each held out.
        labelled: whether they are of class 1.
        folds: into how many parts they were divided.
        probability: of the unlabelled nodes.
        others: whether these are of class 1; half of them are.
    """

    held_out: np.ndarray
    labelled: np.ndarray
    folds: int
    probability: np.ndarray
    others: np.ndarray


def draw_two_classes(seed: int, labels: int, rare: float, *, random_counts: bool) -> Draw:
    """Returns a draw with so many labels.

    Args:
        seed: of the draw.
        labels: number of labelled nodes.
        rare: share of class 1 among them.
        random_counts: draw how many of them are of class 1, at least two; or take as many as
            `rare` says.
    """
    random = np.random.default_rng([labels, round(100 * rare), seed])
    count = random.binomial(labels, rare) if random_counts else round(labels * rare)
    count = int(np.clip(count, 2, labels - 2))
    y = np.concatenate([np.repeat([0, 1], [labels - count, count]), np.arange(OTHERS) % 2])
    z = random.normal(size=(len(y), DIM)).astype(np.float32)
    z[:, 0] += APART * y
    probe = fit_calibrated(
        {"embedding": z[:labels]},
        np.eye(2, dtype=np.int64)[y[:labels]],
        several=False,
        seed=seed,
        standard={"embedding": standardiser(z)},
    )
    assert probe.error is not None
    found = probe.probabilities({"embedding": z[labels:]}).astype(np.float64)
    return Draw(probe.held_out, y[:labels], probe.error.folds, found, y[labels:])


def intervals(draws: int, counts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields how often intervals hold the truth, for numbers of labels."""
    for labels in counts:
        for name, rare in FREQUENCIES.items():
            for with_shares in (False, True):
                random_counts = name != "balanced" and not with_shares
                population = rare
                if with_shares:  # the labelled nodes were not drawn at random
                    population = RARE if name == "balanced" else 0.5
                found = []
                for seed in range(draws):
                    draw = draw_two_classes(seed, labels, rare, random_counts=random_counts)
                    found.append(_one_interval(draw, population, with_shares))
                held, width, area_held, difference = np.array(found).T
                yield {
                    "labels": labels,
                    "classes": name,
                    "shares": with_shares,
                    "draws": draws,
                    "accuracy_held": round(float(held.mean()), 3),
                    "mean_width": round(float(width.mean()), 3),
                    "roc_auc_held": round(float(area_held.mean()), 3),
                    "accuracy_minus_truth": round(float(difference.mean()), 4),
                }


def _one_interval(
    draw: Draw, population: float, with_shares: bool
) -> tuple[bool, float, bool, float]:
    """Returns whether the interval holds the accuracy, its width, and the same of the ROC-AUC."""
    from sklearn.metrics import roc_auc_score

    held_out, found, weight = draw.held_out, draw.probability, None
    targets = np.eye(2, dtype=np.int64)[draw.labelled]
    if with_shares:
        factor = np.array([1 - population, population]) / targets.mean(axis=0)
        held_out, found = reweighted(held_out, factor), reweighted(found, factor)
        weight = factor[draw.labelled]
    error = measure(held_out, targets, False, nodes=len(targets), folds=draw.folds, weight=weight)
    right = found.argmax(axis=1) == draw.others
    each = [right[draw.others == place].mean() for place in (0, 1)]
    accuracy = (1 - population) * each[0] + population * each[1]
    area = roc_auc_score(draw.others, found[:, 1])
    low, high = error.accuracy_interval
    assert error.roc_auc_interval is not None
    area_low, area_high = error.roc_auc_interval
    holds = low <= accuracy <= high
    return holds, high - low, area_low <= area <= area_high, error.accuracy - accuracy


def precision(draws: int, counts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields how often a promised precision is kept, for numbers of labels."""
    for labels in counts:
        for name, rare in FREQUENCIES.items():
            all_draws = [
                draw_two_classes(seed, labels, rare, random_counts=True) for seed in range(draws)
            ]
            for wanted in (0.6, 0.8):
                found = [_one_precision(draw, rare, wanted) for draw in all_draws]
                said = np.array([one for one in found if one is not None])
                yield {
                    "labels": labels,
                    "classes": name,
                    "precision": wanted,
                    "draws": draws,
                    "promised": len(said),
                    "kept": int((said >= wanted).sum()),
                    "broken": int((said < wanted).sum()),
                    "mean_precision": round(float(said.mean()), 3) if len(said) else None,
                }


def _one_precision(draw: Draw, rare: float, wanted: float) -> float | None:
    """Returns the true precision above the threshold; None if none is promised."""
    try:
        ranking = rank(draw.held_out[:, 1], draw.labelled == 1, 1, precision=wanted)
    except GraphError:
        return None
    assert ranking is not None
    assert ranking.threshold is not None
    called = draw.probability[:, 1] >= ranking.threshold
    if not called.any():
        return None
    weight = np.where(draw.others == 1, rare, 1 - rare)
    return float(np.average(draw.others[called], weights=weight[called]))


def rivals(draws: int, worlds: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields how often a rival is called better, and whether it is."""
    for world in worlds:
        labels, share = WORLDS[world]
        count = max(2, round(draws * share))
        found = [_one_comparison(draw, labels, world) for draw in range(count)]
        said = [one["right"] for one in found if one["right"] is not None]
        bias = np.array([one["bias"] for one in found if one["bias"] is not None])
        highest = np.array([one["highest"] for one in found])
        yield {
            "world": world,
            "labels": labels,
            "draws": count,
            "said": len(said),
            "right": sum(said),
            "bias": round(float(bias.mean()), 4),
            "standard_error": round(float(bias.std(ddof=1) / len(bias) ** 0.5), 4),
            "bias_of_the_highest_score": round(float(highest.mean()), 4),
        }


def _one_comparison(draw: int, labels: int, world: str) -> dict[str, Any]:
    """Returns whether a rival is called better, whether it is, and how far scores are off."""
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng([labels, [*WORLDS].index(world), draw])
    nodes = labels + FEWER_OTHERS
    x, z = random.normal(size=(nodes, 6)), random.normal(size=(nodes, DIM))
    signal = {
        "none": np.zeros(nodes),
        "step": 3.0 * (np.abs(x[:, 0]) > 0.7),
        "both": x[:, 0] + z[:, 0],
    }[world]
    score = signal + random.normal(size=nodes)
    y = (score > np.median(score)).astype(int)
    graph = Graph.from_edge_index(np.zeros((2, 0), int), x.astype(np.float32))
    given = dict(enumerate(y[:labels].tolist()))
    how: dict[str, Any] = {"nodes": np.arange(labels, nodes), "wanted": 1, "seed": draw}
    z = z.astype(np.float32)

    def true_score(found: Any) -> float:
        return float(roc_auc_score(y[labels:], found.probabilities[:, 1]))

    ours = graphcl.predict(z, graph, given, **how)
    # The user's choice that misleads most: whichever rival has the highest score.
    best = max(ours.rivals[1:], key=lambda one: one.score)
    chosen = graphcl.predict(z, graph, given, **how, using=best.name, rivals=False)
    right = None
    if ours.better is not None:
        better = chosen
        if ours.better.name != best.name:
            better = graphcl.predict(z, graph, given, **how, using=ours.better.name, rivals=False)
        right = true_score(better) > true_score(ours)
    true, bias = true_score(chosen), None
    if chosen.error is not None and chosen.error.roc_auc is not None:
        bias = chosen.error.roc_auc - true
    return {"right": right, "bias": bias, "highest": best.score - true}


def calibration(draws: int, graphs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields how far probabilities are from the truth on real graphs."""
    import os

    from graphcl.datasets import graph_files, load_dataset, read_gallery_graph
    from graphcl.estimator.model import GraphCL

    files = graph_files(Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs")
    for name in graphs:
        graph = load_dataset("cora") if name == "cora" else read_gallery_graph(files[name])
        model = GraphCL("default", seed=0, device="cpu")
        z = model.fit_transform(graph)
        for draw in range(draws):
            row = calibration_row(z, graph, vars(model.recipe_), draw)
            yield {"graph": name, "seed": draw, "recipe": vars(model.recipe_), **row}


def calibration_row(z: np.ndarray, graph: Any, recipe: Any, draw: int) -> dict[str, Any]:
    """Returns measures on the unlabelled nodes, and on those with a labelled neighbour."""
    from graphcl.answers.evidence import embedding_parts
    from graphcl.answers.inputs import known_labels
    from graphcl.answers.learning import SMOOTHED, learn

    random = np.random.default_rng(draw)
    ids = np.arange(graph.num_nodes)
    truth = known_labels(graph.y, ids, kind="classes")
    chosen = np.zeros(len(ids), np.bool_)
    for column in truth.targets.T:
        chosen[random.permutation(np.flatnonzero(column * truth.known))[:20]] = True
    parts = embedding_parts(recipe, graph.num_features)
    known = truth.only(chosen)
    learned = learn(z, ids, known, graph=graph, parts=parts, seed=draw)
    tests = np.flatnonzero(truth.known & ~chosen)
    relation = graph.only_relation
    ends = np.repeat(ids, np.diff(relation.indptr))
    near = np.zeros(len(ids), np.bool_)
    near[ends[chosen[relation.indices]]] = True
    row: dict[str, Any] = {"smoothed": round(learned.weights[SMOOTHED], 3), "exponent": 1.0}
    if learned.smoothing is not None:
        row["exponent"] = round(learned.smoothing.exponent, 3)
        plain = replace(learned, smoothing=replace(learned.smoothing, exponent=1.0))
        row["not_sharpened"] = _calibration_of(plain, tests, truth.targets)
    row["all"] = _calibration_of(learned, tests, truth.targets)
    row["beside_labels"] = _calibration_of(learned, tests[near[tests]], truth.targets)
    return row


def _calibration_of(learned: Any, rows: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    probability = learned.of_rows(rows).astype(np.float64)
    error = measure(probability, targets[rows], False, nodes=len(rows))
    return {
        "nodes": len(rows),
        "accuracy": round(error.accuracy, 4),
        "confidence": round(float(probability.max(axis=1).mean()), 4),
        "calibration_error": round(error.calibration_error, 4),
        "log_loss": round(error.log_loss, 4),
    }


Part = Callable[[int, Sequence[Any]], Iterator[dict[str, Any]]]
PARTS: dict[str, tuple[Part, int, tuple[Any, ...]]] = {  # with their draws and settings
    "intervals": (intervals, 200, (12, 60, 150)),
    "precision": (precision, 100, (100, 300)),
    "rivals": (rivals, 100, tuple(WORLDS)),
    "calibration": (calibration, 2, ("cora", "cora_ml", "amazon_photo")),
}

if __name__ == "__main__":
    main()
