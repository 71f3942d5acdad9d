"""Run directories: written whole or not at all, read with suspicion.

A run holds `config.toml`, `model.safetensors` and `metrics.jsonl`, and `scaling.safetensors` if its
features are scaled by statistics of the training rows, `schema.json` if its graph is a typed one,
and `alignment.safetensors` if an update has trained it on (`graphcl.runs.versions`); the command
line adds `embeddings.npy`, `result.json` and `nodes.npz` (see `graphcl.runs.nodes`). A baseline's
run holds `config.toml`, `result.json`, `nodes.npz` and its output: `embeddings.npy`, or
`predictions.npy` if the baseline is supervised. What a training keeps before it is complete is in
`graphcl.training_run`.

Summaries of answers that were asked of the run, ``answer-predict.json`` and so on, are kept for the
report: figures, names and a few examples. The table of the answer lies beside its summary, as
``answer-predict.parquet``. A training that overwrites the run removes them.
"""

import hashlib
import json
import secrets
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from graphcl.errors import MissingExtraError, RunError, is_command, option
from graphcl.files import RUN_CONFIG
from graphcl.files.arrays import map_npy, with_digest
from graphcl.files.atomic import check_new_folder, whole_folder, write_whole
from graphcl.files.patched import has_table, map_table
from graphcl.files.records import write_records
from graphcl.files.text import format_toml, read_text
from graphcl.files.user import seal_text, user_key
from graphcl.version import package_version

if TYPE_CHECKING:  # a run's words and embeddings are read without torch, which takes seconds
    from torch import Tensor

    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph


