"""The paper's claims beyond its tables, each as a `Study`; `STUDIES` maps names to them."""

from graphcl.research.studies import sweeps
from graphcl.research.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        sweeps.PERTURBATION,
        sweeps.CORRUPTION,
        sweeps.TEMPERATURE,
        sweeps.EPOCH_COUNT,
        sweeps.BATCH,
        sweeps.BOUND,
        sweeps.COMPLEXITY,
    )
}
