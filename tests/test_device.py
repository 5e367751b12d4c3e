"""The switch that finds tensors made on the wrong device does find them."""

import pytest
import torch

from botorch_dp.privacy import SystemNoise


def test_the_switch_is_on_when_asked_for(request):
    expected = "meta" if request.config.getoption("--meta-device") else "cpu"
    assert torch.zeros(1).device.type == expected


def test_it_catches_a_tensor_made_without_a_device(double):
    default = torch.get_default_device()
    value = torch.zeros(3, **double)
    torch.set_default_device("meta")
    try:
        with pytest.raises(RuntimeError, match=r"device|[Mm]eta"):
            (value + torch.arange(3)).tolist()
        assert SystemNoise().add_gaussian(value, 1.0).device.type == "cpu"
    finally:
        torch.set_default_device(default)
