"""Settings from public facts: their formulas, and the noise that they cause."""

import math

import pytest
import torch
from torch import nn

from botorch_dp import GDP, RDP, ApproxDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus import (
    adam_guess,
    linear_scaling_guess,
    settings_around,
)
from tests.integrations.opacus.runs import seeded

GUESSES = [linear_scaling_guess, adam_guess]
FACTS = {"num_records": 8000, "num_steps": 100, "noise_multiplier": 2.0}


class TestLinearScaling:
    @pytest.mark.parametrize("mu", [0.3, 0.6, 3.0])
    @pytest.mark.parametrize("num_records", [100, 5000])
    def test_the_product_of_rate_and_steps_is_linear_in_the_budget(
        self, mu, num_records
    ):
        guess = linear_scaling_guess(
            GDP(mu), num_records=num_records, sample_rate=1.0, num_steps=50
        )
        radius = 50 * guess.learning_rate / (1 - guess.momentum)
        assert math.isclose(radius, 0.3 * num_records * mu)

    def test_the_clipping_norm_cancels(self):
        one, ten = (
            linear_scaling_guess(
                num_records=500, noise_multiplier=2.0, max_grad_norm=norm
            )
            for norm in (1.0, 10.0)
        )
        assert math.isclose(one.learning_rate, 10 * ten.learning_rate)

    @pytest.mark.parametrize("make", GUESSES)
    def test_what_the_noise_does(self, make, tkwargs):
        # Gradients of noise alone move each parameter by 0.3.
        guess = make(num_records=3200, noise_multiplier=1.7, num_steps=400)
        parameter = nn.Parameter(torch.zeros(3000, **tkwargs))
        optimizer = guess.make_optimizer([parameter])
        batch_size = guess.sample_rate * 3200
        generator = seeded()
        for _ in range(guess.num_steps):
            noise = torch.randn(3000, generator=generator, **tkwargs)
            parameter.grad = 1.7 * noise / batch_size
            optimizer.step()
        assert float(parameter.detach().std()) == pytest.approx(0.3, rel=0.1)


class TestPlan:
    @pytest.mark.parametrize("make", GUESSES)
    def test_noise_of_one_run(self, make):
        guess = make(RDP(8.0, 0.5), num_records=3200, num_steps=20)
        assert guess.sample_rate == 1 / 16
        assert guess.num_epochs == 20 / 16
        less = make(RDP(8.0, 1.0), num_records=3200, num_steps=20)
        assert less.noise_multiplier < guess.noise_multiplier
        full = make(ApproxDP(2.0, 1e-5), num_records=50, num_steps=25)
        assert full.sample_rate == 1.0
        mu = ApproxDP(2.0, 1e-5).to_gdp().mu
        assert math.isclose(full.noise_multiplier, 5 / mu)

    @pytest.mark.parametrize(
        ("num_records", "batches"), [(1, 1), (64, 1), (129, 2), (900, 14), (10**6, 16)]
    )
    def test_batches_of_an_epoch(self, num_records, batches):
        guess = adam_guess(num_records=num_records, noise_multiplier=1.0)
        assert guess.sample_rate == 1 / batches

    def test_optimizers(self):
        parameters = [nn.Parameter(torch.zeros(2, device="cpu"))]
        sgd = linear_scaling_guess(num_records=50, noise_multiplier=1.0)
        adam = adam_guess(num_records=50, noise_multiplier=1.0)
        assert type(sgd.make_optimizer(parameters)) is torch.optim.SGD
        assert sgd.make_optimizer(parameters).defaults["momentum"] == 0.9
        assert type(adam.make_optimizer(parameters)) is torch.optim.Adam
        assert adam.make_optimizer(parameters).defaults["lr"] == adam.learning_rate

    @pytest.mark.parametrize("make", GUESSES)
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"num_records": 0}, "num_records"),
            ({"num_steps": 0}, "num_steps"),
            ({"sample_rate": 2.0}, "sample_rate must be at most 1"),
            ({"sample_rate": 0.0}, "sample_rate"),
            ({"noise_multiplier": -1.0}, "noise_multiplier"),
            ({"noise_multiplier": None}, "guarantee or noise_multiplier"),
            ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ],
    )
    def test_refused(self, make, given, message):
        arguments = {"num_records": 100, "noise_multiplier": 1.0, **given}
        with pytest.raises(InvalidArgumentError, match=message):
            make(**arguments)


class TestAround:
    def test_half_are_the_guesses(self):
        guesses = [make(**FACTS) for make in GUESSES]
        found = settings_around(*guesses, num_settings=20)
        assert [found.count(guess) for guess in guesses] == [5, 5]
        assert len(found) == len(set(found)) + 8
        assert found == settings_around(*guesses, num_settings=20)
        assert found != settings_around(*guesses, num_settings=20, seed=1)

    @pytest.mark.parametrize("make", GUESSES)
    def test_factors(self, make):
        guess = make(**FACTS)
        found = settings_around(guess, num_settings=2000, factor=4.0)
        others = [one for one in found if one != guess]
        norms = [math.log(one.max_grad_norm, 4.0) for one in others]
        rates = [one.learning_rate / guess.learning_rate for one in others]
        moves = torch.tensor([math.log(rate, 4.0) for rate in rates], device="cpu")
        norms = torch.tensor(norms, device="cpu")
        if make is linear_scaling_guess:  # noise moves parameters by rate times norm
            moves = moves + norms
        for exponents in (norms, moves):
            assert exponents.abs().max() <= 1 + 1e-5
            assert exponents.mean().abs() < 0.1
            assert abs(float(exponents.std()) - 1 / math.sqrt(3)) < 0.03
        assert float(torch.corrcoef(torch.stack([norms, moves]))[0, 1]) < 0.1

    def test_refused(self):
        guess = adam_guess(**FACTS)
        with pytest.raises(InvalidArgumentError, match="at least one guess"):
            settings_around()
        with pytest.raises(InvalidArgumentError, match="guesses"):
            settings_around(0.1)
        with pytest.raises(InvalidArgumentError, match="num_settings"):
            settings_around(guess, guess, num_settings=3)
        with pytest.raises(InvalidArgumentError, match="factor must be above 1"):
            settings_around(guess, factor=1.0)
