"""Stream optimizers without privacy."""

import pytest
import torch

from botorch_dp import StepSchedule
from botorch_dp.optimizers import OnlineBO, OnlineSGD
from tests.optimizers.ldp.streams import Means, P, R
from tests.optimizers.problems import DOUBLE


@pytest.mark.parametrize("cls", [OnlineBO, OnlineSGD])
class TestOnline:
    def test_not_private(self, cls):
        sizes = StepSchedule(1.0, power=1.0)
        opt = cls(torch.zeros(R, P, **DOUBLE), step_sizes=sizes)
        stream = Means()
        result = opt.run(stream, 100, progress=False)
        # With steps 1/t on a quadratic the iterate is the mean of the records.
        assert torch.allclose(result.x, stream.records[:100].mean(dim=0), atol=1e-9)
        assert not result.certificate.private
        assert opt.history[-1].noise_std == 0.0

    def test_certificate_shows_no_privacy_parameters(self, cls):
        opt = cls(torch.zeros(R, P, **DOUBLE), step_sizes=StepSchedule(0.1))
        certificate = opt.run(Means(), 2, progress=False).certificate
        assert f"{cls.name} follows" in str(certificate)
        assert not {"clip_norm", "mechanism", "asked for"} & set(certificate.parameters)

    def test_the_old_name_of_the_step_sizes_works_and_warns(self, cls):
        sizes = StepSchedule(0.1)
        with pytest.warns(DeprecationWarning, match="step= is .* use step_sizes="):
            opt = cls(torch.zeros(R, P, **DOUBLE), step=sizes)
        assert opt.server.step_sizes is sizes
