"""Refined designs on the benchmark's hard cases."""

import pytest
import torch

from benchmarks import design_history
from benchmarks.design_history import (
    cube,
    least_trace,
    make_case,
    tolerance_row,
)
from botorch_dp.acquisition import optimal_design

pytestmark = pytest.mark.cpu_only  # benchmarks run on the CPU


@pytest.fixture(autouse=True)
def on_the_cpu():
    with torch.device("cpu"):
        yield


@pytest.mark.parametrize(
    "case",
    [
        ("clustered", 2, 20, 1e-6),
        ("clustered", 2, 100, 1e-6),
        ("spread", 10, 20, 1e-6),
    ],
)
def test_at_most_1_2_times_the_least_trace(case):
    model, theta = make_case(case, design_history.SEED)
    d = case[1]
    plain = optimal_design(model, theta, d + 1, cube(d), max_evaluations=0)
    refined = optimal_design(model, theta, d + 1, cube(d))
    least = least_trace(model, theta, plain.points)
    assert float(refined.trace) <= 1.2 * least


def test_least_trace_does_not_stop_early():
    # On the trace as it is, a search stopped 10 % above the minimum.
    case = ("clustered", 2, 20, 1e-6)
    model, theta = make_case(case, design_history.SEED)
    plain = optimal_design(model, theta, 3, cube(2), max_evaluations=0)
    assert least_trace(model, theta, plain.points) < 1.3e-4


def test_algorithm_2_evaluates_no_point_too_many():
    row = tolerance_row(1.0, "zero")
    assert row["largest trace"] <= 1.0
    assert row["steps with a point too many"] == 0
    first, *others = map(int, row["points of each step"].split())
    assert first == 11
    assert max(others) <= 5
