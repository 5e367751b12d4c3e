"""Fixtures for the published releases."""

import pytest
import torch

from botorch_dp.privacy import (
    SeededNoise,
)


@pytest.fixture
def drawn(monkeypatch):
    """What noise was added to, and its scale, in the order of the draws."""
    calls = []
    choose, add = SeededNoise.noisy_argmax, SeededNoise.add_laplace

    def noisy_argmax(self, private_chunks, scale):
        chunks = [*private_chunks]
        calls.append(("choice", torch.cat(chunks, dim=-1), scale))
        return choose(self, iter(chunks), scale)

    def add_laplace(self, private_value, scale):
        calls.append(("laplace", private_value.clone(), scale))
        return add(self, private_value, scale)

    monkeypatch.setattr(SeededNoise, "noisy_argmax", noisy_argmax)
    monkeypatch.setattr(SeededNoise, "add_laplace", add_laplace)
    return calls
