"""Run directories: written whole or not at all, read with suspicion.

A run holds `config.toml`, `model.safetensors` and `metrics.jsonl`, and `scaling.safetensors` if its
features are scaled by statistics of the training rows, `schema.json` if its graph is a typed one,
and `alignment.safetensors` if an update has trained it on (`graphcl.runs.versions`); the command
line adds `embeddings.npy`, `result.json` and `nodes.npz` (see `graphcl.runs.nodes`). A baseline's
run holds `config.toml`, `result.json`, `nodes.npz` and its output: `embeddings.npy`, or
`predictions.npy` if the baseline is supervised. What a training keeps before it is complete is in
`graphcl.training_run`.
"""

import hashlib
import json
import secrets
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcl.errors import RunError, is_command, option
from graphcl.files.arrays import map_npy
from graphcl.files.atomic import check_new_folder, whole_folder, write_whole
from graphcl.files.patched import has_table, map_table
from graphcl.files.text import format_toml, read_text
from graphcl.files.user import seal_text, user_key
from graphcl.version import package_version

if TYPE_CHECKING:  # a run's words and embeddings are read without torch, which takes seconds
    from torch import Tensor

FORMAT = 1
CONFIG, MODEL, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
SCALING = "scaling.safetensors"  # where `feature_scaling` is ``auto``
ALIGNMENT = "alignment.safetensors"  # where the model was trained on and turned to its old space
METRICS_BYTES = 1 << 28  # a million epochs
EMBEDDINGS, PREDICTIONS, RESULT = "embeddings.npy", "predictions.npy", "result.json"
SCHEMA = "schema.json"  # where the graph was a typed one: its types and relations
CURVES, EPOCHS = "tensorboard", "epochs.csv"
LOGS = (CURVES, EPOCHS)  # what ``train --log`` leaves in a run


@dataclass(frozen=True)
class Origin:
    """Which graph a run was trained on; texts are empty where that is not known.

    Attributes:
        graph: how the caller named it: a dataset, a path or a query.
        fingerprint: a few digits by which the run knows it again.
        tables: what the caller said of tables, as JSON.
        build: the id of its parts, if it was a store in parts; `fingerprint` is then that of the
            graph that was divided.
    """

    graph: str = ""
    fingerprint: str = ""
    tables: str = ""
    build: str = ""


@dataclass(frozen=True)
class RunConfig:
    """What `config.toml` says.

    Attributes:
        recipe: GraphCL's, not yet checked; empty for a baseline.
        method: the baseline's name; empty for GraphCL.
        settings: the baseline's.
        seed: None where a damaged file lacks it.
        num_features: likewise; a baseline's run has none.
        origin: the graph.
        seal: of the origin, by the key of the user who wrote the run.
    """

    recipe: Mapping[str, Any]
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    num_features: int | None = None
    origin: Origin = Origin()
    seal: str = ""

    @property
    def is_sealed(self) -> bool:
        """Whether this user's key has sealed the origin: nobody else has written or changed it."""
        # A surrogate pair of TOML's is no text that a seal was made of.
        return bool(self.seal) and secrets.compare_digest(
            self.seal.encode(errors="replace"), _seal(self.origin).encode()
        )

    def to_toml(self) -> str:
        """Returns the file's text."""
        about: dict[str, Any] = {"format": FORMAT, "graphcl": package_version(), "seed": self.seed}
        about |= {"num_features": self.num_features, **asdict(self.origin), "seal": self.seal}
        tables: dict[str, Mapping[str, Any]] = {"recipe": self.recipe}
        if self.method:
            tables = {"method": {"name": self.method}, "settings": self.settings}
        tables["run"] = {key: value for key, value in about.items() if value not in (None, "")}
        return "\n".join(f"[{name}]\n{format_toml(values)}" for name, values in tables.items())


def _seal(origin: Origin) -> str:
    """Returns the seal of what decides which graph is read again, and how."""
    text = json.dumps(asdict(origin), sort_keys=True)
    return seal_text(text, user_key(), purpose="graphcl run")


