"""The commands epsilon and plan, against closed forms and the library's own tables."""

import json
import math

import pytest
from scipy.stats import norm

from botorch_dp import ApproxDP, expect
from botorch_dp.cli import main


def run(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def gaussian_delta(mu, epsilon):
    """The closed form of Balle and Wang (2018)."""
    high = norm.cdf(-epsilon / mu + mu / 2)
    return high - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


class TestEpsilon:
    @pytest.mark.parametrize(
        ("arguments", "mu"),
        [
            (["--mu", "1"], 1.0),
            (["--mu", "0.5", "--steps", "9"], 1.5),
            (["--sigma", "2"], 0.5),
            (["--noise-multiplier", "4", "--steps", "4"], 0.5),
        ],
    )
    def test_gaussian_releases(self, capsys, arguments, mu):
        found = run(capsys, "epsilon", *arguments, "--delta", "1e-5")
        assert gaussian_delta(mu, found["epsilon"]) == pytest.approx(1e-5, rel=1e-6)
        assert found["guarantee"] == {"type": "GDP", "mu": pytest.approx(mu)}

    def test_concentrated_privacy(self, capsys):
        found = run(capsys, "epsilon", "--rho", "0.02", "--delta", "1e-6")
        # Not above the simplest conversion, and above the Gaussian's own epsilon.
        simple = 0.02 + 2 * math.sqrt(0.02 * math.log(1e6))
        assert 0.5 < found["epsilon"] <= simple
        assert gaussian_delta(0.2, found["epsilon"]) < 1e-6
        assert found["guarantee"] is None

    def test_sampling_helps_but_not_with_rho(self, capsys):
        options = ["--sigma", "1", "--steps", "20", "--delta", "1e-5"]
        sampled = run(capsys, "epsilon", *options, "--sample-rate", "0.01")
        assert sampled["event"]["type"] == "PoissonGaussianEvent"
        assert sampled["epsilon"] < run(capsys, "epsilon", *options)["epsilon"] / 10
        arguments = ["--rho", "1", "--delta", "1e-5", "--sample-rate", "0.5"]
        assert main(["epsilon", *arguments]) == 2
        assert "Give --sigma" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "wrong",
        [["--delta", "2"], ["--delta", "1e-5", "--steps", "0"]],
    )
    def test_wrong_numbers(self, capsys, wrong):
        assert main(["epsilon", "--mu", "1", *wrong]) == 2
        assert "must" in capsys.readouterr().err


class TestPlan:
    ARGUMENTS = ("plan", "--records", "5000", "--parameters", "3", "--epsilon", "1")

    def test_what_expect_says(self, capsys):
        found = run(capsys, *self.ARGUMENTS, "--delta", "1e-6")
        expected = expect(5000, 3, ApproxDP(1.0, 1e-6))
        assert found["outlook"]["median"] == expected.outlook.median
        assert len(found["alternatives"]) == len(expected.alternatives)
        assert found["plan"]["num_evaluations"] > 0
        assert "noise_of_each_score" not in found
        assert main([*self.ARGUMENTS, "--delta", "1e-6"]) == 0
        assert str(expected) in capsys.readouterr().out

    def test_the_noise_of_scores_uses_the_budget_up(self, capsys):
        found = run(capsys, *self.ARGUMENTS, "--delta", "1e-6", "--evaluations", "40")
        assert found["plan"]["num_evaluations"] <= 40
        mu = math.sqrt(40) / (5000 * found["noise_of_each_score"])
        assert gaussian_delta(mu, 1.0) == pytest.approx(1e-6, rel=1e-4)
        assert gaussian_delta(mu, 1.0) <= 1e-6 * (1 + 1e-9)

    @pytest.mark.filterwarnings("always::botorch_dp.exceptions.WeakGuaranteeWarning")
    def test_a_large_delta_warns(self, capsys):
        assert main([*self.ARGUMENTS, "--delta", "0.01"]) == 0
        assert "warning: ApproxDP(epsilon=1, delta=0.01)" in capsys.readouterr().err

    def test_no_records(self, capsys):
        arguments = ["plan", "--records", "0", "--parameters", "3"]
        assert main([*arguments, "--epsilon", "1", "--delta", "1e-6"]) == 2
        assert "num_records must be" in capsys.readouterr().err
