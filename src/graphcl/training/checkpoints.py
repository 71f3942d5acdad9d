"""Checkpoints: a training that stopped goes on as if it had not.

A checkpoint is a folder with `state.safetensors` (weights, Adam's moments, the results of the epoch
under way) and `checkpoint.json` (what is trained, position, history, and a sha256 of either file).
It appears whole or not at all (see `graphcl.files.atomic`). The newest checkpoints are kept. A
damaged one is skipped with a warning.

No random state is in it. Every draw is a function of seed, epoch and step (`graphcl.seeding`), so
the position says it all, as long as the function stays the same. A checkpoint of a sampled training
says which function it was (`graphcl.sampling.DRAWS`). With another one, training would not go on
as if it had not stopped, and is refused.

A training over parts has a copy on every host, and all of them of one step:

    FOLDER/checkpoint-00000001-00000040/part-00000/     the state, written as above
    FOLDER/checkpoint-00000001-00000040/part-00002/     by one process of each host
    FOLDER/checkpoint-00000001-00000040/complete.json   written when all copies are

They are written in two phases. First one process of each host writes its copy, and all wait for
each other. Then `complete.json` appears. A set without it is never read, so a process that dies at
any moment leaves the set before, or a complete one. FOLDER may be on a shared disk, or on one of
each host: any complete set that any process finds is as good as another, because all copies are of
the same step, and the state is the same in all processes. It is read by one process, which tells
the others.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from graphcl.distributed import Share, any_of, current_share, from_rank, max_over
from graphcl.errors import ParameterError, RunError, option, require
from graphcl.files.atomic import remove_folder, whole_folder, write_whole
from graphcl.sampling import DRAWS
from graphcl.store.header import part_name
from graphcl.training.loop import TrainingState, metrics_of

FORMAT = 1
STATE, ABOUT = "state.safetensors", "checkpoint.json"
EVERY_SECONDS = 60.0
COMPLETE = "complete.json"
KEEP = 2  # the second is for the day the first is found damaged


class Pace(NamedTuple):
    """How often to save; see `Checkpoints`."""

    every_seconds: float = EVERY_SECONDS
    every_epochs: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``60s``, ``5min``, ``10epochs`` or ``never``.

        Raises:
            ParameterError: it is none of these.
        """
        if text == "never":
            return cls(0.0)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|epochs?)", text.replace(" ", ""))
        if not found or float(found[1]) == 0 or ("." in found[1] and "epoch" in found[2]):
            raise ParameterError(
                f"train: {option('checkpoint_every')} must be like 60s, 5min, 10epochs or never; "
                f"got {text!r}"
            )
        if "epoch" in found[2]:
            return cls(0.0, int(found[1]))
        return cls(float(found[1]) * (60 if found[2] == "min" else 1))


class StoppedError(Exception):
    """Training was asked to stop, and its state is saved."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: `checkpoint.json`, and the tensors of `state.safetensors`."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]

    def restore(self, state: TrainingState) -> None:
        """Puts the state in place of a training's own."""
        own = {name: name.partition(".") for name in self.tensors}
        weights = {rest: self.tensors[name] for name, (kind, _, rest) in own.items() if kind == "w"}
        state.encoder.load_state_dict(weights)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, (kind, _, rest) in own.items():
            if kind == "adam":
                number, _, moment = rest.partition(".")
                moments.setdefault(int(number), {})[moment] = self.tensors[name]
        groups = state.optimiser.state_dict()["param_groups"]
        state.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        device = next(state.encoder.parameters()).device
        state.results = list(self.tensors["results"].to(device)) if "results" in own else []
        state.epoch, state.step = self.about["epoch"], self.about["step"]
        state.sizes, state.seconds = list(self.about["sizes"]), self.about["seconds"]
        state.history = [metrics_of(line) for line in self.about["history"]]


