"""Run directories: written whole or not at all, read with suspicion.

A run holds `config.toml`, `model.safetensors` and `metrics.jsonl`; the command line adds
`embeddings.npy`, `result.json` and `nodes.npz` (see `run_nodes`). While it is trained, checkpoints
lie beside it in `RUN.partial`, and so do TensorBoard's curves. A baseline's run holds
`config.toml`, `result.json`, `nodes.npz` and what it gave: `embeddings.npy` or, of a supervised
one, `predictions.npy`.
"""

import fcntl
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from graphcl.errors import RunError
from graphcl.files.npy import map_npy
from graphcl.files.text import read_text
from graphcl.files.weights import check_tensors, read_tensors

FORMAT = 1
CONFIG, MODEL, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
METRICS_BYTES = 1 << 28  # a million epochs
EMBEDDINGS, PREDICTIONS, RESULT = "embeddings.npy", "predictions.npy", "result.json"
CURVES = "tensorboard"
LOCK = ".lock"


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuses an output path before any work is done for it.

    Raises:
        RunError: a run is already there and `overwrite` is false, or something else is there
            (that is never overwritten), or the folder above is not writable.
    """
    if path.name in ("", ".."):
        raise RunError(f"{path}: a run is a new folder; give it a name")
    if path.is_dir() and any(path.iterdir()):
        if not (path / CONFIG).is_file():
            raise RunError(f"{path}: holds files that are no run; choose another --out")
        if not overwrite:
            raise RunError(
                f"{path}: already holds a run; pass --overwrite (in Python: overwrite=True) "
                "or choose another place"
            )
    elif path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file; a run is a directory")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=above)).rmdir()
    except OSError as error:
        raise RunError(f"{path}: cannot be written in {above} ({error.strerror})") from None


def partial_folder(path: Path) -> Path:
    """Returns where the unfinished training of a run lies: beside it."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def unfinished_run(path: Path, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
    """Yields the folder of an unfinished run, empty or to be resumed; it goes when the block ends.

    Where the block is left by an exception, a folder that holds checkpoints stays. What is no
    training's is never touched. One process at a time: a lock says so, and it ends with the
    process, however that ends.

    Raises:
        RunError: an unfinished training is there and is neither resumed nor overwritten, or
            another process is at work on it.
    """
    folder = partial_folder(path)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; checkpoints need a directory of that name")
    if folder.exists() and not (overwrite or resume or _is_idle(folder)):
        raise RunError(
            f"{folder}: holds an unfinished training; go on with --resume, "
            "or begin anew with --overwrite"
        )
    made = [above for above in folder.parents if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder}: another process is training this run") from None
        for entry in _own_entries(folder, path):
            kept = entry.name.startswith("checkpoint-") or entry.name == CURVES
            if entry.name != LOCK and not (resume and kept):
                shutil.rmtree(entry, ignore_errors=True)  # of a process that died while writing
        try:
            yield folder
        except BaseException:
            if _is_idle(folder):
                _tidy(folder, path)
                with suppress(OSError):  # not empty: somebody else's
                    for above in made:
                        above.rmdir()
            raise
        _tidy(folder, path)


def _own_entries(folder: Path, path: Path) -> list[Path]:
    """Returns what a training of `path` has left in its folder."""
    named = ("checkpoint-", ".checkpoint-", f".{path.name}.")
    return [
        entry
        for entry in folder.iterdir()
        if entry.name.startswith(named) or entry.name in (LOCK, CURVES)
    ]


def _tidy(folder: Path, path: Path) -> None:
    """Removes what is a training's, and the folder where nothing else is in it."""
    for entry in _own_entries(folder, path):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with suppress(OSError):
        folder.rmdir()


def _is_idle(folder: Path) -> bool:
    """Says whether nothing in an unfinished run is worth keeping."""
    return not any(folder.glob("checkpoint-*"))


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
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=within or path.parent))
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        _sync(staging)
        if path.exists():
            above = within or path.parent
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=above))
            path.rename(old / "run")
            staging.rename(path)
            shutil.rmtree(old)
        else:
            staging.rename(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Flushes a folder and its files to the disk: checkpoints go once the run is there."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes one JSON object, indented, by rename."""
    staging = path.with_name(f".{path.name}.partial")
    staging.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    staging.replace(path)


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes weights as safetensors."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    path.write_bytes(safetensors.torch.save(tensors))


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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
