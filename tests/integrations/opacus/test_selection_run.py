"""The best of several scores on neighbouring data: an audit of what is released."""

import math

import pytest
import torch

from botorch_dp import ApproxDP, PureDP
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.integrations.opacus.selection_run import SelectionRun
from botorch_dp.optimizers.selection.meter import RunMeter
from botorch_dp.privacy import Binomial
from botorch_dp.privacy.audit import audit_epsilon
from botorch_dp.privacy.noise import SeededNoise
from tests.integrations.opacus.runs import seeded

CLAIM = ApproxDP(1.0, 1e-2)
NUM_RUNS, NUM_RECORDS, NUM_SAMPLES = 5, 9, 800


@pytest.mark.parametrize("broken", [None, "noise", "clip"])
@pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.WeakGuaranteeWarning")
def test_audit(broken, double, monkeypatch):
    """The largest of five scores, so the best test is a threshold.

    Power: both broken versions were rejected with 12 of 12 other seeds.
    """
    draw = SeededNoise.add_gaussian
    if broken == "noise":
        monkeypatch.setattr(
            SeededNoise, "add_gaussian", lambda self, v, std: draw(self, v, std / 6)
        )
    if broken == "clip":
        monkeypatch.setattr(torch.Tensor, "clamp", lambda self, *ends: self)
    budget = JointBudget(
        CLAIM,
        sample_rate=1.0,
        steps_per_run=1,
        num_records=NUM_RECORDS,
        records="disjoint",
        num_validation_records=NUM_RECORDS,
        count=Binomial(NUM_RUNS, 1.0),
    )
    base = budget.charges()[1][1].base
    generator = seeded(7)
    values = torch.zeros(NUM_RECORDS, **double)

    def score():
        run = SelectionRun(
            budget.planned_run(),
            budget.score_plan,
            account=RunMeter(base, adjacency="zero_out", seeded=True),
            generator=generator,
        )
        return run.score(values)

    def sample(value):
        values[0] = value
        best = [max(score() for _ in range(NUM_RUNS)) for _ in range(NUM_SAMPLES)]
        return torch.tensor(best, **double)

    nothing, most = sample(math.nan), sample(6.0)
    result = audit_epsilon(nothing, most, delta=CLAIM.delta)
    assert result.rejects(PureDP(CLAIM.epsilon)) == (broken is not None)
