"""What leaves DP-GIBO: audits of whole runs, hostile records, public state."""

import copy
import math
import pickle
from dataclasses import replace

import pytest
import torch

from botorch_dp import DPGIBO, GDP, Ledger, NoisyGradientDescent
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.gibo import gradient_descent
from botorch_dp.privacy import GaussianMechanism, audit_mu, mu_audit_power
from tests.optimizers.gibo.test_dp_gibo import released_mean
from tests.optimizers.problems import (
    DEVICE,
    DOUBLE,
    Quadratics,
    differing,
    make,
    seeded,
    unit_box,
)

B, N, T, MU = 1.0, 5, 2, 1.0
RUNS = 200


class Slopes:
    """Record i loses a_i . x: where gradients can be as large as anyone likes."""

    def __init__(self, first):
        self.slopes = torch.zeros(N, 2, **DOUBLE)
        self.slopes[0, 0] = first

    def __call__(self, X):
        return self.slopes @ X.mT


def trajectories(first, seed, broken=None, adjacency="replace_one"):
    """Released trajectories, projected on where the two data sets differ most.

    Wide bounds and plain gradient descent, so that the whole trajectory is known from
    its noisy steps; their mean along the difference is a sufficient statistic.
    """
    generator, problem = seeded(seed), Slopes(first)
    bounds = 1e6 * (2 * unit_box(2) - 1)
    ends = []
    for _ in range(RUNS):
        opt = DPGIBO(
            bounds,
            N,
            GDP(MU),
            T,
            B,
            transform="identity",
            update="sgd",
            step_size=1.0,
            adjacency=adjacency,
            generator=generator,
        )
        if broken == "noise halved":
            draw = opt._mechanism.noise_source.add_gaussian
            opt._mechanism.noise_source.add_gaussian = lambda value, std, draw=draw: (
                draw(value, std / 2)
            )
        opt.run(problem, progress=False)
        ends.append(-opt.history[-1].x[0] / T)
    return torch.stack(ends)


class TestAudit:
    """Replacing one record: its gradient turns from -3 B to 3 B, and is clipped.

    The trajectory's mean moves by 2 B/n against a noise of 2 B/(n mu): exactly mu.
    With 200 runs a side, a claim of half the truth is refuted with power 0.999.
    """

    def test_power(self):
        power = mu_audit_power(true_mu=2 * MU, claimed_mu=MU, num_samples=RUNS)
        assert power > 0.999

    def test_whole_runs(self):
        result = audit_mu(trajectories(-3.0, 1), trajectories(3.0, 2), threshold=0.0)
        assert not result.rejects(GDP(MU))
        assert result.rejects(GDP(MU / 2))  # the audit sees what is there

    def test_halved_noise_is_refuted(self):
        low = trajectories(-3.0, 3, "noise halved")
        high = trajectories(3.0, 4, "noise halved")
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(MU))

    def test_no_clipping_is_refuted(self, monkeypatch):
        monkeypatch.setattr(
            gradient_descent, "clipped_row_sum", lambda rows, bound: rows.sum(dim=0)
        )
        low, high = trajectories(-3.0, 5), trajectories(3.0, 6)
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(MU))


class TestZeroOut:
    """One record contributes nothing: its losses are constant, its gradient is zero.

    The trajectory's mean moves by B/n against a noise of B/(n mu): exactly mu.
    """

    def test_half_the_noise(self):
        settings = {"clip_norm": 0.3, "num_steps": 4}
        replaced, zeroed = make(**settings), make(adjacency="zero_out", **settings)
        assert math.isclose(zeroed.noise_std, replaced.noise_std / 2)
        assert math.isclose(zeroed.noise_std, 0.3 * 2 / 200, rel_tol=1e-9)

    def test_certificate_and_settings(self):
        opt = make(adjacency="zero_out")
        assert opt.settings()["adjacency"] == "zero_out"
        certificate = opt.run(Quadratics(), progress=False).certificate
        assert certificate.adjacency == "zero_out"
        assert math.isclose(certificate.guarantee.mu, 1.0)
        assert certificate.parameters["adjacency"] == "zero_out"
        assert make().settings()["adjacency"] == "replace_one"

    def test_a_state_of_the_other_kind_is_refused(self):
        with pytest.raises(OptimizerStateError, match="adjacency='zero_out' there"):
            make().load_state_dict(make(adjacency="zero_out").state_dict())

    def test_a_ledger_is_for_one_kind(self):
        ledger, problem = Ledger(), Quadratics()
        make(adjacency="zero_out", ledger=ledger).run(problem, progress=False)
        opt = make(ledger=ledger)
        with pytest.raises(InvalidArgumentError, match=r"'replace_one'.*'zero_out'"):
            opt.ask()

    def test_not_for_a_number_of_records_that_is_private(self):
        with pytest.raises(InvalidArgumentError, match="'replace_one', 'zero_out'"):
            make(adjacency="add_or_remove_one")

    @pytest.mark.parametrize("first", [3.0, float("nan")])
    def test_a_record_moves_the_mean_by_no_more_than_B_over_n(self, first):
        means = []
        for slope in (0.0, first):
            opt = make(d=2, n=N, clip_norm=B, adjacency="zero_out")
            means.append(released_mean(opt, Slopes(slope)(opt.ask())))
        moved = float((means[1] - means[0]).norm())
        assert moved <= B / N * (1 + 1e-9)
        if first == 3.0:  # the worst record attains the bound
            assert math.isclose(moved, B / N, rel_tol=1e-6)

    def audit(self, seed, broken=None):
        absent = trajectories(0.0, seed, broken, "zero_out")
        present = trajectories(3.0, seed + 1, broken, "zero_out")
        return audit_mu(absent, present, threshold=B / N / 2)

    def test_whole_runs(self):
        result = self.audit(11)
        assert not result.rejects(GDP(MU))
        assert result.rejects(GDP(MU / 4))  # the audit sees what is there

    def test_halved_noise_is_refuted(self):
        assert self.audit(13, "noise halved").rejects(GDP(MU))

    def test_true_gradients(self):
        made = [
            make(cls=NoisyGradientDescent, adjacency=adjacency).noise_std
            for adjacency in ("replace_one", "zero_out")
        ]
        assert math.isclose(made[0], 2 * made[1])


