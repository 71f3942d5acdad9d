import pytest
import torch

from graphcl.distributed import (
    Share,
)
from graphcl.errors import ParameterError
from graphcl.losses.nt_xent_distributed import nt_xent_distributed


def test_bad_arguments():
    h = torch.ones(3, 2)
    with pytest.raises(ParameterError, match="this process's share; got"):
        nt_xent_distributed(h, h, num_nodes=7, share=Share(0, 2))
    with pytest.raises(ParameterError, match="'bf16' is for one process"):
        nt_xent_distributed(h, h, num_nodes=6, share=Share(0, 2), precision="bf16")
    with pytest.raises(ParameterError, match="as many as the 4 processes; got 3"):
        nt_xent_distributed(h, h, num_nodes=3, share=Share(0, 4))
