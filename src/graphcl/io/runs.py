"""Run directories: written whole or not at all, read with suspicion.

A run holds `config.toml`, `model.safetensors` and `metrics.jsonl`; the command line adds
`embeddings.npy`, `result.json` and `nodes.npz` (see `run_nodes`).
"""

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from graphcl.errors import RunError

FORMAT = 1
CONFIG, MODEL, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
EMBEDDINGS, RESULT = "embeddings.npy", "result.json"


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuses an output path before any work is done for it.

    Raises:
        RunError: a run is already there and `overwrite` is false, or something else is there
            (that is never overwritten), or the folder above is not writable.
    """
    if path.is_dir() and any(path.iterdir()):
        if not (path / CONFIG).is_file():
            raise RunError(f"{path}: holds files that are no run; choose another --out")
        if not overwrite:
            raise RunError(f"{path}: already holds a run; pass --overwrite or choose another --out")
    elif path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file; a run is a directory")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=above)).rmdir()
    except OSError as error:
        raise RunError(f"{path}: cannot be written in {above} ({error.strerror})") from None


@contextmanager
def new_run(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder that becomes `path` when the block ends well, and vanishes otherwise.

    An earlier run at `path` stays untouched until the new one is complete.
    """
    check_output(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.rename(old / "run")
            staging.rename(path)
            shutil.rmtree(old)
        else:
            staging.rename(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes one JSON object, indented, by rename."""
    staging = path.with_name(f".{path.name}.partial")
    staging.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    staging.replace(path)


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes weights as safetensors."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    path.write_bytes(safetensors.torch.save(tensors))


def read_config(run: Path) -> dict[str, Any]:
    """Returns the parsed `config.toml` of a run."""
    if not run.is_dir():
        raise RunError(f"{run}: no such run")
    try:
        config = tomllib.loads((run / CONFIG).read_text())
    except FileNotFoundError:
        raise RunError(f"{run}: not a run (it has no {CONFIG})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{run / CONFIG}: not TOML ({error})") from None
    if not isinstance(config.get("run"), dict) or not isinstance(config.get("recipe"), dict):
        raise RunError(f"{run / CONFIG}: lacks the tables [recipe] and [run]")
    if config["run"].get("format") != FORMAT:
        found = config["run"].get("format")
        raise RunError(f"{run}: run format {found!r}; this version reads format {FORMAT}")
    return config


def read_weights(run: Path) -> dict[str, Tensor]:
    """Returns the weights of a run."""
    path = run / MODEL
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{run}: has no {MODEL}; was the training interrupted?") from None
    except SafetensorError as error:
        raise RunError(f"{path}: damaged or truncated ({error})") from None


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`; empty where there is none."""
    path = run / METRICS
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: damaged ({error})") from None


def read_embeddings(run: Path) -> Any:
    """Returns the embeddings that `train` left in a run."""
    path = run / EMBEDDINGS
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {EMBEDDINGS}; make them with: graphcl embed") from None
    except (ValueError, EOFError) as error:
        raise RunError(f"{path}: damaged or truncated ({error})") from None


def read_result(run: Path) -> dict[str, Any]:
    """Returns the parsed `result.json` of a run; empty where there is none."""
    path = run / RESULT
    if not path.exists():
        return {}
    try:
        result = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    if not isinstance(result, dict):
        raise RunError(f"{path}: holds no JSON object")
    return result


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
