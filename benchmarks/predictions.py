"""What `predict` is worth beside plain models, with few labels and with published splits.

usage: python -m benchmarks.predictions run FOLDER --out ROWS.jsonl [--seeds 0 1 2] [--device cuda]
       [--workers 14] [--graphs nba cora_ml ...] [--labels 5 20 100 split]
       python -m benchmarks.predictions show ROWS.jsonl

FOLDER holds graphs as `graphs/` in the folder GRAPHCL_DATA does. For every graph and seed, an
encoder is trained by the recipe `default`. Then 5, 20 and 100 nodes of each class keep their label,
at most half of a class, in one to four draws; a graph that has published splits also keeps those
of train and validation nodes, in up to three splits for each seed, other ones for other seeds. One
row for each of these and each system, measured on all other labelled nodes (of a split, its test
nodes):

- graphcl: `graphcl.predict`.
- logistic regression, boosted trees, boosted trees with neighbours: its plain rivals, which
  scikit-learn fits; see `graphcl.answers.rivals`. They are left out beyond 20 labels per node.
- own columns: our probe on the node's own columns, as they are and scaled.
- propagation: our probe on the columns two hops away.

``score`` is the accuracy; of two classes the ROC-AUC, and of several labels per node the mean
ROC-AUC of the labels. ``ece`` is the calibration error. `show` prints a table of mean scores over
seeds, and how far `graphcl` is from the best of the rivals.

Trainings share the device, four at a time. Predictions are made by processes of one thread each.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append, provenance, read

LABELS = (5, 20, 100)  # per class
SPLIT = "split"
DRAWS = {5: 4, 20: 2, SPLIT: 3}  # for each seed: the fewer labels, the more it matters which
LARGE = 10_000  # nodes; of such a graph, one draw
PLAIN = ("logistic regression", "boosted trees", "boosted trees with neighbours")
OTHERS = ("own columns", "propagation")
TRAININGS = 4  # beside each other


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--labels", nargs="+", default=[*LABELS, SPLIT], type=_read_labels)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.what == "show":
        print(table(read(options.path)))
    else:
        run(options)


def _read_labels(text: str) -> int | str:
    return text if text == SPLIT else int(text)


def run(options: argparse.Namespace) -> None:
    """Trains and predicts; appends rows as they are made."""
    from graphcl.datasets import graph_files
    from graphcl.devices import resolve_device

    files = graph_files(options.path)
    names = options.graphs or sorted(files, key=lambda name: -files[name].stat().st_size)
    about = provenance(resolve_device(options.device))
    with tempfile.TemporaryDirectory() as place:
        folder, jobs = Path(place), []
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=context) as pool:
            for seed in options.seeds:
                for name in names:
                    for labels in options.labels:
                        for draw in range(DRAWS.get(labels, 1)):
                            one = (files[name], seed, labels, draw, folder / f"{name}-{seed}.npy")
                            jobs.append(pool.submit(predict, one))
            todo = [(name, seed) for seed in options.seeds for name in names]
            lock = threading.Lock()

            def work() -> None:
                while True:
                    with lock:
                        if not todo:
                            return
                        name, seed = todo.pop(0)
                    train(files[name], seed, folder / f"{name}-{seed}.npy", options.device)

            threads = [threading.Thread(target=work) for _ in range(TRAININGS)]
            for one in threads:
                one.start()
            for done in concurrent.futures.as_completed(jobs):
                for row in done.result():
                    append(options.out, {**row, **about})
            for one in threads:
                one.join()


def train(path: Path, seed: int, out: Path, device: str) -> None:
    """Writes the embeddings of a graph, and the recipe beside them."""
    from graphcl.datasets import read_gallery_graph
    from graphcl.estimator.model import GraphCL

    warnings.simplefilter("ignore")
    try:
        model = GraphCL("default", seed=seed, device=device)
        z = model.fit_transform(read_gallery_graph(path))
        out.with_suffix(".json").write_text(json.dumps(vars(model.recipe_), default=str))
        draft = out.with_suffix(".draft.npy")
        np.save(draft, np.asarray(z, np.float32))
        draft.rename(out)
        print("trained", path.stem, seed, flush=True)
    except Exception as error:  # a failed training is a row, too
        out.with_suffix(".failed").write_text(_said(error))


def predict(job: tuple[Path, int, Any, int, Path]) -> list[dict[str, Any]]:
    """Returns the rows of one graph, seed and number of labels."""
    import torch

    path, seed, labels, draw, embeddings = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about = {"graph": path.stem, "seed": seed, "labels": labels, "draw": draw}
    while not embeddings.exists():
        failed = embeddings.with_suffix(".failed")
        if failed.exists():
            return [{**about, "system": "graphcl", "failed": failed.read_text()}]
        time.sleep(0.5)
    try:
        recipe = json.loads(embeddings.with_suffix(".json").read_text())
        found = _rows(path, 10 * seed + draw, labels, np.load(embeddings), recipe)
        return [{**about, **row} for row in found]
    except Exception as error:
        return [{**about, "system": "graphcl", "failed": _said(error)}]


def _said(error: Exception) -> str:
    """Returns the first line of an error; a traceback would name files of this machine."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _rows(path: Path, seed: int, labels: Any, z: np.ndarray, recipe: Any) -> list[dict[str, Any]]:
    from graphcl.answers import evidence
    from graphcl.answers.inputs import known_labels
    from graphcl.answers.learning import learn
    from graphcl.answers.rivals import plain_rivals
    from graphcl.datasets import read_gallery_graph
    from graphcl.evaluation.calibration import fit_calibrated

    graph = read_gallery_graph(path)
    ids = np.arange(graph.num_nodes)
    truth = known_labels(graph.y, ids, kind="classes")
    if labels == SPLIT:
        if seed % 10 >= graph.num_splits:
            return []
        graph = graph.split((seed // 10 * DRAWS[SPLIT] + seed % 10) % graph.num_splits)
        chosen, tested = graph.train_mask | graph.val_mask, graph.test_mask & truth.known
    else:
        chosen = _draw(truth, labels, np.random.default_rng(seed))
        tested = truth.known & ~chosen
    if seed % 10 and len(ids) > LARGE:
        return []
    known, tests = truth.only(chosen), np.flatnonzero(tested)
    labelled, targets = np.flatnonzero(known.known), truth.targets[tests]
    parts = evidence.embedding_parts(recipe, graph.num_features)
    found = []

    def measured(name: str, began: float, probability: np.ndarray, **more: Any) -> None:
        seconds = round(time.perf_counter() - began, 2)
        scores = _scores(probability.astype(np.float64), targets, known.several)
        about = {"labelled": len(labelled), "tested": len(tests), "seconds": seconds}
        found.append({"system": name, **scores, **about, **more})

    began = time.perf_counter()
    learned = learn(z, ids, known, graph=graph, parts=parts, seed=seed)
    weights = {name: round(one, 3) for name, one in learned.weights.items() if one >= 0.001}
    error = learned.probe.error
    expected = None if error is None else round(error.headline[1], 4)
    measured("graphcl", began, learned.of_rows(tests), weights=weights, expected=expected)
    tables = learned.evidence
    for name, inputs in (
        ("own columns", (evidence.OWN, evidence.OWN_SCALED)),
        ("propagation", (evidence.NEIGHBOURS,)),
    ):
        some = {key: tables.tables[key] for key in inputs if key in tables.tables}
        if some:
            began = time.perf_counter()
            how: Any = {"several": known.several, "seed": seed, "standard": tables.standard}
            rows = {key: table[labelled] for key, table in some.items()}
            probe = fit_calibrated(rows, known.targets[labelled], **how)
            of_tests = {key: table[tests] for key, table in some.items()}
            measured(name, began, probe.probabilities(of_tests))
    means = evidence.neighbour_means(graph)
    near = None if means is None else means @ graph.x
    own = None if near is None else near[labelled]
    how = {"kind": known.kind, "seed": seed}
    for rival in plain_rivals(graph.x[labelled], own, known.targets[labelled], **how)[1:]:
        began = time.perf_counter()
        of_tests = rival.predict(graph.x[tests], None if near is None else near[tests])
        measured(rival.name, began, of_tests)
    return found


def _draw(truth: Any, count: int, random: np.random.Generator) -> np.ndarray:
    """Returns which nodes keep their labels: `count` of each class, or half of it if less."""
    chosen = np.zeros(len(truth.known), np.bool_)
    for column in truth.targets.T:
        members = np.flatnonzero(column * truth.known)
        chosen[random.permutation(members)[: min(count, len(members) // 2)]] = True
    return chosen


def _scores(probability: np.ndarray, targets: np.ndarray, several: bool) -> dict[str, Any]:
    from graphcl.evaluation.prediction_error import measure

    error = measure(probability, targets, several, nodes=len(targets))
    score = error.accuracy if error.roc_auc is None else error.roc_auc
    if several:
        areas = [area for _, area in error.by_class if area is not None]
        score = float(np.mean(areas))
    about = {"score": score, "ece": error.calibration_error, "accuracy": error.accuracy}
    about |= {"macro_f1": error.macro_f1, "log_loss": error.log_loss}
    return {name: round(value, 5) for name, value in about.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns mean scores per graph, and how far ours is from the best of the others."""
    lines = []
    for labels in (*LABELS, SPLIT):
        found: Any = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row["labels"] == labels and "failed" not in row:
                found[row["graph"]][row["system"]].append((100 * row["score"], row["ece"]))
        systems = ("graphcl", *PLAIN, *OTHERS)
        lines.append(f"\n### {labels if labels == SPLIT else f'{labels} labels a class'}\n")
        lines.append("| graph | " + " | ".join(systems) + " | above the rivals | ECE |")
        lines.append("| --- |" + " --- |" * (len(systems) + 2))
        gaps, errors, means = [], [], defaultdict(list)
        for graph in sorted(found):
            mean = {one: np.mean([s for s, _ in found[graph][one]]) for one in found[graph]}
            best = max((mean[one] for one in PLAIN if one in mean), default=np.nan)
            gaps.append(mean["graphcl"] - best)
            errors.append(np.mean([e for _, e in found[graph]["graphcl"]]))
            for one in mean:
                means[one].append(mean[one])
            cells = [f"{mean[one]:.1f}" if one in mean else "–" for one in systems]
            lines.append(f"| {graph} | {' | '.join(cells)} | {gaps[-1]:+.1f} | {errors[-1]:.3f} |")
        if not found:
            continue
        cells = [f"{np.mean(means[one]):.1f}" for one in systems]
        mean_gap = np.nanmean(gaps)
        lines.append(f"| mean | {' | '.join(cells)} | {mean_gap:+.1f} | {np.mean(errors):.3f} |")
    return "\n".join(lines)


def page_table(rows: list[dict[str, Any]], *, graphs: bool = True) -> str:
    """Returns a table of docs/research/answers.md: ours beside the best plain rival, and errors.

    Args:
        rows: of `run`.
        graphs: a line for each graph; otherwise the lines below them alone.
    """
    found: Any = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "failed" not in row:
            found[row["graph"], row["labels"]][row["system"]].append((row["score"], row["ece"]))
    counts = (*LABELS, SPLIT)
    head = ["published split" if k == SPLIT else f"{k} a class" for k in counts]
    columns = [name for one in head for name in (f"{one}: ours", "best rival")]
    lines = ["| graph | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    names = sorted({graph for graph, _ in found})
    scores, errors = np.full((2, len(names), len(counts), 2), np.nan)
    for place, graph in enumerate(names):
        for at, k in enumerate(counts):
            mean = {name: np.mean(some, axis=0) for name, some in found[graph, k].items()}
            if "graphcl" in mean:
                best = max((mean[one][0] for one in PLAIN if one in mean), default=np.nan)
                scores[place, at] = 100 * mean["graphcl"][0], 100 * best
                errors[place, at, 0] = mean["graphcl"][1]
    body = dict(zip(names, scores.reshape(len(names), -1), strict=True)) if graphs else {}
    body["mean"] = np.nanmean(scores, axis=0).ravel()
    for graph, values in body.items():
        cells = " | ".join(f"{one:.1f}" for one in values)
        lines.append(f"| {graph} | {cells} |".replace("nan", "–"))
    below = (scores[..., 0] < scores[..., 1] - 1).sum(0)
    of = (~np.isnan(scores).any(-1)).sum(0)
    cells = " | ".join(f"{one} of {all_} | " for one, all_ in zip(below, of, strict=True))
    lines.append(f"| graphs over a point below | {cells} |")
    cells = " | ".join(f"{one:.3f} | " for one in np.nanmean(errors[..., 0], axis=0))
    lines.append(f"| mean calibration error | {cells} |")
    return "\n" + "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()
