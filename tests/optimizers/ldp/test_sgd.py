"""LDP-SGD: true gradients, the same release and server."""

import pytest
import torch

from botorch_dp import GDP, LDPSGD
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
from tests.optimizers.ldp.streams import Means, P, R, make
from tests.optimizers.problems import DOUBLE


class TestLDPSGD:
    def test_asks_for_gradients(self):
        opt = make(LDPSGD)
        assert torch.equal(opt.ask(), opt.x)
        with pytest.raises(InvalidArgumentError, match="the gradient of the user's"):
            opt.tell(torch.zeros(R, 2 * P, **DOUBLE))
        assert opt.num_asked == 0

    def test_is_ldp_bo_where_the_stencil_is_exact(self):
        ours = make().run(Means(), 200, progress=False)
        theirs = make(LDPSGD).run(Means(), 200, progress=False)
        assert torch.allclose(ours.average, theirs.average, atol=1e-10)

    def test_follows_the_clipped_gradient(self):
        opt = make(LDPSGD, guarantee=GDP(1e9), step_sizes=StepSchedule(1.0))
        gradients = torch.zeros(R, P, **DOUBLE)
        gradients[0, 0], gradients[1, 1] = 100.0, 1.0  # the bound is 2
        opt.tell(gradients)
        assert torch.allclose(-opt.x, gradients.clamp(max=2.0), atol=1e-6)
        assert opt.certificate().guarantee.mu == pytest.approx(1e9)
