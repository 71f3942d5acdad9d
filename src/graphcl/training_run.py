"""A training's life: from its beginning to the finished run, through whatever happens on the way.

`train_run` is what `graphcl train` does once it has a graph and a recipe. In order:

1. *Found*: with ``resume``, a run that is there already and is the one asked for is the result.
2. *Begin*: the place of the run is checked and taken. Until the run is complete everything lies in
   ``RUN.partial``, which one process at a time holds (`unfinished_run`).
3. *Train*: `GraphCL.fit` saves checkpoints there now and then (`graphcl.training.checkpoints`).
   With ``resume`` it goes on from the newest one.
4. *Finish*: nodes are embedded, the probe scores them, and the run appears by one rename. Then
   ``RUN.partial`` goes.
5. *Fail*: interrupted, on a full disk or after another process died or fell silent, what was saved
   stays, and the error says how to go on (`_ending_early`, `_among_others`).

In a group of processes all of them train. The first one alone looks at files and writes; the others
hear what it found (`agree`). Over a graph in parts, one process of each host keeps checkpoints
(`graphcl.training.checkpoints`), and the run has no embeddings: `graphcl embed` writes those.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from filelock import FileLock, Timeout

from graphcl.devices import device_name, peak_memory_bytes, reset_peak_memory
from graphcl.distributed import Share, any_of, from_rank, group, restarted
from graphcl.errors import (
    GraphError,
    InvalidInputError,
    RunError,
    TrainingEndedError,
    counted,
    demand,
)
from graphcl.estimator.model import GraphCL
from graphcl.estimator.partitioned import PartitionedGraph
from graphcl.evaluation.failure import majority_sign
from graphcl.evaluation.logistic import MultilabelResult
from graphcl.evaluation.probe import ProbeResult
from graphcl.files.arrays import write_npy
from graphcl.files.atomic import whole_file
from graphcl.graphs.collection import GraphCollection, Labelled
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling
from graphcl.opening import AnyGraph
from graphcl.recipes import Recipe
from graphcl.runs import files as runs
from graphcl.runs.nodes import (
    describe_nodes,
    lacks_embeddings,
    type_folder,
    write_nodes,
    write_parted_types,
    write_types,
)
from graphcl.runs.versions import kept_place
from graphcl.training import Checkpoints
from graphcl.training.checkpoints import Pace, StoppedError
from graphcl.training.loop import PartedMetrics
from graphcl.training.progress import tracked
from graphcl.version import versions

LOCK = ".lock"
T = TypeVar("T")
Data = AnyGraph | PartitionedGraph
# Embeddings, and the labelled nodes that they are of, to scores.
Probe = Callable[[Any, Labelled], ProbeResult | MultilabelResult]


class Interruption(Protocol):
    """Whether somebody has asked the training to stop; a signal handler sets it.

    Attributes:
        patient: whether a first signal waits for the end of the step; else it stops at once.
    """

    patient: bool

    def __call__(self) -> bool:
        """Says whether to stop after the step under way, and save."""


def train_run(
    model: GraphCL,
    graph: Data,
    out: Path,
    *,
    origin: runs.Origin,
    probe: Probe,
    pace: Pace = Pace(),  # noqa: B008 (frozen)
    overwrite: bool = False,
    resume: bool = False,
    interruption: Interruption | None = None,
    trackers: tuple[str, ...] = (),
    introduction: str = "",
    patience: timedelta | None = None,
) -> runs.TrainingResult | None:
    """Trains `model` on `graph` and writes the run `out`; returns its result.

    Args:
        model: not yet fitted; its device is where to train.
        graph: what to train on.
        out: the run directory.
        origin: what the run keeps of the graph.
        probe: scores embeddings; the result keeps what it returns.
        pace: how often to save a checkpoint.
        overwrite: replace a run that is there.
        resume: go on from the last checkpoint, if there is one.
        interruption: asked after each step.
        trackers: where epochs are logged; see `graphcl.training.progress`.
        introduction: printed on stderr before training begins.
        patience: how long processes wait for each other; PyTorch's default if None.

    Returns:
        The result; None in every process of a group but the first.

    Raises:
        RunError: the place is taken, or a file could not be written.
        TrainingEndedError: interrupted, or a process of the group died.
    """
    device = torch.device(model.device)
    stop = interruption or (lambda: False)
    with ExitStack() as stack:
        stack.enter_context(_among_others(patience))
        share = stack.enter_context(group(device, patience=patience))
        resume = any_of(resume or restarted(), share)  # of several hosts only one may know
        if resume and not overwrite and agree(lambda: _is_complete(out, model, origin), share):
            if isinstance(graph, PartitionedGraph):
                _tidy_hosts(partial_folder(out), share, None)
            return runs.read_training_result(out) if share.first else None
        if isinstance(graph, PartitionedGraph):
            stack.push(partial(_tidy_hosts, partial_folder(out), share))
        place = unfinished_run(out, overwrite=overwrite, resume=resume)
        folder = Path(agree(lambda: str(stack.enter_context(place)), share))
        if share.first and introduction:
            print(introduction, file=sys.stderr)
        reset_peak_memory(device)
        with _ending_early(folder, share):
            parts = isinstance(graph, PartitionedGraph)
            checkpoints = Checkpoints(folder, **pace._asdict(), stop=stop, every_host=parts)
            if interruption is not None:
                interruption.patient = True
            # A run appears whole when training ends, but curves are watched before: until then they
            # lie beside the checkpoints, and a training that is resumed adds to them.
            with tracked(
                trackers if share.first else (),
                curves=folder / runs.CURVES,
                file=folder / runs.EPOCHS,
                title=out.name,
                settings={"seed": model.seed, **asdict(model.complete_recipe())},
            ) as on_epoch:
                model.fit(graph, checkpoints=checkpoints, resume=resume, on_epoch=on_epoch)
            if interruption is not None:
                interruption.patient = False
            z: Any = None
            if not isinstance(graph, PartitionedGraph):
                above = next(one for one in out.absolute().parents if one.exists())
                z = embed_rows(model, graph, scratch=above)
            if not share.first:
                return None
            scores, why = _scores(z, graph, probe, out)
            result = _result(model, graph, origin.graph, scores, why)
            with runs.new_run(out, overwrite=overwrite, within=folder) as staging:
                model.write_to(staging, origin)
                result.write(staging)
                if isinstance(graph, PartitionedGraph):
                    write_parted_types(staging, graph.path)
                else:
                    write_types(staging, graph, z)
                for log in runs.LOGS:
                    if (folder / log).exists():
                        (folder / log).rename(staging / log)
            return result


def embed_rows(
    model: GraphCL, graph: Graph | GraphCollection, *, scratch: Path | None = None
) -> Any:
    """Returns the embeddings of a graph: an array, or one for each type if there are several.

    Those of a collection are one below the other.
    """
    if isinstance(graph, GraphCollection):
        return np.concatenate(model.transform(graph))
    return model.transform(graph, scratch=scratch)


def _scores(z: Any, graph: Data, probe: Probe, out: Path) -> tuple[runs.Scores | None, str | None]:
    """Returns the probe's scores, or the reason there are none: a graph needs no labels.

    Of a graph with types, they are those of the first type that has any, with its name; those of
    others are beside them.
    """
    if isinstance(graph, PartitionedGraph):
        count = len(graph.store)
        run, shards = (shlex.quote(str(one)) for one in (out, out.with_name(f"{out.name}_shards")))
        return None, f"embed the parts: graphcl embed {run} --processes {count} --out {shards}"
    plain, labelled = graph.is_plain, dict[str, Labelled]({"": graph})
    if isinstance(graph, Graph) and not plain:
        labelled = {**graph.nodes}
    found: dict[str, dict[str, Any]] = {}
    why = "the graph has no labels" if plain else "no type has labels"
    for name, nodes in labelled.items():
        if nodes.y is None:
            continue
        try:
            scores = probe(z[name] if name else z, nodes)
            found[name] = ({"type": name} if name else {}) | asdict(scores)
        except GraphError as error:
            why = f"{name}: {error}" if name else str(error)
    if not found:
        return None, why
    first, *others = found
    beside = {"others": {name: found[name] for name in others}} if others else {}
    return found[first] | beside, None


def agree(work: Callable[[], T], share: Share) -> T:
    """Returns what `work` returns on rank 0, or raises there what it raises, on every rank.

    For what looks at files, which only rank 0 need have. The result must be plain, as in JSON.
    """
    found: dict[str, Any] = {}
    if share.first:
        try:
            found = {"value": work()}
        except RunError as error:
            found = {"error": str(error)}
    if share.world > 1:
        found = json.loads(from_rank(json.dumps(found).encode(), share))
    if "error" in found:
        raise RunError(found["error"])
    return cast("T", found["value"])


def _is_complete(out: Path, model: GraphCL, origin: runs.Origin) -> bool:
    """Says whether the run that is asked for is there already, and tidies up after it."""
    if not (out / runs.RESULT).is_file():
        return False
    config = runs.read_config(out)
    try:
        found = Recipe.from_mapping(config.recipe, where=str(out))
        wanted = model.complete_recipe(config.recipe)
    except InvalidInputError:
        return False
    if (found, config.seed, config.origin) != (wanted, model.seed, origin):
        return False
    runs.read_training_result(out)  # or it is damaged
    if partial_folder(out).exists():
        with unfinished_run(out, overwrite=True):
            pass  # left by a process that died between finishing and tidying up
    print(f"{out}: already complete", file=sys.stderr)
    return True


@contextmanager
def _ending_early(folder: Path, share: Share) -> Iterator[None]:
    """Says, however training ends before its time, what was saved and how to go on."""
    try:
        yield
    except (StoppedError, KeyboardInterrupt) as error:
        at = f" at {error}" if isinstance(error, StoppedError) else ""
        what = "nothing was saved"
        if any(folder.glob("checkpoint-*")):
            what = f"saved in {folder}; go on with the same command and --resume"
        message = f"graphcl train: interrupted{at}; {what}" if share.first else ""
        raise TrainingEndedError(message, 130) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{error.filename or folder}: could not be written ({reason}); the "
            f"training is saved in {folder}: make room, then go on with --resume"
        ) from None


@contextmanager
def _among_others(patience: timedelta | None) -> Iterator[None]:
    """Says, where another process has died or is silent, what happened and after how long."""
    try:
        yield
    except RuntimeError as error:
        rank, world = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            rank, world = str(dist.get_rank()), dist.get_world_size()
        if world == 1:
            raise
        why = why_others(str(error).partition("\n")[0], patience)
        raise TrainingEndedError(f"graphcl train: rank {rank} stops: {why}", 1) from None


def why_others(said: str, patience: timedelta | None) -> str:
    """Returns in plain words what gloo says of another process, or what it says."""
    again = "go on with the same command and --resume"
    if re.search("time.{0,2} ?out", said, re.IGNORECASE):
        waited = (patience or timedelta(minutes=30)).total_seconds()
        return (
            f"another process was silent for {waited:g} s (--timeout): it is stopped or very "
            f"slow, or the network is down; {again}"
        )
    closed = re.search(r"Connection (?:closed|reset) by peer(?: (\[[\d.:a-f]+\]:\d+))?", said)
    if closed:
        which = f", {closed[1]}," if closed[1] else ""
        return f"another process{which} has ended, and its own output says why; {again}"
    return said


def _tidy_hosts(folder: Path, share: Share, error: object, *_: object) -> None:
    """Removes the checkpoints of a complete run on other hosts than that of the first process."""
    if error is not None:
        return
    any_of(False, share)  # the first process has finished the run
    if not share.first:
        for saved in folder.glob("checkpoint-*"):
            shutil.rmtree(saved, ignore_errors=True)
        with suppress(OSError):  # not there, or not empty: somebody else's
            folder.rmdir()


def _result(
    model: GraphCL, graph: Data, source: str, scores: runs.Scores | None, why: str | None
) -> runs.TrainingResult:
    last, device = model.history_[-1], torch.device(model.device)
    health, found = model.health_, majority_sign(scores, asdict(model.recipe_))
    labelled = graph.labelled_type if isinstance(graph, Graph) else None
    classes = graph.nodes[labelled].class_names if isinstance(graph, Graph) and labelled else ()
    signs = (*health.warnings, *([found] if found else []))
    scaling, traffic = model.scaling_, {}
    if isinstance(last, PartedMetrics):
        traffic = {key: asdict(last)[key] for key in ("sent_bytes", "cache_hits")}
    facts = (
        runs.GraphFacts.plain(graph.store, source)
        if isinstance(graph, PartitionedGraph)
        else runs.GraphFacts.of(graph, source)
    )
    return runs.TrainingResult(
        graph=facts,
        probe=scores,
        probe_skipped=why,
        mode=model.mode_._asdict(),
        epochs=last.epoch,
        loss=last.loss,
        mi_bound=last.mi_bound,
        seed=model.seed_,
        recipe_hash=model.recipe_.hash,
        scaling=scaling.describe() if isinstance(scaling, ColumnScaling) else "",
        traffic=traffic,
        train_seconds=model.seconds_,
        peak_memory_bytes=peak_memory_bytes(device),
        device=device_name(device),
        versions=versions(),
        note=graph.note if isinstance(graph, GraphCollection) else "",
        effective_rank=health.effective_rank,
        mean_cosine=health.mean_cosine,
        warnings=[asdict(sign) for sign in signs],
        class_names=classes,
    )


def keep_embeddings(run: Path, graph: AnyGraph, *, device: str = "auto") -> None:
    """Embeds the graph of a run and keeps the result in it, unless it has embeddings already.

    Rows are in the order of the graph, so `graph` is the one that was divided, not one of parts.

    Raises:
        RunError: the run cannot be written.
    """
    if not lacks_embeddings(run):
        return
    about = f"{run}: was trained over parts; embedding {counted(graph.num_nodes, 'node')}"
    print(f"{about}, kept in the run", file=sys.stderr, flush=True)
    where = "cuda" if device == "auto" and torch.cuda.is_available() else device
    check = kept_place(run)  # of another training they would stay
    model = GraphCL.read_from(run, device="cpu" if where == "auto" else where)
    try:
        z = embed_rows(model, graph, scratch=run.absolute())
        check()
        by_type = z if isinstance(z, dict) else {None: z}
        for name, rows in by_type.items():
            folder = type_folder(run, name)
            folder.mkdir(parents=True, exist_ok=True)
            write_nodes(folder, describe_nodes(graph, name))
            with whole_file(folder / runs.EMBEDDINGS) as staging:  # last: it says that all is there
                write_npy(staging, rows)
    except OSError as error:
        raise RunError(f"{run}: its embeddings cannot be kept ({error.strerror})") from None


def partial_folder(path: Path) -> Path:
    """Returns where the unfinished training of a run lies: beside it."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def unfinished_run(path: Path, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
    """Yields the folder of an unfinished run, empty or to be resumed.

    The folder is removed when the block ends. If the block raises, a folder with checkpoints
    stays. Files that a training did not write are never touched. Only one process at a time can
    hold the folder: a lock ensures it, and the lock ends with the process, even by `kill -9`.

    Raises:
        RunError: the place is taken, an unfinished training is there and is neither resumed nor
            overwritten, or another process is at work on it.
    """
    runs.check_output(path, overwrite=overwrite)
    folder = partial_folder(path)
    demand(
        not folder.exists() or folder.is_dir(),
        f"{folder}: is a file; checkpoints need a directory of that name",
        RunError,
    )
    demand(
        not folder.exists() or overwrite or resume or _is_idle(folder),
        f"{folder}: holds an unfinished training; go on with --resume, "
        "or begin anew with --overwrite",
        RunError,
    )
    made = [folder, *(above for above in folder.parents if not above.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise RunError(f"{folder}: another process is training this run") from None
    done = False
    try:
        with held:
            for entry in _own_entries(folder, path):
                kept = entry.name.startswith("checkpoint-") or entry.name in runs.LOGS
                if entry.name != LOCK and not (resume and kept):
                    shutil.rmtree(entry, ignore_errors=True)  # of a process that died while writing
            try:
                yield folder
                done = True
            finally:
                if done or _is_idle(folder):
                    _tidy(folder, path)
    finally:
        with suppress(OSError):  # not empty: checkpoints, the run, or somebody else's
            for one in made:
                one.rmdir()


def _own_entries(folder: Path, path: Path) -> list[Path]:
    """Returns what a training of `path` has left in its folder."""
    named = ("checkpoint-", ".checkpoint-", f".{path.name}.")
    return [
        entry
        for entry in folder.iterdir()
        if entry.name.startswith(named) or entry.name in (LOCK, *runs.LOGS)
    ]


def _tidy(folder: Path, path: Path) -> None:
    """Removes what is a training's."""
    for entry in _own_entries(folder, path):
        if entry.is_dir():
            shutil.rmtree(entry)
            continue
        with suppress(PermissionError):  # the lock, where it goes when it is released
            entry.unlink()


def _is_idle(folder: Path) -> bool:
    """Says whether nothing in an unfinished run is worth keeping."""
    return not any(folder.glob("checkpoint-*"))
