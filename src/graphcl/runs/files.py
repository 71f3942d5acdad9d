"""Run directories: written whole or not at all, read with suspicion.

A run holds `config.toml`, `model.safetensors` and `metrics.jsonl`; the command line adds
`embeddings.npy`, `result.json` and `nodes.npz` (see `graphcl.runs.nodes`). A baseline's run holds
`config.toml`, `result.json`, `nodes.npz` and its output: `embeddings.npy`, or `predictions.npy` if
the baseline is supervised. What a training keeps before it is complete is in
`graphcl.runs.unfinished`.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from graphcl.errors import RunError
from graphcl.files.atomic import check_new_folder, whole_folder, write_whole
from graphcl.files.npy import map_npy
from graphcl.files.text import read_text
from graphcl.files.weights import check_tensors, read_tensors

FORMAT = 1
CONFIG, MODEL, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
METRICS_BYTES = 1 << 28  # a million epochs
EMBEDDINGS, PREDICTIONS, RESULT = "embeddings.npy", "predictions.npy", "result.json"
CURVES = "tensorboard"


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuses an output path before any work is done for it.

    Raises:
        RunError: a run is already there and `overwrite` is false, or something else is there
            (that is never overwritten), or the folder above is not writable.
    """
    check_new_folder(path, "run", CONFIG, RunError, overwrite=overwrite)


@contextmanager
def new_run(path: Path, *, overwrite: bool = False, within: Path | None = None) -> Iterator[Path]:
    """Yields an empty folder that becomes `path` when the block ends well, and vanishes otherwise.

    An earlier run at `path` stays untouched until the new one is complete.

    Args:
        path: the run.
        overwrite: replace a run that is there.
        within: a folder on the same disk to work in; a process that dies leaves nothing elsewhere.
    """
    check_output(path, overwrite=overwrite)
    with whole_folder(path, within=within) as staging:
        yield staging


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes one JSON object, indented, by rename."""
    write_whole(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes weights as safetensors, by rename."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_whole(path, safetensors.torch.save(tensors))


def read_config(run: Path, *, baselines: bool = False) -> dict[str, Any]:
    """Returns the parsed `config.toml` of a run.

    Args:
        run: the directory.
        baselines: accept a baseline's run too, which has [method] and [settings] for a [recipe].

    Raises:
        RunError: no run, a damaged one, or a baseline's where only GraphCL's will do.
    """
    if not run.is_dir():
        raise RunError(f"{run}: no such run")
    try:
        config = tomllib.loads(read_text(run / CONFIG, RunError))
    except FileNotFoundError:
        raise RunError(f"{run}: not a run (it has no {CONFIG})") from None
    except RunError:
        raise
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise RunError(f"{run / CONFIG}: not TOML ({error})") from None
    wanted = ("method", "settings", "run") if "method" in config else ("recipe", "run")
    if not all(isinstance(config.get(table), dict) for table in wanted):
        tables = " and ".join(f"[{table}]" for table in wanted)
        raise RunError(f"{run / CONFIG}: lacks the tables {tables}")
    if "method" in config and not baselines:
        name = config["method"].get("name")
        raise RunError(f"{run}: a run of the baseline {name!r}; this needs a run of GraphCL")
    if config["run"].get("format") != FORMAT:
        found = config["run"].get("format")
        raise RunError(f"{run}: run format {found!r}; this version reads format {FORMAT}")
    return config


def read_weights(run: Path) -> dict[str, Tensor]:
    """Returns the weights of a run."""
    path = run / MODEL
    try:
        return read_tensors(path)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {MODEL}; was the training interrupted?") from None


def weights_bytes(run: Path) -> int:
    """Returns the size of a run's weights, their header checked."""
    try:
        return check_tensors(run / MODEL)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {MODEL}; was the training interrupted?") from None


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`; empty where there is none."""
    path = run / METRICS
    if not path.exists():
        return []
    try:
        text = read_text(path, RunError, limit=METRICS_BYTES)
        return [json.loads(line) for line in text.splitlines()]
    except RunError:
        raise
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None


def read_embeddings(run: Path) -> Any:
    """Returns the embeddings that `train` left in a run, mapped."""
    path = run / EMBEDDINGS
    try:
        return map_npy(path, RunError)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {EMBEDDINGS}; make them with: graphcl embed") from None


def read_result(run: Path) -> dict[str, Any]:
    """Returns the parsed `result.json` of a run; empty where there is none."""
    path = run / RESULT
    if not path.exists():
        return {}
    try:
        result = json.loads(read_text(path, RunError))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    if not isinstance(result, dict):
        raise RunError(f"{path}: holds no JSON object")
    return result


def read_predictions(run: Path) -> Any:
    """Returns the predictions that a supervised baseline left in a run."""
    try:
        return map_npy(run / PREDICTIONS, RunError)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {PREDICTIONS}; train it again") from None
