"""What processes of tests have imported before they are forked. It starts no threads."""

from contextlib import suppress
from importlib import import_module

import numba

for module in (
    "graphcl.cli.embed",
    "graphcl.cli.train",
    "graphcl.partitioned.inference",
    "graphcl.serving.app",
    "graphcl.training_run",
    "pydantic.type_adapter",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "torch.distributed.launcher.api",
    "uvicorn",
):
    with suppress(ImportError):  # an extra that is not installed
        import_module(module)

numba.njit(lambda: 0)()  # the first function fills numba's tables