class Checkpoints:
    """Saves a training now and then, when it is asked to stop, and at its end.

    Pass it to `train` as `on_step`. In a group of processes rank 0 writes; all stop together.

    Args:
        folder: where checkpoints lie, one folder each.
        every_seconds: save when so much time has passed since the last one; 0: never by time.
        every_epochs: save when so many epochs have ended since the last one; 0: never by epochs.
        keep: how many to keep.
        stop: asked after each step; True saves and raises `StoppedError`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_seconds: float = EVERY_SECONDS,
        every_epochs: int = 0,
        keep: int = KEEP,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        require(every_seconds >= 0, "Checkpoints", "every_seconds", "0 or more", every_seconds)
        require(every_epochs >= 0, "Checkpoints", "every_epochs", "0 or more", every_epochs)
        require(keep >= 1, "Checkpoints", "keep", "at least 1", keep)
        self.folder, self.keep, self.stop = Path(folder), keep, stop
        self.every_seconds, self.every_epochs = every_seconds, every_epochs
        self.trained: Mapping[str, Any] = {}
        self._last_time, self._last_epoch = time.monotonic(), 0
        self._share = current_share()
        self._good = ""  # the name of the checkpoint that was last written or read

    def begin(self, trained: Mapping[str, Any], saved: Saved | None = None) -> None:
        """Says what is trained (recipe, graph and seed, as plain values) and from where."""
        self.trained, self._share = trained, current_share()
        self._last_time = time.monotonic()
        self._last_epoch = saved.about["epoch"] if saved else 0

    def __call__(self, state: TrainingState) -> None:
        """Saves where it is time to; raises `StoppedError` where that is asked for."""
        stopping = any_of(self.stop(), self._share)
        by_time = 0 < self.every_seconds <= time.monotonic() - self._last_time
        by_epoch = 0 < self.every_epochs <= state.epoch - self._last_epoch
        if stopping or by_time or by_epoch or state.epoch == state.epochs:
            self.save(state)
        if stopping:
            raise StoppedError(f"epoch {state.epoch + 1}, step {state.step}")

    def save(self, state: TrainingState) -> None:
        """Writes a checkpoint and removes those beyond the last `keep`.

        Raises:
            RunError: it cannot be written, as on a full disk; those before it are as they were.
        """
        self._last_time, self._last_epoch = time.monotonic(), state.epoch
        if not self._share.first:
            return  # every rank holds the same state
        path = self.folder / f"checkpoint-{state.epoch:08d}-{state.step:08d}"
        if path.name == self._good:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_state(path, state_tensors(state), state_about(state, self.trained))
        except OSError as error:
            names = [one.name for one in self._paths()]
            before = f"; {names[-1]} is intact" if names else ""
            reason = error.strerror or str(error)
            raise RunError(f"{path}: could not be written ({reason}){before}") from None
        self._good = path.name
        paths = self._paths()
        here = paths.index(path)
        # Beyond this position lies only what was found damaged when training went on from before.
        for old in paths[: max(0, here + 1 - self.keep)] + paths[here + 1 :]:
            remove_folder(old)
        for left in self.folder.glob(".checkpoint-*"):  # of processes that died here
            shutil.rmtree(left, ignore_errors=True)

    def latest(self, trained: Mapping[str, Any]) -> Saved | None:
        """Returns the newest checkpoint that is whole, or None where there is none at all.

        Rank 0 reads and tells the others: only its host needs the files.

        Raises:
            RunError: there are checkpoints and all are damaged, they are of another training, or
                of a version whose sampled training draws differently.
        """
        share = current_share()
        content, failure = b"", ""
        if share.first:
            try:
                content = self._newest(trained)
            except RunError as error:
                failure = str(error)
        failure = from_rank(failure.encode(), share).decode()
        if failure:
            raise RunError(failure)
        content = from_rank(content, share)
        return parse_state(content) if content else None

    def begun(self, keys: Collection[str]) -> dict[str, Any] | None:
        """Returns some keys of what the newest readable checkpoint is of; None if there is none."""
        share, found = current_share(), None
        for path in reversed(self._paths()) if share.first else ():
            with suppress(RunError):
                found = parse_state(read_state(path)).about["trained"]
                break
        found = json.loads(from_rank(json.dumps(found).encode(), share))
        return None if found is None else {key: found[key] for key in keys if key in found}

    def _newest(self, trained: Mapping[str, Any]) -> bytes:
        paths = self._paths()
        if any(any(path.glob("part-*")) for path in paths):
            raise RunError(
                f"{self.folder}: holds checkpoints of a training over parts; go on with its parts, "
                "or choose another place"
            )
        for path in reversed(paths):
            try:
                content = read_state(path)
            except RunError as error:
                print(f"{error}; trying the one before it", file=sys.stderr, flush=True)
                continue
            about = parse_state(content).about
            require_same(about["trained"], trained, path)
            require_same_draws(about, path)
            self._good = path.name
            return content
        if paths:
            raise RunError(f"{self.folder}: every checkpoint is damaged; begin anew")
        return b""

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("checkpoint-*") if path.is_dir())


def state_tensors(state: TrainingState) -> dict[str, Tensor]:
    """Returns the tensors of a state, by the names that they have in a checkpoint."""
    tensors = {f"w.{name}": weight for name, weight in state.encoder.state_dict().items()}
    for number, moments in state.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": moment for name, moment in moments.items()}
    if state.results:
        tensors["results"] = torch.stack(state.results)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def state_about(state: TrainingState, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `checkpoint.json` says of a state."""
    return {
        "format": FORMAT,
        "draws": DRAWS,
        "trained": dict(trained),
        "epoch": state.epoch,
        "step": state.step,
        "sizes": state.sizes,
        "seconds": state.seconds,
        "history": [asdict(metrics) for metrics in state.history],
    }


