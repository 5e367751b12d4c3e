"""Budgets that fall with the length of a stream."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import BudgetSchedule, CompressedSurrogate
from botorch_dp.models.surrogates.budget import LEAST, MOST, SHARE


class TestBudgetSchedule:
    def test_between_its_limits_it_falls_like_a_standard_error(self):
        schedule = BudgetSchedule(2.0, least=0.01, most=0.5)
        assert schedule(1) == 0.5
        assert schedule(100) == pytest.approx(0.2)
        assert schedule(10_000) == pytest.approx(0.02)
        assert schedule(10**9) == 0.01

    def test_for_noise(self):
        schedule = BudgetSchedule.for_noise(clip_norm=2.0, noise_std=1.5, dim=4)
        assert schedule.scale == pytest.approx(SHARE * math.sqrt(2.0**2 / 4 + 1.5**2))
        assert (schedule.least, schedule.most) == (LEAST, MOST)

    def test_messages_of_the_bound_give_the_same(self, generator, double):
        """Gradients of length B in random directions plus noise: its exact variance."""
        directions = torch.randn(40_000, 4, generator=generator, **double)
        gradients = 2.0 * directions / directions.norm(dim=-1, keepdim=True)
        noise = 1.5 * torch.randn(40_000, 4, generator=generator, **double)
        measured = BudgetSchedule.from_messages(gradients + noise)
        bound = BudgetSchedule.for_noise(clip_norm=2.0, noise_std=1.5, dim=4)
        # Relative standard error of a mean of 160,000 squares: 0.0025 at most.
        assert measured.scale == pytest.approx(bound.scale, rel=0.01)

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"scale": -1.0}, "scale must be a finite number, 0 or above"),
            ({"scale": 1.0, "least": 0.0}, "least must be a finite number above 0"),
            ({"scale": 1.0, "most": math.nan}, "most must be a finite number above 0"),
            ({"scale": 1.0, "least": 0.2}, "least must not exceed most"),
        ],
    )
    def test_refuses(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            BudgetSchedule(**kwargs)

    def test_refuses_messages(self, double):
        nothing, broken = torch.zeros(0, 2, **double), torch.zeros(3, 2, **double)
        for bad in (nothing, broken / 0.0):
            with pytest.raises(InvalidArgumentError, match="messages must"):
                BudgetSchedule.from_messages(bad)


class TestInADictionary:
    def test_the_rule_follows_the_schedule(self, generator, double):
        schedule = BudgetSchedule(0.5, least=0.05, most=0.3)
        x = torch.zeros(3, 2, **double)
        surrogate = CompressedSurrogate(x, budget=schedule)
        for t in range(1, 101):
            budget = surrogate.current_budget
            assert budget == schedule(t)
            x = x + 0.05 * torch.randn(3, 2, generator=generator, **double)
            surrogate.update(x)
            variances = surrogate.covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
            assert (variances <= budget**2 + 1e-12).all()
        assert surrogate.settings()["budget"] == schedule.settings()

    def test_a_restored_dictionary_continues_with_the_same_budget(self, double):
        schedule = BudgetSchedule(0.5, least=0.05, most=0.3)
        x = torch.zeros(2, **double)
        first = CompressedSurrogate(x, budget=schedule)
        for i in range(20):
            first.update(x + 0.05 * i)
        second = CompressedSurrogate(x, budget=schedule)
        second.load_state_dict(first.state_dict())
        assert second.current_budget == first.current_budget == schedule(21)
        for surrogate in (first, second):
            surrogate.update(x + 2.0)
        assert torch.equal(first.weights, second.weights)
