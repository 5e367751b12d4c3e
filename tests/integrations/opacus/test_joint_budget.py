"""Which kind of budget the arguments ask for."""

import copy

import pytest

from botorch_dp import GDP, ApproxDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.integrations.opacus.composition import CompositionBudget
from botorch_dp.integrations.opacus.selection import SelectionBudget
from botorch_dp.privacy import Poisson

PLAN = {"sample_rate": 1.0, "steps_per_run": 3}


class TestKinds:
    def test_selection_by_default(self):
        budget = JointBudget(
            ApproxDP(4.0, 1e-5), num_records=50, count=Poisson(2.0), **PLAN
        )
        assert type(budget) is SelectionBudget
        assert isinstance(budget, JointBudget)

    def test_composition(self):
        budget = JointBudget(GDP(1.0), tuning="composition", num_runs=4, **PLAN)
        assert type(budget) is CompositionBudget
        assert budget.runs_left == 4
        assert type(copy.copy(budget)) is CompositionBudget
        with pytest.raises(InvalidArgumentError, match="tuning='selection'"):
            budget.select([1], lambda x, run: 0.0)

    def test_a_number_of_runs_alone_is_deprecated(self):
        with pytest.warns(DeprecationWarning, match="num_runs without tuning") as seen:
            budget = JointBudget(GDP(1.0), num_runs=4, **PLAN)
        assert type(budget) is CompositionBudget
        assert seen[0].filename == __file__

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("count", Poisson(2.0)),
            ("num_records", 50),
            ("num_validation_records", 50),
            ("score_range", (0.0, 1.0)),
            ("score_noise", 0.1),
            ("pad_to", 3),
        ],
    )
    def test_arguments_of_a_selection_in_a_composition(self, name, value):
        given = {"tuning": "composition", "num_runs": 2, name: value, **PLAN}
        with pytest.raises(InvalidArgumentError, match=f"{name} must be None"):
            JointBudget(GDP(1.0), **given)

    def test_a_composition_needs_a_number_of_runs(self):
        with pytest.raises(InvalidArgumentError, match="num_runs must be given"):
            JointBudget(GDP(1.0), tuning="composition", **PLAN)
