"""Global generators are as they were."""

import contextlib

import torch

from botorch_dp.optimizers.core.randomness import kept_generators


def draws(double):
    host = {**double, "device": "cpu"}
    return [torch.rand(3, **where).tolist() for where in (host, double)]


def test_states_are_restored_on_all_devices(double):
    torch.manual_seed(3)
    expected = draws(double)
    torch.manual_seed(3)
    with kept_generators():
        torch.manual_seed(4)
        assert draws(double) != expected
    assert draws(double) == expected


def test_after_an_error_too(double):
    torch.manual_seed(3)
    expected = draws(double)
    torch.manual_seed(3)
    with contextlib.suppress(KeyError), kept_generators():
        draws(double)
        raise KeyError
    assert draws(double) == expected