def write_state(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Writes a folder with both files of a checkpoint, whole or not at all."""
    content = safetensors.torch.save(tensors)
    about = about | {"sha256": hashlib.sha256(content).hexdigest()}
    about |= {"sha256_about": _digest(about)}
    with whole_folder(path) as staging:  # over one that was damaged, or was not resumed from
        (staging / STATE).write_bytes(content)
        (staging / ABOUT).write_bytes(json.dumps(about, indent=1).encode())


def read_state(path: Path) -> bytes:
    """Returns the checked content of a checkpoint: `checkpoint.json`, a zero byte, the tensors.

    Raises:
        RunError: it is damaged, or of another format.
    """
    try:
        text, content = (path / ABOUT).read_bytes(), (path / STATE).read_bytes()
        about = json.loads(text)
        found = {key: value for key, value in about.items() if key != "sha256_about"}
        whole = about["sha256_about"] == _digest(found)
        whole = whole and about["sha256"] == hashlib.sha256(content).hexdigest()
    except (OSError, ValueError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise RunError(f"{path}: damaged or truncated")
    if about["format"] != FORMAT:
        raise RunError(
            f"{path}: checkpoint format {about['format']!r}; this version reads {FORMAT}"
        )
    return text + b"\0" + content


def parse_state(content: bytes) -> Saved:
    """Returns what `read_state` read."""
    text, _, tensors = content.partition(b"\0")
    try:
        return Saved(json.loads(text), safetensors.torch.load(tensors))
    except SafetensorError as error:
        raise RunError(f"{STATE}: damaged or truncated ({error})") from None


def require_same(saved: Mapping[str, Any], trained: Mapping[str, Any], path: Path) -> None:
    """Refuses a checkpoint of another training, and names the first thing that differs."""
    now = json.loads(json.dumps(trained))
    for name in now:
        if saved.get(name) != now[name]:
            what = f"{name} {saved.get(name)!r}, now {now[name]!r}"
            raise RunError(
                f"{path}: is of another training ({what}); begin anew or undo the change"
            )


def require_same_draws(about: Mapping[str, Any], path: Path) -> None:
    """Refuses a sampled training that would go on with other draws than it began with."""
    if "sampled" in about["trained"].get("modes", ()) and about.get("draws") != DRAWS:
        raise RunError(
            f"{path}: mode 'sampled' draws its views differently since this training began; "
            "begin anew, or go on with the version that began it"
        )


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


class _Found(NamedTuple):
    """The newest complete set that a process can read: its name and content, empty without one."""

    name: str = ""
    content: bytes = b""
    damaged: bool = False


class PartCheckpoints(Checkpoints):
    """Saves a training over parts, as `Checkpoints` does; all processes take part in saving."""

    def __call__(self, state: TrainingState) -> None:
        """Saves where it is time to for any process; raises `StoppedError` where that is asked."""
        by_time = 0 < self.every_seconds <= time.monotonic() - self._last_time
        asked = max_over(torch.tensor([int(self.stop()), int(by_time)]), self._share)
        stopping, due = (bool(one) for one in asked)
        by_epoch = 0 < self.every_epochs <= state.epoch - self._last_epoch
        if stopping or due or by_epoch or state.epoch == state.epochs:
            self.save(state)
        if stopping:
            raise StoppedError(f"epoch {state.epoch + 1}, step {state.step}")

    def begin(self, trained: Mapping[str, Any], saved: Saved | None = None) -> None:
        """Says what is trained and from where; sets that are not of use any more are removed."""
        super().begin(trained, saved)
        for path in self._paths() if _writes() else ():
            if saved is None or path.name > self._good:
                _remove(path)
        self._agree("")  # nobody writes before all have removed

    def save(self, state: TrainingState) -> None:
        """Writes a set of checkpoints in two phases, and removes those beyond the last `keep`.

        Raises:
            RunError: in all processes, if one of them cannot write; earlier sets are as they were.
        """
        self._last_time, self._last_epoch = time.monotonic(), state.epoch
        name = f"checkpoint-{state.epoch:08d}-{state.step:08d}"
        if name == self._good:
            return
        path, problem = self.folder / name, ""
        try:
            if _writes():
                copy = path / part_name(self._share.rank)
                write_state(copy, state_tensors(state), state_about(state, self.trained))
        except OSError as error:
            problem = f"{path}: could not be written ({error.strerror or error})"
        self._agree(problem)  # phase one ends: all copies are written
        try:
            if _writes():
                about = {"format": 1, "processes": self._share.world, "step": name}
                write_whole(path / COMPLETE, json.dumps(about, indent=1) + "\n")
        except OSError as error:
            problem = f"{path}: could not be completed ({error.strerror or error})"
        self._agree(problem)
        self._good = name
        if _writes():
            # Only earlier ones: another process may be at the next set already.
            earlier = [one for one in self._paths() if one.name < name]
            complete = [one for one in earlier if _is_complete(one)]
            for old in set(earlier) - set(complete[len(complete) + 1 - self.keep :]):
                _remove(old)

    def latest(self, trained: Mapping[str, Any]) -> Saved | None:
        """Returns the newest complete set of which any process has a copy, or None.

        Raises:
            RunError: in all processes: there are sets and all copies are damaged, or they are of
                another training, or of a version that draws differently.
        """
        whole = [path for path in self._paths() if (path / STATE).exists()]
        if int(max_over(torch.tensor([len(whole)]), current_share())):
            raise RunError(
                f"{self.folder}: holds checkpoints of a training on a whole graph; go on with that "
                "graph, or choose another place"
            )
        found = self._newest_of_all()
        if not found.name:
            if found.damaged:
                raise RunError(f"{self.folder}: every checkpoint is damaged; begin anew")
            return None
        saved = parse_state(found.content)
        path = self.folder / found.name
        require_same(saved.about["trained"], trained, path)
        require_same_draws(saved.about, path)
        self._good = found.name
        return saved

    def begun(self, keys: Collection[str]) -> dict[str, Any] | None:
        """Returns some keys of what the newest readable set is of; None if there is none."""
        found = self._newest_of_all()
        if not found.name:
            return None
        trained = parse_state(found.content).about["trained"]
        return {key: trained[key] for key in keys if key in trained}

    def clear(self) -> None:
        """Removes all sets, where this process has written them."""
        for path in self._paths() if _writes() else ():
            _remove(path)

    def _newest_of_all(self) -> _Found:
        """Returns the newest complete set of any process, in all processes."""
        share = current_share()
        own = self._newest_copy(share)
        about = json.dumps([own.name, own.damaged]).encode()
        every = [json.loads(from_rank(about, share, rank=rank)) for rank in range(share.world)]
        names = [name for name, _ in every]
        source = names.index(max(names))  # names are in the order of steps
        content = from_rank(own.content, share, rank=source)
        return _Found(names[source], content, any(damaged for _, damaged in every))

    def _newest_copy(self, share: Share) -> _Found:
        damaged = False
        for path in reversed(self._paths()):
            if not _is_complete(path):
                continue  # phase one did not end
            own = path / part_name(share.rank)
            copies = sorted(path.glob("part-*"), key=lambda copy: (copy != own, copy.name))
            for copy in copies:
                try:
                    return _Found(path.name, read_state(copy), damaged)
                except RunError as error:
                    damaged = True
                    print(f"{error}; trying another copy", file=sys.stderr, flush=True)
        return _Found(damaged=damaged)

    def _agree(self, problem: str) -> None:
        """Raises the first problem of any process in all of them; all wait for each other."""
        for rank in range(self._share.world):
            said = from_rank(problem.encode(), self._share, rank=rank).decode()
            if said:
                names = [one.name for one in self._paths() if _is_complete(one)]
                raise RunError(said + (f"; {names[-1]} is intact" if names else ""))


def _writes() -> bool:
    """Says whether this process writes the copy of its host."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _is_complete(path: Path) -> bool:
    return (path / COMPLETE).is_file()


def _remove(path: Path) -> None:
    """Removes a set, which others may be doing too; it is incomplete from the first moment."""
    try:
        (path / COMPLETE).unlink(missing_ok=True)
    except OSError:
        return
    shutil.rmtree(path, ignore_errors=True)
