"""An update of a run, from tables that say what changed to a new version that commands use.

1. *Grow*: the graph of the current version and the tables make the new graph, of any kind.
2. *Embed*: nodes whose L-hop surroundings changed are embedded; the rows of all others are copied.
   Or the model is trained on (`retrain`), embeds all nodes, and its space is turned to the old one.
3. *Measure*: how far embeddings moved, for the drift page.
4. *Write*: the version appears whole, and becomes the current one as the last step.

Until then the old version is in use, whatever happens.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.arrays import Floats, Integers
from graphcl.errors import ParameterError, RunError, counted, demand, option, require
from graphcl.estimator.fitted import Fitted, align
from graphcl.estimator.fitting import retrain as train_on
from graphcl.estimator.inference import embed_fitted
from graphcl.evaluation.drift import measure_drift
from graphcl.files.records import Answer
from graphcl.graphs.changing import Changed, rows_differ
from graphcl.graphs.graph import Graph
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.graph import read_tables, run_tables
from graphcl.runs.nodes import trained_tables, type_folder
from graphcl.store.columns import Ids
from graphcl.store.header import MASKS
from graphcl.store.reader import in_order, reordered
from graphcl.tabular.options import TableOptions
from graphcl.tabular.times import moment_of
from graphcl.updating.matching import Grown, grow
from graphcl.updating.version import (
    Levels,
    Old,
    every_row,
    reached_rows,
    update_lines,
    write_changed,
    write_drift,
    write_graph,
    write_model,
    write_result,
    write_tables,
)


@dataclass(frozen=True, repr=False)
class Update(Answer):
    """What an update did.

    Attributes:
        version: the number of the new version, which is now the current one.
        path: its folder.
        about: what its `version.json` says: counts of changes, of embedded nodes, seconds.
        drift: how far embeddings moved, as `drift.json` has it; None without old embeddings.
        removed: old versions that were removed, because there were too many.
        lines: the same for a terminal.
    """

    version: int
    path: Path
    about: dict[str, Any]
    drift: dict[str, Any] | None
    removed: tuple[int, ...]
    lines: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the update as JSON has it."""
        shown = {"path": str(self.path), "removed_versions": list(self.removed)}
        return {**self.about, **shown, "drift": self.drift}

    def columns(self) -> dict[str, Any]:
        """Returns a row of counts: of nodes, of those embedded again, and of changes."""
        counts = {name: self.about[name] for name in ("version", "nodes", "embedded")}
        return {name: [one] for name, one in (counts | self.about["changes"]).items()}

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def update_run(
    run: Path,
    before: Callable[[Path], Graph],
    tables: TableOptions,
    *,
    edges: Any = None,
    remove_nodes: Any = None,
    remove_edges: Any = None,
    retrain: bool = False,
    epochs: int | None = None,
    keep: int = versions.KEEP,
    device: torch.device,
    verbose: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> Update:
    """Does what `graphcl.Run.update` describes.

    `before` is called with the folder of the version in use, and returns its graph, no other. The
    run is held then: a graph that was opened earlier may be that of a version which another update
    replaced.
    """
    given = (tables.nodes, edges, remove_nodes, remove_edges)
    alone = all(one is None for one in given)  # then the run's own tables are read again
    demand(
        retrain or not alone or tables.until is not None,
        f"update: nothing to do: give tables, or {option('retrain', True)}",
        ParameterError,
    )
    others = [name for name in tables.given() if name != "until"]
    require(
        not (alone and others and tables.until),
        "update",
        option(others[0] if others else "until"),
        f"left out with {option('until')} and no tables, which are read as in training",
        "it",
    )
    require(
        epochs is None or retrain,
        "update",
        option("epochs"),
        f"given with {option('retrain', True)}",
        epochs,
    )
    require(keep >= 1, "update", option("keep"), "at least 1", keep)
    clock = _Clock()
    run = versions.run_root(run)
    runs.read_config(run)
    with versions.changing(run):
        check, base = versions.kept_place(run), versions.current_run(run)
        graph = before(base)
        config, old = _read_old(base, graph)
        typed = not old.fitted.schema.is_plain
        clock("reading the run")
        options = delta_options(base, replace(tables, nodes=None))
        if tables.until is not None:
            demand(
                options.time or options.label_time or not config.origin.tables,
                f"{run}: its tables have no times, so nothing says what came until "
                f"{tables.until}; train with {option('time')}, or leave {option('until')} out",
                RunError,
            )
            day = (trained_tables(base) or TableOptions()).until
            demand(
                day is None or not _is_earlier(tables.until, day),
                f"{run}: is as of {day}; {option('until')} moves it forward, and "
                f"{option('rollback', True)} goes back",
                RunError,
            )
        if alone and tables.until is not None:
            grown = _read_again(base, graph, tables.until)
        else:
            grown = grow(
                _with_preparations(graph, options),
                options,
                nodes=tables.nodes,
                edges=edges,
                remove_nodes=remove_nodes,
                remove_edges=remove_edges,
            )
        for line in grown.notes:
            on_note(line)
        new = grown.changed.graph
        clock("changing the graph")
        fitted, levels = old.fitted, reached_rows(old, grown.changed)
        affected = levels[-1]
        with versions.new_version(run) as (number, folder), ThreadPoolExecutor(1) as pool:
            # Files of the graph go to the disk while embeddings are computed.
            written = pool.submit(write_graph, folder, grown, base, graph.store)
            if retrain:
                fitted = train_on(fitted, new, epochs=epochs, device=device, verbose=verbose)
                clock("training on")
                rows = every_row(new)
                fresh = embed_fitted(fitted, new, device=device, verbose=verbose)
                _align(fitted, fresh, old, grown, affected, on_note)
                unlike = replace(old, z=None)
                z = write_tables(folder, unlike, grown.changed, rows, fresh)
            else:
                where: Any = {"device": device, "scratch": run.absolute()}
                z, rows = write_changed(folder, old, grown.changed, levels, **where)
            clock("embedding")
            shown = new.labelled_type or max(new.nodes, key=lambda name: new.nodes[name].num_nodes)
            drift = None
            if old.z is not None:
                moved = rows if retrain else affected
                kept = grown.changed.kept[shown]
                drift = measure_drift(old.z[shown], z[shown], kept, moved[shown])
            clock("measuring drift")
            written.result()
            config = _as_of(config, grown.until)
            write_model(folder, base, config, fitted, retrained=retrain)
            clock("writing")
            about: dict[str, Any] = {
                "version": number,
                "run": run.absolute().name,
                "from": int(base.name) if base != run else 0,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "nodes": new.num_nodes,
                "edges": new.num_edges,
                "embedded": sum(map(len, rows.values())),
                "changes": grown.counts,
            }
            about |= {"until": grown.until} if grown.until else {}
            if typed:
                about["types"] = {name: one.num_nodes for name, one in new.nodes.items()}
            if retrain:
                more = fitted.history[len(old.fitted.history) :]
                aligned = fitted.alignment is not None
                about["retrained"] = {
                    "epochs": len(more),
                    "loss": more[-1].loss,
                    "aligned": aligned,
                }
            about["seconds"] = clock.seconds
            found = write_drift(folder, new.nodes[shown], drift, about)
            write_result(folder, base, fitted, new, retrained=retrain)
            runs.write_object(folder / versions.ABOUT, about)
            check()
        removed = versions.keep_newest(run, keep)
        path = versions.current_run(run)
    lines = update_lines(run, about, drift, path if found is not None else None, removed)
    return Update(number, path, about, found, tuple(removed), tuple(lines))


class _Clock:
    """Seconds by the name of a step."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def __call__(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step], self._began = round(now - self._began, 3), now


def _read_old(base: Path, graph: Graph) -> tuple[runs.RunConfig, Old]:
    """Reads the version that an update begins with."""
    config = runs.read_config(base)
    folders = {name: type_folder(base, name) for name in graph.nodes}
    if not all(map(runs.has_embeddings, folders.values())):
        return config, Old(base, Fitted.read(base), None, graph)
    z = {name: runs.read_embeddings(folder) for name, folder in folders.items()}
    for name, own in graph.nodes.items():
        count = len(z[name])
        demand(
            count == own.num_nodes,
            f"{base}: {count} embeddings for a graph of {own.num_nodes} nodes",
            RunError,
        )
    return config, Old(base, Fitted.read(base), z, graph)


def delta_options(base: Path, given: TableOptions) -> TableOptions:
    """Returns the options to read new tables with: those given, completed from the training's.

    Raises:
        RunError: what the run keeps of them is damaged.
    """
    trained = trained_tables(base) or TableOptions()
    merged = given.after(trained)
    return replace(
        merged,
        until=given.until,
        label=given.label or trained.label,
        label_separator=given.label_separator or trained.label_separator,
        split=given.split or trained.split,
    )


def _with_preparations(graph: Graph, options: TableOptions) -> Graph:
    """Returns the graph with what made the features of its edges, which the run keeps."""
    known = options.edge_preparations or {}
    relations = {
        key: replace(one, preparation=known.get(":".join(key), one.preparation))
        for key, one in graph.relations.items()
    }
    return replace(graph, relations=relations)


def _as_of(config: runs.RunConfig, until: str) -> runs.RunConfig:
    """Returns what is known of a run, with the day that its graph is of now."""
    if not until or not config.origin.tables:
        return config
    options = TableOptions.from_record(config.origin.tables, None)
    if options.until is None or not _is_earlier(until, options.until):
        options = replace(options, until=until)
    return replace(config, origin=replace(config.origin, tables=options.record()))


def _read_again(run: Path, graph: Graph, until: str) -> Grown:
    """Reads the tables that a run was trained on as of a later day.

    Whatever they say counts: rows that came since, and rows that were changed or taken out.

    Args:
        run: the version that is updated.
        graph: its graph.
        until: the new day.

    Raises:
        RunError: it was not trained on tables.
    """
    name, options = run_tables(run)
    new, report = read_tables(name, replace(options, until=until))
    found = {kind: Ids(own.ids).find(new.nodes[kind].ids) for kind, own in graph.nodes.items()}
    # Known nodes come first, as they stood, then new ones.
    last = {kind: np.where(rows < 0, np.iinfo(np.int64).max, rows) for kind, rows in found.items()}
    order = {kind: np.argsort(rows, kind="stable") for kind, rows in last.items()}
    new = _ordered(new, {kind: np.argsort(rows) for kind, rows in order.items()})
    kept = {kind: np.sort(rows[rows >= 0]) for kind, rows in found.items()}
    every = {kind: np.arange(one.num_nodes) for kind, one in new.nodes.items()}
    counts = {
        "new_nodes": new.num_nodes - sum(map(len, kept.values())),
        "removed_nodes": graph.num_nodes - sum(map(len, kept.values())),
        "changed_nodes": sum(_differing(graph, new, kind, rows) for kind, rows in kept.items()),
        "edges_before": graph.num_edges,
        "edges_after": new.num_edges,
    }
    notes = [*report.first, *report.lines]
    return Grown(Changed(new, kept, every, every), counts, notes, until)


def _is_earlier(day: str, other: str) -> bool:
    """Returns whether a day is earlier than another.

    Raises:
        GraphError: one is a date, and the other a number.
    """
    dates = "-" in other[1:]
    return moment_of(day, dates=dates) < moment_of(other, dates=dates)


def _ordered(graph: Graph, places: Mapping[str, Integers]) -> Graph:
    """Returns the graph with row u of a type at ``places[u]``."""
    nodes, relations = {}, {}
    for kind, own in graph.nodes.items():
        held = {name: getattr(own, name) for name in ("x", "y", *MASKS)} | {"node_ids": own.ids}
        there = {name: in_order(one, places[kind]) for name, one in held.items() if one is not None}
        nodes[kind] = replace(own, **there)
    for key, one in graph.relations.items():
        moved = reordered(vars(one), places[key[2]], places[key[0]])
        relations[key] = replace(one, **moved)
    return replace(graph, nodes=nodes, relations=relations)


def _differing(graph: Graph, new: Graph, kind: str, kept: Integers) -> int:
    """Returns how many nodes that stayed have other features."""
    first: Any = graph.nodes[kind].x
    second: Any = new.nodes[kind].x
    if first is None or second is None:
        return 0
    return int(rows_differ(first[kept], second[: len(kept)]).sum())


def _align(
    fitted: Fitted,
    z: Mapping[str, Floats],
    old: Old,
    grown: Grown,
    affected: Levels,
    on_note: Callable[[str], None],
) -> None:
    """Turns embeddings of a model that was trained on to the old space, and the model with them.

    The nodes that decide the turn are those with unchanged surroundings; if they are fewer than
    there are dimensions, all that stayed. One turn serves all types: they share a space.
    """
    kept = grown.changed.kept
    if old.z is None or not any(map(len, kept.values())):
        on_note("update: there are no old embeddings to align to")
        return
    same = {
        name: np.setdiff1d(np.arange(len(rows)), affected[name], assume_unique=True)
        for name, rows in kept.items()
    }
    count = sum(map(len, same.values()))
    if count < next(iter(z.values())).shape[1]:
        on_note(
            f"update: {counted(count, 'node has', 'nodes have')} unchanged surroundings; the "
            "new space is aligned on all nodes that stayed"
        )
        same = {name: np.arange(len(rows)) for name, rows in kept.items()}
    new = np.concatenate([z[name][rows] for name, rows in same.items()])
    before = np.concatenate([old.z[name][kept[name][rows]] for name, rows in same.items()])
    fitted.alignment = align(new, before)
    for rows_of_type in z.values():
        fitted.alignment.apply(rows_of_type)
