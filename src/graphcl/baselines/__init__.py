"""Every other system of the paper's tables, one file each, behind one protocol.

`BASELINES` names them. A file exports one `Baseline` (or several, where a paper has variants).
"""

from graphcl.baselines.protocol import Baseline

BASELINES: dict[str, Baseline] = {}