def hostile_rows():
    return {
        "huge": torch.full((1, 4), 1e30, **DOUBLE),
        "opposed": torch.tensor([[1e30, -1e30, 1e30, -1e30]], **DOUBLE),
        "nan": torch.full((1, 4), float("nan"), **DOUBLE),
        "one nan": torch.tensor([[0.0, 1.0, float("nan"), 2.0]], **DOUBLE),
        "inf": torch.full((1, 4), float("inf"), **DOUBLE),
        "-inf": torch.tensor([[0.0, -float("inf"), 1.0, 2.0]], **DOUBLE),
        "largest": torch.full((1, 4), torch.finfo(torch.float64).max, **DOUBLE),
    }


class TestHostileRecords:
    @pytest.mark.parametrize("name", hostile_rows())
    @pytest.mark.parametrize("step", [1, 3])
    def test_moves_the_mean_by_no_more_than_2B_over_n(self, name, step):
        problem, n, bound = Quadratics(n=50), 50, 0.3
        means = []
        for hostile in (False, True):
            opt = make(n=n, clip_norm=bound, num_steps=4)
            for number in range(1, step + 1):
                losses = problem(opt.ask())
                if hostile:
                    row = hostile_rows()[name]
                    losses[0] = row.repeat(1, 2)[0, : losses.shape[1]]
                if number == step:
                    means.append(released_mean(opt, losses))
                else:
                    # The same public state in both: what is released does not matter.
                    opt._release = lambda private_mean: torch.zeros_like(private_mean)
                    opt.tell(losses)
                    del opt._release
        clean, attacked = means
        assert attacked.isfinite().all()
        assert (attacked - clean).norm() <= 2 * bound / n * (1 + 1e-9)

    def test_sums_round_less_than_one_record_counts(self):
        # With gradients in single precision, too, whose sum near 12,000 would be a
        # multiple of 0.001 there.
        n, bound, single = 50_000, 0.3, {"dtype": torch.float32, "device": DEVICE}
        slopes = 0.1 + 0.3 * torch.rand(n, generator=seeded(), **single)
        for index in range(5):
            means = []
            for slope in (-9.0, 9.0):
                opt = make(d=1, n=n, clip_norm=bound, bounds=unit_box(1, **single))
                slopes[index] = slope
                means.append(released_mean(opt, slopes.unsqueeze(-1) * opt.ask().mT))
            moved = float((means[1] - means[0]).abs())
            assert 1.999 * bound / n < moved <= opt._mechanism.sensitivity

    def test_silently(self, recwarn):
        problem = Quadratics(n=50)
        opt = make(n=50, clip_norm=0.3)
        losses = problem(opt.ask())
        losses[3] = float("nan")
        recwarn.clear()
        opt.tell(losses)
        assert not recwarn.list

    def test_the_worst_record_attains_the_bound(self):
        # Otherwise there would be more noise than needed.
        means = []
        for first in (-3.0, 3.0):
            opt = make(d=2, n=N, clip_norm=B)
            means.append(released_mean(opt, Slopes(first)(opt.ask())))
        assert math.isclose(
            float((means[1] - means[0]).norm()), 2 * B / N, rel_tol=1e-6
        )


def public_parts(opt):
    state = opt.state_dict()
    for charge in state["charges"]:
        del charge["run"]  # a random name
    del state["runs"]
    certificate = replace(opt.result().certificate, head=None)  # a random name
    return state, opt.history, certificate.to_json(), opt.x


