"""Global generators: new seeds inside, the old states afterwards."""

import random

import numpy as np
import pytest
import torch

from botorch_dp.optimizers.selection.randomness import fresh_globals, seed_globals
from tests.devices import DEVICE


def draws():
    return [
        random.random(),
        float(np.random.rand()),
        float(torch.rand((), device=DEVICE)),
    ]


def test_restored():
    seed_globals(3)
    expected = draws()
    seed_globals(3)
    with fresh_globals(2**53 - 1):
        inside = draws()
        draws()
    assert draws() == expected
    assert not set(inside) & set(expected)


def test_restored_after_an_error():
    seed_globals(3)
    expected = draws()
    seed_globals(3)

    def fail():
        with fresh_globals(7):
            draws()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert draws() == expected


def test_the_seed_decides():
    found = []
    for seed in (5, 5, 6):
        with fresh_globals(seed):
            found.append(draws())
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])
