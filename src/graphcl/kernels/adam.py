"""Adam as in PyTorch, without its compiler.

The first call of an optimiser of PyTorch imports the compiler (`torch._dynamo`, and sympy) only
to keep itself out of compiled code. That takes longer than many a training here, which compiles
nothing. The numbers are PyTorch's, bit for bit: it is its code.
"""

from inspect import unwrap

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`, whose methods are those that PyTorch wraps for its compiler."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))  # the wrapper's other task
