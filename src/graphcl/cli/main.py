"""The entry point: commands, and how each kind of failure ends.

Exit codes: 0 done; 2 the user's input is at fault, said in one line; 130 interrupted; 1 a bug.
"""

import os
import sys
import traceback
from typing import Annotated

import torch
import typer

from graphcl.cli import build, check, datasets, embed, evaluate, launch, train
from graphcl.distributed import first_process
from graphcl.errors import GraphCLError

# typer carries its own copy of click in some versions; this is ClickException in either.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="graphcl",
    help="Node embeddings of attributed graphs without labels (GraphCL, Hafidi et al. 2020).",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("datasets")(datasets.datasets)
app.command("build")(build.build)
app.command("train")(train.train)
app.command("embed")(embed.embed)
app.command("evaluate")(evaluate.evaluate)
app.command("check")(check.check)


def _version(asked: bool) -> None:
    if asked:
        from graphcl import __version__

        print(f"graphcl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


def main() -> None:
    """Runs the command line and exits with its code."""
    sys.exit(launch.leave(run(sys.argv[1:])) if launch.announce() else 0)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    try:
        code = app(args=arguments or ["--help"], prog_name="graphcl", standalone_mode=False)
        sys.stdout.flush()
    except GraphCLError as error:
        return _fail(str(error))
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        message = getattr(error, "format_message", error.__str__)()
        return _fail(message, command=context.command_path if context else "")
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)
    except SystemExit as error:
        # The reader of our output has gone (`graphcl datasets | head -1`); nothing is wrong.
        if isinstance(error.__context__, BrokenPipeError):
            return 0
        raise
    except torch.OutOfMemoryError:
        return _fail(
            "out of GPU memory; try --set mode=sampled, a smaller dim or batch_nodes, --device cpu"
        )
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}")
    except Exception as error:
        if os.environ.get("GRAPHCL_DEBUG"):
            traceback.print_exc()
        summary = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"bug: {summary} (GRAPHCL_DEBUG=1 shows where)", code=1)
    return code if isinstance(code, int) else 0


def _fail(message: str, *, command: str = "", code: int = 2) -> int:
    if first_process() or code == 1:
        print(f"{command or 'graphcl'}: {' '.join(message.split())}", file=sys.stderr)
    return code
