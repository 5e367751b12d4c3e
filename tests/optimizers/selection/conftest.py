"""Fixtures of the tests of selections."""

import pytest
import torch


@pytest.fixture
def generator():
    """A seeded generator on the CPU: a selection chooses between Python numbers."""
    return torch.Generator("cpu").manual_seed(2026)