FORMAT = 1
CONFIG, MODEL, METRICS = RUN_CONFIG, "model.safetensors", "metrics.jsonl"
SCALING = "scaling.safetensors"  # where `feature_scaling` is ``auto``
ALIGNMENT = "alignment.safetensors"  # where the model was trained on and turned to its old space
METRICS_BYTES = 1 << 28  # a million epochs
EMBEDDINGS, PREDICTIONS, RESULT = "embeddings.npy", "predictions.npy", "result.json"
SCHEMA = "schema.json"  # where the graph was a typed one: its types and relations
CURVES, EPOCHS = "tensorboard", "epochs.csv"
LOGS = (CURVES, EPOCHS)  # what ``train --log`` leaves in a run
ANSWERS = ("predict", "cluster", "links", "neighbors")
Scores = Mapping[str, Any]  # of a probe or of predictions; see `graphcl.evaluation`


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
        aligned: whether embeddings are turned to an older space, so that `ALIGNMENT` must be there.
    """

    recipe: Mapping[str, Any]
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    num_features: int | None = None
    origin: Origin = Origin()
    seal: str = ""
    aligned: bool = False

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
        about |= {"num_features": self.num_features, "aligned": self.aligned or None}
        about |= {**asdict(self.origin), "seal": self.seal}
        tables: dict[str, Mapping[str, Any]] = {"recipe": self.recipe}
        if self.method:
            tables = {"method": {"name": self.method}, "settings": self.settings}
        tables["run"] = {key: value for key, value in about.items() if value not in (None, "")}
        return "\n".join(f"[{name}]\n{format_toml(values)}" for name, values in tables.items())


def _seal(origin: Origin) -> str:
    """Returns the seal of what decides which graph is read again, and how."""
    return seal_text(json.dumps(asdict(origin), sort_keys=True), user_key(), purpose="graphcl run")


def write_config(folder: Path, config: RunConfig) -> None:
    """Writes `config.toml`, its origin sealed, into a folder that is not yet a run."""
    if config.origin.graph:
        config = replace(config, seal=_seal(config.origin))
    (folder / CONFIG).write_text(config.to_toml(), encoding="utf-8")


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
    write_whole(path, with_digest(safetensors.torch.save(tensors)))


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
        aligned=about.get("aligned") is True,
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


@dataclass(frozen=True)
class GraphFacts:
    """The graph that was trained on; `source` is how the caller named it.

    Of a typed graph, `types` has the number of nodes of each type and `relations` that of edges of
    each ``source:name:target``; `features` are those of all types.
    """

    name: str
    source: str
    nodes: int
    edges: int
    features: int
    types: Mapping[str, int] = field(default_factory=dict)
    relations: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: "Graph | GraphCollection", source: str) -> Self:
        """Reads the facts off a graph."""
        if not graph.is_plain:
            assert not hasattr(graph, "graphs")
            return cls(
                graph.name,
                source,
                graph.num_nodes,
                graph.num_edges,
                sum(one.num_features for one in graph.nodes.values()),
                {name: one.num_nodes for name, one in graph.nodes.items()},
                {":".join(key): one.num_edges for key, one in graph.relations.items()},
            )
        return cls.plain(graph, source)

    @classmethod
    def plain(cls, graph: Any, source: str) -> Self:
        """Reads the facts off anything that has the name and the numbers of a plain graph."""
        return cls(graph.name, source, graph.num_nodes, graph.num_edges, graph.num_features)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a training of any system leaves.

    `peak_memory_bytes` is that of the GPU, or of the process on a CPU. `note` is shown beside every
    score on this graph; it is mostly empty. `effective_rank` and `mean_cosine` are those of the
    embeddings, and `warnings` are signs that the training failed; see `graphcl.evaluation.failure`.
    They are unknown of some systems. `class_names` are empty if classes have none.
    """

    status: str = "complete"
    graph: GraphFacts
    seed: int
    train_seconds: float
    peak_memory_bytes: int
    device: str
    versions: Mapping[str, str]
    note: str = ""
    effective_rank: float | None = None
    mean_cosine: float | None = None
    warnings: Sequence[Mapping[str, str]] = ()
    class_names: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON has it; what is empty and need not be said is left out."""
        values = asdict(self)
        for name in ("types", "relations"):
            if not values["graph"][name]:
                del values["graph"][name]
        unsaid = ("note", "scaling", "class_names", "traffic")
        return {key: value for key, value in values.items() if key not in unsaid or value}

    def write(self, folder: Path) -> None:
        """Writes `result.json`."""
        write_object(folder / RESULT, self.to_json())


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Result):
    """The result of GraphCL; `loss` and `mi_bound` are those of the last epoch.

    `scaling` says what ``feature_scaling = "auto"`` did; it is empty for other values.
    `traffic` says what processes sent each other in the last epoch over a graph in parts: see
    `graphcl.training.loop.PartedMetrics`; it is empty for others.
    """

    probe: Scores | None
    probe_skipped: str | None
    mode: Mapping[str, str]
    epochs: int
    loss: float
    mi_bound: float | None
    recipe_hash: str
    scaling: str = ""
    traffic: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BaselineResult(Result):
    """The result of another system; its scores are those of the probe, or of its predictions."""

    method: str
    settings: Mapping[str, Any]
    scores: Scores | None
    scores_skipped: str | None


def read_result(run: Path) -> dict[str, Any]:
    """Returns the parsed `result.json` of a run; empty where there is none."""
    return read_object(run / RESULT)


def read_training_result(run: Path) -> TrainingResult:
    """Returns the result of a finished run of GraphCL.

    Raises:
        RunError: something is missing in it.
    """
    values = read_result(run)
    damaged = RunError(f"{run / RESULT}: damaged; train again with {option('overwrite', True)}")
    try:
        result = TrainingResult(graph=GraphFacts(**values.pop("graph")), **values)
    except (TypeError, KeyError):
        raise damaged from None
    if result.status != "complete":
        raise damaged
    return result


def answer_file(run: Path, kind: str) -> Path:
    """Returns where a run keeps the summary of an answer."""
    return run / f"answer-{kind}.json"


def keep_answer(
    run: Path, kind: str, summary: Mapping[str, Any], columns: Mapping[str, Any] | None = None
) -> str:
    """Writes a summary, and perhaps a table, into the run; returns why that failed, or nothing.

    A run that cannot be written to is no reason to refuse an answer.
    """
    path = answer_file(run, kind)
    try:
        if columns is not None:  # no old table stands beside a new summary
            path.with_suffix(".parquet").unlink(missing_ok=True)
        write_whole(path, json.dumps(summary, allow_nan=False) + "\n")
        if columns is not None:
            write_records(path.with_suffix(".parquet"), columns)
    except OSError as error:
        return f"{run}: the answer could not be kept for the report ({error.strerror})"
    except MissingExtraError as error:
        return f"the table is not kept for the report: {error}"
    return ""


def read_answer_table(run: Path, kind: str) -> dict[str, list[Any]]:
    """Returns the table of an answer that a run keeps; an empty one if there is none, or damaged.

    Its columns have equal lengths; nothing else is certain, because a run may come from anybody.
    """
    path = answer_file(run, kind).with_suffix(".parquet")
    try:
        import pyarrow.parquet

        table: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
        return table
    except (OSError, ValueError, ImportError):  # Arrow's errors are among them
        return {}


def read_answers(run: Path) -> dict[str, dict[str, Any]]:
    """Returns the summaries that a run keeps, by kind; damaged ones are left out."""
    found = {}
    for kind in ANSWERS:
        try:
            summary = read_object(answer_file(run, kind))
        except (OSError, RunError):
            continue
        if summary:
            found[kind] = summary
    return found