class TestNothingElseLeaves:
    @pytest.mark.parametrize("chunked", [False, True])
    def test_state_depends_on_data_through_releases_only(self, monkeypatch, chunked):
        # Two unlike data sets, the same releases: then nothing public may differ.
        given = []

        def release(self, private_value, *, ledger, batch_dims=0):
            given.append(private_value.clone())
            self._charge(ledger, self.event(3), 1, private_value.device)
            fixed = seeded(len(given) % 5)
            return torch.randn(3, generator=fixed, **DOUBLE)

        monkeypatch.setattr(GaussianMechanism, "release", release)
        found = []
        for scale in (1.0, -7.0):
            given.clear()
            opt = make(step_size=0.05)
            problem, public = Quadratics(seed=int(scale > 0)), []
            while not opt.done:
                X = opt.ask()
                losses = scale * problem(X)
                opt.tell(losses.split(33) if chunked else losses)
                public.append((X, public_parts(opt)))  # at any time, not in the end
            found.append((public, torch.stack(given), opt))
        (first, data, opt), (second, other_data, other) = found
        assert not torch.allclose(data, other_data)  # the data sets do differ
        assert_equal(first, second)
        assert differing(opt, other) == []  # losses are forgotten when the run ends

    def test_tell_validates_then_charges_then_draws(self, monkeypatch):
        order = []
        opt, problem = make(), Quadratics()
        charge, draw = opt.ledger.charge, opt._mechanism.noise_source.add_gaussian

        def spy_charge(*args, **kwargs):
            order.append("charge")
            return charge(*args, **kwargs)

        def spy_draw(*args):
            order.append("draw")
            return draw(*args)

        def losses(X):
            yield problem(X)
            order.append("validated")

        monkeypatch.setattr(opt.ledger, "charge", spy_charge)
        monkeypatch.setattr(opt._mechanism.noise_source, "add_gaussian", spy_draw)
        opt.ask()
        opt.tell(losses)
        assert order == ["validated", "charge", "draw"]

    def test_interrupted_before_the_draw(self, monkeypatch):
        opt, problem = make(num_steps=2), Quadratics()
        draw = opt._mechanism.noise_source.add_gaussian

        def interrupted(*args):
            monkeypatch.setattr(opt._mechanism.noise_source, "add_gaussian", draw)
            raise KeyboardInterrupt

        monkeypatch.setattr(opt._mechanism.noise_source, "add_gaussian", interrupted)
        X = opt.ask()
        with pytest.raises(KeyboardInterrupt):
            opt.tell(problem(X))
        assert len(opt.ledger) == 1
        assert opt.history == ()
        opt.tell(problem(X))  # the question still stands, and is paid for again
        assert opt.done
        assert len(opt.ledger) == 2
        assert len(opt.history) == 1

    def test_never_more_than_the_guarantee(self, monkeypatch):
        # Even where the ledger would allow it, and every draw is interrupted.
        opt, problem = make(num_steps=1, ledger=Ledger()), Quadratics()

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(opt._mechanism.noise_source, "add_gaussian", interrupted)
        losses = problem(opt.ask())
        with pytest.raises(KeyboardInterrupt):
            opt.tell(losses)
        for call in (lambda: opt.tell(losses), opt.ask, opt.result):
            with pytest.raises(
                OptimizerStateError, match="paid for, but only 0 were taken"
            ):
                call()
        assert len(opt.ledger) == 1

    def test_nothing_fails_once_a_step_is_paid_for(self, monkeypatch):
        opt, problem = make(), Quadratics()
        losses = problem(opt.ask())

        def full(*args):
            raise MemoryError

        monkeypatch.setattr(opt._losses, "reserve", full)
        with pytest.raises(MemoryError):
            opt.tell(losses)
        assert len(opt.ledger) == 0

    def test_a_running_optimizer_cannot_be_pickled_or_copied(self):
        opt = make()
        opt.tell(Quadratics()(opt.ask()))
        for leak in (pickle.dumps, copy.deepcopy):
            with pytest.raises(OptimizerStateError, match="state_dict"):
                leak(opt)
            with pytest.raises(OptimizerStateError, match="cannot be pickled"):
                leak(opt._losses)

    def test_private_losses_are_not_shown(self):
        opt = make()
        opt.tell(Quadratics()(opt.ask()))
        assert repr(opt._losses) == "PrivateValues(not shown)"

    def test_certificate_states_what_it_rests_on(self):
        text = str(make().run(Quadratics(), progress=False).certificate)
        for words in ("replace_one", "depends on that record", "without the private"):
            assert words in text
        assert "GDP(mu=1)" in text

    def test_noisy_gradient_descent_is_as_private(self):
        opt = make(cls=NoisyGradientDescent, num_steps=3)
        problem = Quadratics()
        result = opt.run(lambda X: problem.gradients(X[0]), progress=False)
        assert math.isclose(result.certificate.guarantee.mu, 1.0)
        assert opt.noise_std == make(num_steps=3).noise_std


def assert_equal(first, second):
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_equal(value, second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_equal(a, b)
    elif hasattr(first, "__dict__"):
        assert_equal(vars(first), vars(second))
    else:
        assert first == second


def test_assert_equal_sees_a_difference():
    x = torch.zeros(2, device=DEVICE)
    with pytest.raises(AssertionError):
        assert_equal({"a": [x]}, {"a": [x + 1e-12]})
