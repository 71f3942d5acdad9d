"""What `result.json` says of a training, and summaries of answers that were asked of the run.

A summary is a small JSON file, ``answer-predict.json`` and so on, kept for the report: figures,
names and a few examples. The table of the answer lies beside it, as ``answer-predict.parquet``. A
training that overwrites the run removes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from graphcl.errors import MissingExtraError, RunError, option
from graphcl.files.atomic import write_whole
from graphcl.files.records import write_records
from graphcl.runs.files import RESULT, read_object, write_object

if TYPE_CHECKING:  # reading a result needs no graph, and so none of the imports of one
    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph

ANSWERS = ("predict", "cluster", "links", "neighbors")
Scores = Mapping[str, Any]  # of a probe or of predictions; see `graphcl.evaluation`


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
        facts = GraphFacts(**values.pop("graph"))
        result = TrainingResult(graph=facts, **values)
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
