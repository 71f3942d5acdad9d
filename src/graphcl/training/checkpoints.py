"""Checkpoints: a training that stopped goes on as if it had not.

A checkpoint is a folder with `state.safetensors` (weights, Adam's moments, the results of the epoch
under way) and `checkpoint.json` (what is trained, position, history, and a sha256 of either file).
It appears whole or not at all (see `graphcl.files.atomic`). The newest checkpoints are kept. A
damaged one is skipped with a warning.

No random state is in it. Every draw is a function of seed, epoch and step (`graphcl.seeding`), so
the position says it all, as long as the function stays the same. A checkpoint of a sampled training
says which function it was (`graphcl.sampling.DRAWS`). With another one, training would not go on
as if it had not stopped, and is refused.

All processes of a training hold the same state. One of them writes it; over parts, one of each host
does, as a host may have a disk of its own:

    FOLDER/checkpoint-00000001-00000040          by the first process
    FOLDER/checkpoint-00000001-00000040-00002    the copy of process 2, on another host

FOLDER may be on a shared disk, or on one of each host. The newest copy that any process finds is
read by that process, which tells the others.
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

from graphcl.distributed import agree, any_of, current_share, from_rank, max_over
from graphcl.errors import ParameterError, RunError, demand, option, require
from graphcl.files.atomic import remove_folder, whole_folder
from graphcl.sampling import DRAWS
from graphcl.training.loop import TrainingState, metrics_of

FORMAT = 1
STATE, ABOUT = "state.safetensors", "checkpoint.json"
EVERY_SECONDS = 60.0
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

    Pass it to `train` as `on_step`. All processes of a group save together, and stop together.

    Args:
        folder: where checkpoints lie, one folder each.
        every_seconds: save when so much time has passed since the last one; 0: never by time.
        every_epochs: save when so many epochs have ended since the last one; 0: never by epochs.
        keep: how many to keep.
        stop: asked after each step; True saves and raises `StoppedError`.
        every_host: one process of each host writes, not the first process alone.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_seconds: float = EVERY_SECONDS,
        every_epochs: int = 0,
        keep: int = KEEP,
        stop: Callable[[], bool] = lambda: False,
        every_host: bool = False,
    ) -> None:
        require(every_seconds >= 0, "Checkpoints", "every_seconds", "0 or more", every_seconds)
        require(every_epochs >= 0, "Checkpoints", "every_epochs", "0 or more", every_epochs)
        require(keep >= 1, "Checkpoints", "keep", "at least 1", keep)
        self.folder, self.keep, self.stop = Path(folder), keep, stop
        self.every_seconds, self.every_epochs = every_seconds, every_epochs
        self.every_host = every_host
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
        """Saves where it is time to for any process; raises `StoppedError` where that is asked."""
        by_time = 0 < self.every_seconds <= time.monotonic() - self._last_time
        asked = max_over(torch.tensor([int(self.stop()), int(by_time)]), self._share)
        stopping, due = (bool(one) for one in asked)
        by_epoch = 0 < self.every_epochs <= state.epoch - self._last_epoch
        if stopping or due or by_epoch or state.epoch == state.epochs:
            self.save(state)
        if stopping:
            raise StoppedError(f"epoch {state.epoch + 1}, step {state.step}")

    def save(self, state: TrainingState) -> None:
        """Writes a checkpoint and removes those beyond the last `keep`.

        Raises:
            RunError: in all processes, if one of them cannot write, as on a full disk; earlier
                checkpoints are as they were.
        """
        self._last_time, self._last_epoch = time.monotonic(), state.epoch
        name = f"checkpoint-{state.epoch:08d}-{state.step:08d}"
        if name == self._good:
            return
        first = self._share.first
        path = self.folder / (name if first else f"{name}-{self._share.rank:05d}")
        writes = first or (self.every_host and os.environ.get("LOCAL_RANK", "0") == "0")
        problem = ""
        try:
            if writes:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_state(path, state, self.trained)
        except OSError as error:
            whole = "".join(f"; {one.name} is intact" for one in self._paths()[-1:])
            problem = f"{path}: could not be written ({error.strerror or error}){whole}"
        agree(problem, self._share, RunError)
        self._good = name
        if writes:
            self._remove_others(name)
        any_of(False, self._share)  # nobody writes the next one before all have removed

    def _remove_others(self, name: str) -> None:
        """Removes all but `name` and the last before it; other processes may do so, too."""
        paths = self._paths()
        steps = sorted({path.name[: len(name)] for path in paths})
        # Beyond `name` lies only what was found damaged when training went on from before.
        kept = [step for step in steps if step <= name][-self.keep :]
        for path in paths:
            if path.name[: len(name)] not in kept:
                with suppress(OSError):
                    remove_folder(path)
        for left in self.folder.glob(".checkpoint-*"):  # of processes that died here
            shutil.rmtree(left, ignore_errors=True)

    def latest(self, trained: Mapping[str, Any]) -> Saved | None:
        """Returns the newest checkpoint that is whole, or None where there is none at all.

        Raises:
            RunError: in all processes: there are checkpoints and all are damaged, they are of
                another training, or of a version whose sampled training draws differently.
        """
        name, content, damaged = self._newest(aloud=True)
        if not name:
            if damaged:
                raise RunError(f"{self.folder}: every checkpoint is damaged; begin anew")
            return None
        saved = parse_state(content)
        require_same(saved.about, trained, self.folder / name)
        self._good = f"checkpoint-{saved.about['epoch']:08d}-{saved.about['step']:08d}"
        return saved

    def begun(self, keys: Collection[str]) -> dict[str, Any] | None:
        """Returns some keys of what the newest readable checkpoint is of; None if there is none."""
        name, content, _ = self._newest(aloud=False)
        if not name:
            return None
        trained = parse_state(content).about["trained"]
        return {key: trained[key] for key in keys if key in trained}

    def _newest(self, *, aloud: bool) -> tuple[str, bytes, bool]:
        """Returns name and content of the newest checkpoint that any process can read.

        Both are empty if there is none. The third result says whether a newer one is damaged.
        """
        share = current_share()
        name, content, damaged = "", b"", False
        for path in reversed(self._paths()):
            try:
                name, content = path.name, read_state(path)
                break
            except RunError as error:
                name, damaged = "", True
                if aloud:
                    print(f"{error}; trying the one before it", file=sys.stderr, flush=True)
        about = json.dumps([name, damaged]).encode()
        every = [json.loads(from_rank(about, share, rank=rank)) for rank in range(share.world)]
        names = [one for one, _ in every]
        source = names.index(max(names))  # names are in the order of steps
        content = from_rank(content, share, rank=source)
        return names[source], content, any(one for _, one in every)

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("checkpoint-*") if path.is_dir())


def write_state(path: Path, state: TrainingState, trained: Mapping[str, Any]) -> None:
    """Writes a folder with both files of a checkpoint, whole or not at all."""
    tensors = {f"w.{name}": weight for name, weight in state.encoder.state_dict().items()}
    for number, moments in state.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": moment for name, moment in moments.items()}
    if state.results:
        tensors["results"] = torch.stack(state.results)
    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )
    about = {
        "format": FORMAT,
        "draws": DRAWS,
        "trained": dict(trained),
        "epoch": state.epoch,
        "step": state.step,
        "sizes": state.sizes,
        "seconds": state.seconds,
        "history": [asdict(metrics) for metrics in state.history],
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    about["sha256_about"] = _digest(about)
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
    demand(whole, f"{path}: damaged or truncated", RunError)
    demand(
        about["format"] == FORMAT,
        f"{path}: checkpoint format {about['format']!r}; this version reads {FORMAT}",
        RunError,
    )
    return text + b"\0" + content


def parse_state(content: bytes) -> Saved:
    """Returns what `read_state` read."""
    text, _, tensors = content.partition(b"\0")
    try:
        return Saved(json.loads(text), safetensors.torch.load(tensors))
    except SafetensorError as error:
        raise RunError(f"{STATE}: damaged or truncated ({error})") from None


def require_same(about: Mapping[str, Any], trained: Mapping[str, Any], path: Path) -> None:
    """Refuses a checkpoint of another training, and names the first thing that differs.

    A sampled training that would go on with other draws than it began with is another one, too.
    """
    saved, now = about["trained"], json.loads(json.dumps(trained))
    for name in now:
        if saved.get(name) != now[name]:
            what = f"{name} {saved.get(name)!r}, now {now[name]!r}"
            raise RunError(
                f"{path}: is of another training ({what}); begin anew or undo the change"
            )
    demand(
        "sampled" not in saved.get("modes", ()) or about.get("draws") == DRAWS,
        f"{path}: mode 'sampled' draws its views differently since this training began; "
        "begin anew, or go on with the version that began it",
        RunError,
    )


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
