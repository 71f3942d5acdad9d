"""Every other system of the paper's tables, one file each, behind one protocol.

`BASELINES` names them. A file exports one `Baseline` (or several, where a paper has variants).
"""

from graphcl.baselines import propagation, random_encoder, raw
from graphcl.baselines.protocol import Baseline

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        raw.BASELINE,
        random_encoder.BASELINE,
        propagation.BASELINE,
    )
}
