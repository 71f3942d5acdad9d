"""Summaries of answers that were asked of a run, kept in it for its report.

Each is a small JSON file, ``answer-predict.json`` and so on: figures, names and a few examples,
never whole tables. A training that overwrites the run removes them with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcl.errors import RunError
from graphcl.files.atomic import write_whole
from graphcl.runs.files import read_object

KINDS = ("predict", "cluster", "links", "neighbors")


def answer_file(run: Path, kind: str) -> Path:
    """Returns where a run keeps the summary of an answer."""
    return run / f"answer-{kind}.json"


def keep_answer(run: Path, kind: str, summary: Mapping[str, Any]) -> str:
    """Writes a summary into the run; returns why that failed, or an empty text.

    A run that cannot be written to is no reason to refuse an answer.
    """
    try:
        write_whole(answer_file(run, kind), json.dumps(summary, allow_nan=False) + "\n")
    except OSError as error:
        return f"{run}: the summary for the report could not be kept ({error.strerror})"
    return ""


def read_answers(run: Path) -> dict[str, dict[str, Any]]:
    """Returns the summaries that a run keeps, by kind; damaged ones are left out."""
    found = {}
    for kind in KINDS:
        try:
            summary = read_object(answer_file(run, kind))
        except (OSError, RunError):
            continue
        if summary:
            found[kind] = summary
    return found
