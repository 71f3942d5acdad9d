"""Finished runs side by side: in which settings they differ, and how they scored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcl.runs import files as runs
from graphcl.runs.results import read_result
from graphcl.runs.versions import current_run

# What is compared of `result.json`, and how it is shown: name, digits, factor.
_SCORES = {
    "accuracy": ("accuracy, %", 1, 100),
    "micro_f1": ("micro-F1", 4, 1),
    "macro_f1": ("macro-F1", 3, 1),
    "roc_auc": ("ROC-AUC", 3, 1),
    "majority": ("majority, %", 1, 100),
}
_FACTS = {
    "loss": ("loss", 4, 1),
    "effective_rank": ("effective rank", 1, 1),
    "mean_cosine": ("mean cosine", 3, 1),
    "train_seconds": ("training, s", 1, 1),
    "peak_memory_bytes": ("peak memory, MiB", 0, 2**-20),
}


@dataclass(frozen=True)
class RunComparison:
    """Runs side by side.

    Attributes:
        runs: their paths.
        settings: per setting in which they differ, its value in each run; None where it has none.
        same: the settings in which all agree.
        scores: per score or fact, its value in each run; None where it is not known.
        notes: what makes scores incomparable, in words.
    """

    runs: tuple[str, ...]
    settings: Mapping[str, tuple[Any, ...]]
    same: Mapping[str, Any]
    scores: Mapping[str, tuple[Any, ...]]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON has it."""
        each: list[dict[str, Any]] = []
        for place, run in enumerate(self.runs):
            settings = {key: values[place] for key, values in self.settings.items()}
            scores = {key: values[place] for key, values in self.scores.items()}
            each.append({"run": run, "settings": settings, "scores": scores})
        return {"runs": each, "same": dict(self.same), "notes": list(self.notes)}

    def table(self) -> str:
        """Returns the comparison as text, a column per run."""
        shown = {key: [_text(value) for value in row] for key, row in self.settings.items()}
        for name, (label, digits, factor) in (_SCORES | _FACTS).items():
            row = self.scores.get(name)
            if row is not None:
                shown[label] = [
                    "–" if value is None else f"{factor * value:,.{digits}f}" for value in row
                ]
        rows = [["", *self.runs], *([key, *values] for key, values in shown.items())]
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = ["  ".join(_pad(row, widths)).rstrip() for row in rows]
        alike = "no setting differs" if not self.settings else ""
        return "\n".join([*lines, *filter(None, [alike]), *(f"note: {one}" for one in self.notes)])


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]


def _text(value: Any) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_run(path: Path) -> bool:
    """Returns whether a folder looks like a run."""
    return (path / runs.CONFIG).is_file()


def compare_runs(paths: Sequence[Path]) -> RunComparison:
    """Reads runs, of GraphCL or of baselines, and compares them.

    Raises:
        RunError: one is missing or damaged.
    """
    current = [current_run(path) for path in paths]
    configs = [runs.read_config(path, baselines=True) for path in current]
    results = [read_result(path) for path in current]
    known = [_settings(config) for config in configs]
    keys = list(dict.fromkeys(key for one in known for key in one))
    rows = {key: tuple(one.get(key) for one in known) for key in keys}
    differing = {key: row for key, row in rows.items() if any(value != row[0] for value in row)}
    same = {key: row[0] for key, row in rows.items() if key not in differing}
    scores = {}
    for name in (*_SCORES, *_FACTS):
        row = tuple(_score(result, name) for result in results)
        if any(value is not None for value in row):
            scores[name] = row
    if "micro_f1" in scores and scores.get("accuracy") == scores["micro_f1"]:
        del scores["micro_f1"]  # with one class per node they are one
    return RunComparison(
        tuple(map(str, paths)), differing, same, scores, tuple(_notes(configs, results))
    )


def _settings(config: runs.RunConfig) -> dict[str, Any]:
    named = {"graph": config.origin.graph or None, "method": config.method or "graphcl"}
    return {**named, "seed": config.seed, **config.recipe, **config.settings}


def _score(result: Mapping[str, Any], name: str) -> float | None:
    if name in _FACTS:
        value = result.get(name)
    else:
        value = (result.get("probe") or result.get("scores") or {}).get(name)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and value is not None else None


def _notes(configs: Sequence[runs.RunConfig], results: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    if len({config.origin.fingerprint for config in configs}) > 1:
        notes.append("the runs were trained on different graphs: scores cannot be compared")
    splits = {
        str((result.get("probe") or result.get("scores") or {}).get("nodes")) for result in results
    }
    if len(splits - {"None"}) > 1:
        notes.append("the probes used different splits: scores cannot be compared")
    for place, result in enumerate(results):
        if not result:
            notes.append(f"run {place + 1} has no result.json: it was saved from Python")
    return notes