def write_config(folder: Path, config: RunConfig) -> None:
    """Writes `config.toml`, its origin sealed, into a folder that is not yet a run."""
    if config.origin.graph:
        config = replace(config, seal=_seal(config.origin))
    (folder / CONFIG).write_text(config.to_toml())


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

    An earlier run at `path` stays untouched until the new one is complete. `within` is a folder on
    the same disk to work in; then a process that dies leaves nothing elsewhere.
    """
    check_output(path, overwrite=overwrite)
    with whole_folder(path, within=within) as staging:
        yield staging


def write_weights(path: Path, weights: "Mapping[str, Tensor]") -> None:
    """Writes weights as safetensors, by rename."""
    import safetensors.torch

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_whole(path, safetensors.torch.save(tensors))


def write_object(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object into a run, by rename; `read_object` reads it."""
    write_whole(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_schema(run: Path) -> dict[str, Any]:
    """Returns the types and relations that a run was trained on, not yet checked.

    It is empty for a plain graph.
    """
    return read_object(run / SCHEMA)


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a run; empty where there is no such file.

    Raises:
        RunError: it is damaged.
    """
    if not path.exists():
        return {}
    found = _parsed(path, json.loads)
    if not isinstance(found, dict):
        raise RunError(f"{path}: does not hold a JSON object")
    return found


def _parsed(path: Path, parse: Callable[[str], Any], wrong: str = "damaged", **limit: int) -> Any:
    """Returns what is in a file of a run; an error says what is wrong with the file."""
    text = read_text(path, RunError, **limit)
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise RunError(f"{path}: {wrong} ({error})") from None


def read_config(run: Path, *, baselines: bool = False) -> RunConfig:
    """Returns what the `config.toml` of a run says.

    Raises:
        RunError: no run, a damaged one, or a baseline's where only GraphCL's will do.
    """
    if not run.is_dir():
        raise RunError(f"{run}: no such run")
    where = run / CONFIG
    if not where.is_file():
        raise RunError(f"{run}: not a run (it has no {CONFIG})")
    config = _parsed(where, tomllib.loads, "not TOML")
    wanted = ("method", "settings", "run") if "method" in config else ("recipe", "run")
    if not all(isinstance(config.get(table), dict) for table in wanted):
        tables = " and ".join(f"[{table}]" for table in wanted)
        raise RunError(f"{where}: lacks the tables {tables}")
    about, method = config["run"], str(config.get("method", {}).get("name", ""))
    if "method" in config and not baselines:
        raise RunError(f"{run}: a run of the baseline {method!r}; this needs a run of GraphCL")
    found = about.get("format")
    if found != FORMAT:
        raise RunError(f"{run}: run format {found!r}; this version reads format {FORMAT}")
    for key in ("seed", "num_features"):
        if key in about and type(about[key]) is not int:
            raise RunError(f"{where}: [run] {key} must be a whole number; got {about[key]!r}")
    named = ("graph", "fingerprint", "tables", "build", "seal")
    texts = {key: about[key] for key in named if key in about}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise RunError(f"{where}: [run] {key} must be text; got {str(text)[:60]}")
    return RunConfig(
        recipe=config.get("recipe", {}),
        method=method,
        settings=config.get("settings", {}),
        seed=about.get("seed"),
        num_features=about.get("num_features"),
        seal=texts.pop("seal", ""),
        origin=Origin(**texts),
    )


def model_file(run: Path) -> Path:
    """Returns the file with the weights of a run, which must be there."""
    path = run / MODEL
    if not path.exists():
        raise RunError(f"{run}: has no {MODEL}; was the training interrupted?")
    return path


def weights_digest(run: Path) -> str:
    """Returns the checksum of a run's weights, by which embeddings say what made them."""
    with model_file(run).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`; empty where there is none."""
    path = run / METRICS
    if not path.exists():
        return []
    found: list[dict[str, Any]] = _parsed(
        path, lambda text: [json.loads(line) for line in text.splitlines()], limit=METRICS_BYTES
    )
    return found


def read_embeddings(run: Path) -> Any:
    """Returns the embeddings that `train` or `update` left in a run, mapped."""
    try:
        return map_table(run, Path(EMBEDDINGS).stem, RunError)
    except FileNotFoundError:
        root, target = (shlex.quote(str(one)) for one in (run, run / EMBEDDINGS))
        make = f"graphcl embed {root} --out {target}"
        if not is_command():
            make = f"graphcl.GraphCL.load({str(run)!r}).transform(graph)"
        raise RunError(
            f"{run}: has no {EMBEDDINGS}; shards of parts are passed on by {option('embeddings')}; "
            f"else make them: {make}"
        ) from None


def has_embeddings(run: Path) -> bool:
    """Returns whether a run keeps embeddings."""
    return has_table(run, Path(EMBEDDINGS).stem)


def read_predictions(run: Path) -> Any:
    """Returns the predictions that a supervised baseline left in a run."""
    try:
        return map_npy(run / PREDICTIONS, RunError)
    except FileNotFoundError:
        raise RunError(f"{run}: has no {PREDICTIONS}; train it again") from None
