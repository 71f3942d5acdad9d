"""`graphcl train` before it is complete: its place, its checkpoints, and how it ends early."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from graphcl.distributed import Share
from graphcl.errors import ParameterError, RunError
from graphcl.estimator import GraphCL
from graphcl.runs import files as runs
from graphcl.runs.unfinished import partial_folder, unfinished_run
from graphcl.training import Checkpoints
from graphcl.training.checkpoints import StoppedError


def begin(stack: ExitStack, out: Path, *, overwrite: bool, resume: bool) -> str:
    """Takes the run's place and returns the folder of its checkpoints."""
    runs.check_output(out, overwrite=overwrite)
    return str(stack.enter_context(unfinished_run(out, overwrite=overwrite, resume=resume)))


def completed(out: Path, model: GraphCL, origin: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the result of the run that is asked for where it is there already.

    Args:
        out: the run.
        model: what is to be trained.
        origin: what `config.toml` would say of the graph.
    """
    if not (out / runs.RESULT).is_file():
        return None
    config = runs.read_config(out)
    about = {key: config["run"].get(key) for key in ("seed", *origin)}
    recipe = asdict(model.complete_recipe())
    if config["recipe"] != recipe or about != {"seed": model.seed, **origin}:
        return None
    result = runs.read_result(out)
    if result.get("status") != "complete" or "probe" not in result:
        raise RunError(f"{out / runs.RESULT}: damaged; train again with --overwrite")
    if partial_folder(out).exists():
        with unfinished_run(out, overwrite=True):
            pass  # what a process left that died between finishing and tidying up
    print(f"{out}: already complete", file=sys.stderr)
    return result


@contextmanager
def saved(checkpoints: Checkpoints, share: Share) -> Iterator[None]:
    """Says, however training ends before its time, what was saved and how to go on."""
    try:
        yield
    except (StoppedError, KeyboardInterrupt) as error:
        kept = any(checkpoints.folder.glob("checkpoint-*"))
        advice = f"saved in {checkpoints.folder}; go on with the same command and --resume"
        if share.first:
            at = f" at {error}" if isinstance(error, StoppedError) else ""
            print(
                f"graphcl train: interrupted{at}; {advice if kept else 'nothing was saved'}",
                file=sys.stderr,
            )
        raise typer.Exit(130) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{error.filename or checkpoints.folder}: could not be written ({reason}); the "
            f"training is saved in {checkpoints.folder}: make room, then go on with --resume"
        ) from None
    except RuntimeError as error:
        if share.world == 1:
            raise
        summary = str(error).partition("\n")[0]
        print(f"graphcl train: rank {share.rank} stops: {summary}", file=sys.stderr)
        raise typer.Exit(1) from None


def every(text: str) -> dict[str, Any]:
    """Returns the arguments of `Checkpoints` that ``--checkpoint-every`` asks for."""
    if text == "never":
        return {"every_seconds": 0.0}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|epochs?)", text.replace(" ", ""))
    if not found or float(found[1]) == 0 or ("." in found[1] and "epoch" in found[2]):
        raise ParameterError(
            f"train: --checkpoint-every must be like 60s, 5min, 10epochs or never; got {text!r}"
        )
    if "epoch" in found[2]:
        return {"every_seconds": 0.0, "every_epochs": int(found[1])}
    return {"every_seconds": float(found[1]) * (60 if found[2] == "min" else 1)}
