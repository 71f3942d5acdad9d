"""Models and embeddings for other programs: `graphcl export`, and `graphcl embed --to`.

- `program`: the encoder over plain tensors, as ONNX or as a `torch.export` program.
- `card`: a folder with weights, configuration and a model card.
- `vectors`: embeddings as a stream of record batches, into files and vector indexes.
"""

from pathlib import Path

from graphcl.errors import RunError, option, require
from graphcl.files.atomic import check_new_file, check_new_folder


def export_run(
    run: Path, to: str, out: str | Path | None, *, licence: str | None, overwrite: bool
) -> Path:
    """Does what `graphcl.Run.export` describes, and returns the file or folder."""
    from graphcl.estimator.fitted import Fitted
    from graphcl.exporting.card import CONFIG_JSON, write_card
    from graphcl.exporting.program import KINDS, write_program

    known = (*KINDS, "card")
    require(to in known, "export", option("to"), " or ".join(known), to)
    of_card = f"given with {option('to', 'card')}"
    require(to == "card" or licence is None, "export", option("licence"), of_card, licence)
    target = Path(out or (to if to == "card" else f"model{KINDS[to]}"))
    if to == "card":
        what = "folder of a model card"
        check_new_folder(target, what, CONFIG_JSON, RunError, overwrite=overwrite)
        write_card(target, run, licence=licence or "unknown")
    else:
        check_new_file(target, (KINDS[to],), RunError, overwrite=overwrite)
        write_program(target, to, Fitted.read(run))
    return target
