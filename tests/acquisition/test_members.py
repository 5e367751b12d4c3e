"""Which processes a model consists of, and how much each counts."""

import pytest
import torch

from botorch_dp.acquisition._members import members_of
from botorch_dp.models import gradient_posterior
from tests.models.model_matrix import (
    ensemble_map_saas,
    list_with_two_outputs,
    make_model,
    single_task,
    uniform,
    warped_saas,
)

pytestmark = pytest.mark.default_device
# The processes that differ in more than their targets are counted.
CASES = [
    (single_task, "warp", (2,), 2, [2]),
    (list_with_two_outputs, "normalize", (), 3, [1, 1]),
    (ensemble_map_saas, "none", (), 1, [3]),
    (warped_saas, "bounded", (), 1, [3]),
]


@pytest.mark.parametrize(("make", "transform", "batch", "outputs", "sizes"), CASES)
@torch.no_grad()
def test_traces_are_those_of_the_posterior(make, transform, batch, outputs, sizes):
    model, x = make_model(make, transform, batch, outputs), uniform(1)
    found = members_of(model, x, None)
    assert [len(members.geometries) for members in found] == sizes
    traces = gradient_posterior(model, x).variance.sum(dim=-1)
    # The sum over outputs, the mean over everything else.
    expected = traces.sum() / (traces.numel() // outputs)
    total = sum(g.trace for members in found for _, g in members.geometries)
    assert torch.allclose(total, expected)


def test_every_process_has_its_own_transform():
    model = make_model(warped_saas, "bounded", (), 1)
    X = uniform(4, 2)
    (members,) = members_of(model, uniform(1), None)
    seen = [Z for Z, _ in members.at(X)]
    assert all(Z.shape == X.shape for Z in seen)
    assert not torch.allclose(seen[0], seen[1])
