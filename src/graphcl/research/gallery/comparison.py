"""Trains any systems on any graphs with any seeds; each training gives one row, scored alike.

`graphcl.evaluation.splits` has the protocol. Systems run with their defaults: no setting that was
chosen for a certain dataset is used, so that a graph meets all systems out of the box.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.splits import compare_probe
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe, recipe_for
from graphcl.research.systems.protocol import is_unsupervised
from graphcl.research.trials import runner
from graphcl.research.trials.methods import METHODS, find_baseline, train_method
from graphcl.research.trials.rows import Json, Row
from graphcl.research.trials.runner import Job, Progress, Scoring

COLUMNS = ("graph", "system", "seed")
RAW = "raw"


@dataclass(frozen=True)
class System:
    """A system with its settings, such as ``graphcl:encoder=residual,layers=1``.

    Attributes:
        name: its name in rows and tables: the text that it was read from.
        method: one of `METHODS`.
        settings: what differs from the method's defaults.
    """

    name: str
    method: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def deterministic(self) -> bool:
        """Whether every seed gives the same embeddings, so that one is enough."""
        return self.method != "graphcl" and find_baseline(self.method).deterministic


def read_systems(texts: Iterable[str]) -> list[System]:
    """Reads systems: ``NAME`` or ``NAME:key=value,key=value``, separated by commas.

    Raises:
        ParameterError: a name or a setting is unknown, or a system predicts labels itself.
    """
    parts: list[str] = []
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        if "=" in piece and ":" not in piece and parts:
            parts[-1] += f",{piece}"  # another setting of the same system
        elif piece:
            parts.append(piece)
    return [_read_system(text) for text in dict.fromkeys(parts)]


def _read_system(text: str) -> System:
    method, _, listed = text.partition(":")
    pairs = [pair.partition("=") for pair in listed.split(",") if pair]
    wrong = next((key for key, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise ParameterError(f"compare: a setting is KEY=VALUE; got {wrong!r} in {text!r}")
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if method == "graphcl":
        load_recipe(recipe_for("")).with_texts(**settings)  # refuses what it does not know
    elif not is_unsupervised(find_baseline(method).method("", **settings)):
        known = ", ".join(embedding_methods())
        raise ParameterError(
            f"compare: {method} predicts labels itself; systems that embed: {known}"
        )
    return System(text, method, settings)


def embedding_methods() -> list[str]:
    """Returns the names of the systems that embed, ours first."""
    return [
        name
        for name in METHODS
        if name == "graphcl" or is_unsupervised(find_baseline(name).method(""))
    ]


def compare(
    graphs: Mapping[str, Callable[[], Graph]],
    systems: Sequence[System],
    path: Path,
    *,
    seeds: Sequence[int],
    device: torch.device,
    budget: float = float("inf"),
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[Row]:
    """Trains and scores what `path` does not hold yet, and returns all rows asked for.

    A failed training or scoring is a row with the reason under ``failed``; a later call tries it
    again. Rows of all graphs and systems come before those of the next seed, so that an interrupted
    comparison is even.

    Args:
        graphs: a function that loads each graph, by name.
        systems: of `read_systems`.
        path: the file of rows.
        seeds: of the trainings; a deterministic system takes the first alone.
        device: trains and probes.
        budget: no training starts after this many seconds.
        on_progress: called after each training.
    """

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> Graph:
        return graphs[name]()

    def job(name: str, system: System, seed: int) -> Job:
        about: Row = {"graph": name, "system": system.name, "seed": seed}

        def run() -> Iterator[Scoring]:
            yield _trained_and_scored(about, system, loaded(name), seed=seed, device=device)

        return Job(f"{system.name} on {name}", (about,), run)

    jobs = [
        job(name, system, seed)
        for place, seed in enumerate(seeds)
        for name in graphs
        for system in systems
        if place == 0 or not system.deterministic
    ]
    return runner.execute(
        jobs, path, columns=COLUMNS, device=device, budget=budget, on_progress=on_progress
    )


def _trained_and_scored(
    about: Row, system: System, graph: Graph, *, seed: int, device: torch.device
) -> Scoring:
    settings: dict[str, Json] = dict(system.settings)
    trained = train_method(system.method, graph, seed=seed, device=device, settings=settings)
    row = trained.trial.to_json() | about
    if trained.embeddings is None:
        return Scoring((row | {"failed": trained.trial.failed or "no embeddings"},))
    began = time.perf_counter()
    try:
        scores: Row = asdict(compare_probe(trained.embeddings, graph, device=device))
    except GraphError as error:
        return Scoring((row | {"failed": str(error)},))
    return Scoring((row | scores | {"probe_seconds": time.perf_counter() - began},))
