"""Releases after UCB, as published: by hand, warnings, misuse."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_dp import ApproxDP, PrivateBO, PureDP
from botorch_dp.acquisition.private_ucb import ucb_beta
from botorch_dp.exceptions import (
    InvalidArgumentError,
    UselessReleaseWarning,
)
from botorch_dp.optimizers.release.kusner import setting as kusner_setting
from botorch_dp.optimizers.release.kusner.information_gain import information_gain_bound
from botorch_dp.privacy import (
    SeededNoise,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded
from tests.optimizers.release.kusner.bounds import (
    noise_free_sensitivity,
    point_sensitivity,
    value_sensitivity,
)
from tests.optimizers.release.kusner.problems import (
    BUDGET,
    HALF,
    RECORDS,
    REGRET,
    RELEASES,
    RHO,
    SIGMA2,
    WHOLE,
    D,
    Models,
    N,
    T,
    asked_points,
    make,
    problem_of,
    run,
)
from tests.optimizers.release.problems import Bowls, candidates


def matern(X):
    r = math.sqrt(5) * torch.cdist(X, X) / 0.5
    return (1 + r + r.square() / 3) * torch.exp(-r)


def in_unit_box(X):
    low, high = X.amin(dim=0), X.amax(dim=0)
    return (X - low) / (high - low)


def posterior(K, indices, gains, noise_variance):
    """Mean and variance at all candidates, from scratch."""
    if not indices:
        return torch.zeros_like(K[0]), torch.ones_like(K[0])
    covariance = K[indices][:, indices] + noise_variance * torch.eye(
        len(indices), **DOUBLE
    )
    weights = torch.linalg.solve(covariance, K[indices])  # t x N
    y = torch.tensor(gains, **DOUBLE)
    return y @ weights, K.diagonal() - (K[indices] * weights).sum(dim=0)


def search_by_hand(X, problem, betas, noise_variance):
    """Lines 3 to 8 of Algorithm 1; return which candidates, their gains, the mean."""
    K, indices, gains = matern(in_unit_box(X)), [], []
    for beta in betas:
        mean, variance = posterior(K, indices, gains, noise_variance)
        indices.append(int((mean + (beta * variance).sqrt()).argmax()))
        loss = problem(X[indices[-1:]]).mean()
        gains.append(float(0.5 - loss) / 0.25)  # the middle; a quarter of the range
    return indices, gains, posterior(K, indices, gains, noise_variance)[0]


def assert_close(first, second, rel_tol=1e-9):
    assert first.keys() == second.keys()
    for key, value in first.items():
        if isinstance(value, dict):
            assert_close(value, second[key], rel_tol)
        elif isinstance(value, float):
            assert math.isclose(value, second[key], rel_tol=rel_tol), key
        else:
            assert value == second[key], key


class TestByHand:
    @pytest.mark.parametrize("constants", ["repaired", "icml2015", "workshop"])
    def test_algorithm_1(self, drawn, monkeypatch, constants):
        used = []

        def spy_beta(**kwargs):
            used.append(ucb_beta(**kwargs))
            return used[-1]

        X, problem, steps = candidates(), Bowls(n=RECORDS), 12
        opt = make(constants=constants, num_steps=steps)
        monkeypatch.setattr(kusner_setting, "ucb_beta", spy_beta)
        asked = asked_points(opt, problem)
        betas = [
            ucb_beta(step=t, num_candidates=N, delta=HALF, constants=constants)
            for t in range(1, steps + 1)
        ]
        indices, gains, mean = search_by_hand(X, problem, betas, SIGMA2)
        assert len(set(indices)) > steps // 2  # it does search
        assert gains[-1] < max(gains)
        assert torch.allclose(asked, X[indices], atol=1e-12)
        assert used == pytest.approx(betas)  # line 4

        # Line 12: the exponential mechanism, with half of epsilon.
        (choice, scores, scale), (laplace, value, value_scale) = drawn
        point = opt.details["point"]
        assert choice == "choice"
        assert torch.allclose(scores, mean, atol=1e-9)
        assert math.isclose(scale, 2 * point["sensitivity"] / 0.5)
        # Lines 13 to 15: the Laplace mechanism, with the other half.
        assert laplace == "laplace"
        assert value.shape == (1,)
        assert math.isclose(float(value), max(gains), rel_tol=1e-12)
        assert math.isclose(value_scale, opt.details["value"]["sensitivity"] / 0.5)

        # What leaves, with the same noise.
        noise = SeededNoise(seeded())
        index = int(noise.noisy_argmax([mean], scale))
        released = float(noise.add_laplace(value, value_scale))
        result = opt.result()
        assert torch.allclose(result.x, X[index], atol=1e-12)
        assert math.isclose(result.value, 0.5 - 0.25 * released)

    def test_constants_of_algorithm_1(self):
        details = run(make()).details
        log = math.log(3 * N / HALF)
        c = 2 * math.sqrt((1 - RHO) * log)
        assert details["point"]["delta"] == details["value"]["delta"]
        assert math.isclose(details["point"]["delta"], HALF)
        assert math.isclose(details["point"]["beta"], 2 * log)
        assert math.isclose(details["point"]["c"], c)
        assert math.isclose(details["point"]["sensitivity"], 2 * math.sqrt(2 * log) + c)
        beta = 2 * math.log(N * T**2 * math.pi**2 / (2 * HALF))
        q = math.sqrt(SIGMA2 * 8 * math.log(6 * T / HALF))
        C1 = 8 / math.log(1 + 1 / SIGMA2)
        gamma = information_gain_bound(
            matern(in_unit_box(candidates())), num_steps=T, noise_variance=SIGMA2
        )
        delta = math.sqrt(C1 * beta * gamma / T) + c + q
        expected = {"beta": beta, "c": c, "q": q, "C1": C1, "gamma": gamma}
        for name, number in {**expected, "sensitivity": delta}.items():
            assert math.isclose(details["value"][name], number, rel_tol=1e-6), name

    @pytest.mark.parametrize("constants", ["repaired", "icml2015", "workshop"])
    @pytest.mark.parametrize("output", ["both", "point", "value"])
    def test_details_are_those_of_the_theory(self, constants, output):
        opt = make(constants=constants, output=output)
        setting = {
            "num_steps": T,
            "num_candidates": N,
            "delta": HALF if output == "both" else WHOLE,
            "correlation": RHO,
            "constants": constants,
        }
        expected = {}
        if output != "value":
            expected["point"] = point_sensitivity(**setting).to_dict()
        if output != "point":
            gamma = opt.details["value"]["gamma"]
            expected["value"] = value_sensitivity(
                gamma=gamma, noise_variance=SIGMA2, **setting
            ).to_dict()
        assert_close(opt.details, expected)
        noise_free = make("kusner-noise-free", constants=constants, output=output)
        if output != "point":
            expected["value"] = noise_free_sensitivity(
                num_dims=D, **REGRET, **setting
            ).to_dict()
        assert_close(noise_free.details, expected)

    def test_algorithm_2(self, drawn):
        X, problem = candidates(), Bowls(n=RECORDS)
        opt = make("kusner-noise-free", noise_variance=1e-6, output="value")
        asked = asked_points(opt, problem)
        betas = [
            ucb_beta(step=t, num_candidates=N, delta=WHOLE) for t in range(1, T + 1)
        ]
        indices, gains, _ = search_by_hand(X, problem, betas, 1e-6)
        assert torch.allclose(asked, X[indices], atol=1e-12)
        c = 2 * math.sqrt((1 - RHO) * math.log(2 * N / WHOLE))
        regret = 4.0 * math.exp(-0.1 * T / math.log(T) ** (D / 4))
        ((_, value, scale),) = drawn
        assert math.isclose(float(value), max(gains), rel_tol=1e-12)
        assert math.isclose(scale, (regret + c) / 1.0)

    def test_algorithm_3(self, drawn):
        X = torch.linspace(1.0, 1.25, N, **DOUBLE).unsqueeze(-1)
        problem, opt = Models(), make("lipschitz", noise_variance=SIGMA2)
        asked = asked_points(opt, problem)
        indices, gains, _ = search_by_hand(X, problem, T * [2.0], SIGMA2)
        assert torch.allclose(asked, X[indices], atol=1e-12)
        # (1 - 1/1.25) L + 1/n: in units of the gain, a quarter of the range.
        sensitivity = 0.2 * 0.5 + 1 / RECORDS
        assert math.isclose(opt.details["value"]["sensitivity"], sensitivity)
        ((_, value, scale),) = drawn
        assert math.isclose(float(value), max(gains), rel_tol=1e-12)
        assert math.isclose(scale, sensitivity / 0.25 / 1.0)
        result = opt.result()
        assert result.x.isnan().all()
        released = float(SeededNoise(seeded()).add_laplace(value, scale))
        assert math.isclose(result.value, 0.5 - 0.25 * released)

    def test_a_kernel_of_ones_own(self):
        with DEVICE:
            kernel = MaternKernel(nu=2.5).double()
            kernel.lengthscale = 0.5
        assert_close(make(kernel=kernel).details, make().details)
        with DEVICE:
            kernel.lengthscale = 5.0  # less to learn
        gamma = make(kernel=kernel).details["value"]["gamma"]
        assert gamma < make().details["value"]["gamma"]

    def test_single_precision(self):
        opt = make(candidates=candidates().float())
        result = opt.run(lambda X: Bowls(n=RECORDS)(X), progress=False)
        assert result.x.dtype == torch.float32
        assert_close(opt.details, make().details, rel_tol=1e-4)


class TestUtility:
    def test_finds_a_top_candidate_without_noise(self):
        # At epsilon = 1000 the scores' noise is 0.03 of prior standard deviations.
        problem = Bowls(n=RECORDS)
        truth = problem(candidates()).mean(dim=0)
        opt = make(guarantee=ApproxDP(1000.0, 0.1), num_steps=15, quiet=False)
        result = run(opt)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() <= 0.1
        assert abs(result.value - float(truth.min())) < 0.02

    def test_a_random_one_at_an_epsilon_that_protects(self):
        # As documented: probabilities between 1/2 and 2 times those of a uniform draw.
        opt = make(output="point")
        scale = 2 * opt.details["point"]["sensitivity"] / BUDGET.epsilon
        gains = (0.5 - Bowls(n=RECORDS)(candidates()).mean(dim=0)) / 0.25
        probabilities = N * (gains / scale).softmax(dim=-1)
        assert probabilities.min() > 0.5
        assert probabilities.max() < 2.0


class TestWarning:
    @pytest.mark.parametrize(
        ("release", "kwargs", "names"),
        [
            ("kusner", {}, ["point's score", "value"]),
            ("kusner", {"output": "point"}, ["point's score"]),
            ("kusner", {"output": "value"}, ["value"]),
            ("kusner-noise-free", {}, ["point's score", "value"]),
            ("kusner-noise-free", {"output": "value", "regret_scale": 9.0}, ["value"]),
            ("lipschitz", {"guarantee": PureDP(0.05)}, ["value"]),
        ],
    )
    def test_noise_larger_than_the_range(self, release, kwargs, names):
        with pytest.warns(UselessReleaseWarning, match="release='stable'") as caught:
            make(release, quiet=False, **kwargs)
        assert len(caught) == len(names)
        for warning, name in zip(caught, names, strict=True):
            assert f"The noise on the {name} has scale" in str(warning.message)

    @pytest.mark.parametrize(
        ("release", "guarantee"),
        [
            ("kusner", ApproxDP(1000.0, 0.1)),
            ("kusner-noise-free", ApproxDP(1000.0, 0.1)),
            ("lipschitz", PureDP(1.0)),
        ],
    )
    def test_none_where_noise_is_small(self, recwarn, release, guarantee):
        make(release, quiet=False, guarantee=guarantee)
        assert not recwarn.list

    @pytest.mark.parametrize("output", ["point", "value"])
    def test_just_there(self, recwarn, output):
        # The range is 4 prior standard deviations; noise has scale Delta / epsilon, or
        # 2 Delta / epsilon on a score.
        sensitivity = make(output=output).details[output]["sensitivity"]
        epsilon = (2 if output == "point" else 1) * sensitivity / 4
        make(output=output, guarantee=ApproxDP(1.001 * epsilon, 0.1), quiet=False)
        assert not recwarn.list
        with pytest.warns(UselessReleaseWarning):
            make(output=output, guarantee=ApproxDP(0.999 * epsilon, 0.1), quiet=False)

    @pytest.mark.parametrize("release", RELEASES)
    def test_silent_once_private_data_is_there(self, recwarn, release):
        opt, problem = make(release), problem_of(release)
        hostile = torch.tensor([[math.nan], [1e30], [-math.inf]], **DOUBLE)
        recwarn.clear()
        while not opt.done:
            losses = problem(opt.ask())
            losses[:3] = hostile
            opt.tell(losses)
        assert not recwarn.list


class TestMisuse:
    @pytest.mark.parametrize(
        ("release", "kwargs", "message"),
        [
            ("kusner", {"guarantee": PureDP(1.0)}, "must be an ApproxDP"),
            ("kusner-noise-free", {"guarantee": PureDP(1.0)}, "must be an ApproxDP"),
            ("lipschitz", {"guarantee": BUDGET}, "must be a PureDP"),
            ("lipschitz", {"candidates": candidates()}, "one regularization .* d=2"),
            ("lipschitz", {"loss_range": (-1.0, 1.0)}, "losses from 0"),
            ("lipschitz", {"output": "both"}, "output must be 'value'"),
            ("lipschitz", {"output": "point"}, "output must be 'value'"),
            ("lipschitz", {"constants": "workshop"}, "no Algorithm 3"),
            ("lipschitz", {"lipschitz": -1.0}, "lipschitz must be"),
            ("lipschitz", {"correlation": 0.9}, "options.* 'correlation'"),
            ("lipschitz", {"batch_size": 2}, "batch_size must be 1"),
            ("kusner", {"correlation": 1.5}, "correlation must be from 0 to 1"),
            ("kusner", {"correlation": -0.1}, "correlation must be from 0 to 1"),
            ("kusner", {"constants": "icml"}, "constants must be one of"),
            ("kusner", {"scoring": "linear"}, "options.* 'scoring'"),
            ("kusner", {"regret_scale": 1.0}, "options.* 'regret_scale'"),
            ("kusner", {"adaptive": True}, "adaptive=True needs release='stable'"),
            ("kusner", {"batch_size": 2}, "batch_size must be 1"),
            ("kusner", {"output": "everything"}, "output must be one of"),
            ("kusner-noise-free", {"regret_rate": 0.0}, "regret_rate must be"),
            ("kusner-noise-free", {"num_steps": 1}, "num_steps must be"),
            ("kusner-noise-free", {"adaptive": True}, "needs release='stable'"),
            ("gp", {}, "release must be one of"),
        ],
    )
    def test_arguments(self, release, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(release, **kwargs)

    @pytest.mark.parametrize(
        ("release", "missing"),
        [
            ("kusner", "'correlation'"),
            ("kusner-noise-free", "'correlation'"),
            ("lipschitz", "'lipschitz'"),
        ],
    )
    def test_options_that_are_needed(self, release, missing):
        guarantee = PureDP(1.0) if release == "lipschitz" else BUDGET
        with pytest.raises(InvalidArgumentError, match=f"{release}.*{missing}"):
            PrivateBO(
                candidates=candidates()[:, :1],
                num_records=RECORDS,
                guarantee=guarantee,
                num_steps=T,
                loss_range=(0.0, 1.0),
                release=release,
            )

    def test_wrong_shape_costs_nothing(self):
        opt = make(num_steps=1)
        X = opt.ask()
        with pytest.raises(InvalidArgumentError, match="300 x 1"):
            opt.tell(Bowls(n=RECORDS)(X).mT)
        assert len(opt.ledger) == 0
        opt.tell(Bowls(n=RECORDS)(X))  # the question still stands
        assert opt.done
