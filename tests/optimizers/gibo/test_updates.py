"""Update rules of torch.optim."""

import pytest
import torch

from tests.optimizers.gibo.test_dp_gibo import released_mean
from tests.optimizers.problems import DEVICE, Quadratics, make


class TestStep:
    @pytest.mark.parametrize("update", ["adagrad", "sgd", torch.optim.Adam])
    def test_updates_are_torch_optim(self, update):
        opt = make(update=update, step_size=0.05, num_steps=4, mu=1e6)
        parameter = torch.nn.Parameter(opt.x.clone())
        classes = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
        with DEVICE:
            rule = classes.get(update, update)([parameter], lr=0.05)
        problem = Quadratics()
        for _ in range(4):
            parameter.grad = released_mean(opt, problem(opt.ask()))
            with DEVICE:
                rule.step()
            assert torch.allclose(opt.x, parameter.detach(), atol=1e-5)
