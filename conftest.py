"""Names that docstring examples may use without importing them."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["torch"] = torch
