"""The private trust region: its steps by hand, its privacy, its misuse."""

import math

import pytest
import torch

from botorch_dp import GDP, DPTrustRegion
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers.gibo import trust_region
from botorch_dp.privacy import (
    ApproxDP,
    GaussianMechanism,
    Ledger,
    audit_mu,
    mu_audit_power,
)
from tests.devices import seeded
from tests.optimizers.problems import (
    DOUBLE,
    Quadratics,
    differing,
    make,
    same_state,
    unit_box,
)

N, B, MU, RUNS = 5, 1.0, 1.0, 500


def region(**kwargs):
    return make(cls=DPTrustRegion, **kwargs)


def fix(opt, releases):
    """Let a search see given releases instead of private means."""
    releases = iter(releases)
    opt._release = lambda private_mean: torch.as_tensor(next(releases), **DOUBLE)


class TestSteps:
    def test_kinds_depend_on_the_number_alone(self):
        opt = region(num_steps=8, moves_per_check=2)
        kinds = [opt.is_check(number) for number in range(1, 9)]
        assert kinds == [False, False, True, False, False, True, False, True]

    def test_moves_by_hand(self):
        opt, problem = region(d=2, num_steps=6, moves_per_check=1, radius=0.1), None
        problem = Quadratics(d=2)
        fix(opt, [[3.0, 4.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        length, start = 0.1 * math.sqrt(2), torch.full((2,), 0.5, **DOUBLE)
        opt.tell(problem(opt.ask()))  # a gradient
        first = start - length * torch.tensor([0.6, 0.8], **DOUBLE)
        assert torch.allclose(opt.x, first)
        assert torch.allclose(opt.ask(), torch.stack([first, start]))
        opt.tell(problem(opt.ask()))  # a check that succeeds
        assert torch.allclose(opt.center, first)
        opt.tell(problem(opt.ask()))
        second = first - length * torch.tensor([0.0, 1.0], **DOUBLE)
        assert torch.allclose(opt.x, second)
        opt.tell(problem(opt.ask()))  # a check that fails
        assert torch.allclose(opt.x, first)
        assert opt.radius == 0.05

    def test_grows_after_successes_in_a_row(self):
        opt, problem = region(d=2, num_steps=9, moves_per_check=1), Quadratics(d=2)
        fix(opt, [[1.0, 0.0], [-1.0, 0.0]] * 4)
        radii = []
        for _ in range(8):
            opt.tell(problem(opt.ask()))
            radii.append(opt.radius)
        assert radii == [0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.4]

    def test_radius_shrinks_if_gradients_oppose_each_other(self):
        opt, problem = region(d=2, num_steps=9, moves_per_check=8), Quadratics(d=2)
        fix(opt, [[2.0, 0.0], [0.0, 3.0], [0.0, -1.0], [3.0, 4.0]])
        radii = []
        for _ in range(4):
            opt.tell(problem(opt.ask()))
            radii.append(opt.radius)
        expected = [0.1, 0.1, 0.05, 0.05 * 2**-0.8]
        assert radii == pytest.approx(expected)

    def test_every_other_design_is_mirrored(self):
        def problem(X):  # curved along one coordinate
            return X[:, 0].square().expand(50, -1)

        seen = []
        opt = region(d=2, n=50, num_steps=9, clip_norm=10.0, noise_variance=0.01)

        def release(private_mean):  # stays where it is
            seen.append(private_mean.clone())
            return torch.zeros_like(private_mean)

        opt._release = release
        start, designs = opt.x, []
        for _ in range(5):  # the third is a check
            designs.append(opt.ask())
            opt.tell(problem(designs[-1]))
        assert torch.allclose(designs[1], 2 * start - designs[0])
        assert torch.allclose(designs[3], designs[0])
        assert torch.allclose(designs[4], designs[1])
        # What curvature adds to the gradient cancels.
        gradient = torch.stack([2 * start[0], torch.zeros_like(start[0])])
        one, two = (mean.to(gradient) - gradient for mean in seen[:2])
        assert (one + two).norm() / 2 < 0.2 * one.norm()

    def test_designs_that_would_leave_the_box_are_not_mirrored(self):
        corner = torch.full((2,), 0.001, **DOUBLE)
        opt = region(d=2, num_steps=9, initial_x=corner)
        fix(opt, [[0.0, 0.0]])
        first = opt.ask()
        opt.tell(Quadratics(d=2)(first))
        assert torch.allclose(opt.ask(), first)
        assert ((first >= 0) & (first <= 1)).all()

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_does_not_circle_the_optimum(self, seed):
        # Moves of one length jumped over it and back, an even number between checks.
        records = 0.2 + 0.4 * torch.rand(1000, 3, generator=seeded(0), **DOUBLE)

        def losses(X):
            return (records.unsqueeze(1) - X).square().sum(dim=-1) / 2

        opt = DPTrustRegion(
            unit_box(3),
            1000,
            GDP(MU),
            10,
            B,
            moves_per_check=4,
            generator=seeded(seed),
        )
        x = opt.run(losses, progress=False).x
        assert (x - records.mean(dim=0)).norm() < 0.05

    def test_releases_the_mean_gradient_and_the_mean_slope(self):
        problem, seen = Quadratics(d=2, n=50), []
        opt = region(d=2, n=50, num_steps=2, moves_per_check=1, clip_norm=10.0)

        def release(private_mean):
            seen.append(private_mean.clone())
            return private_mean

        opt._release = release
        start = opt.x
        opt.tell(problem(opt.ask()).split(20))
        moved = opt.x
        opt.tell(problem(opt.ask()))
        gradient = problem.gradients(start).mean(dim=0)
        assert torch.allclose(seen[0].to(gradient), gradient, atol=1e-3)
        values = problem(torch.stack([moved, start])).mean(dim=0)
        slope = (values[0] - values[1]) / (moved - start).norm()
        assert torch.allclose(seen[1][:1].to(slope), slope, atol=1e-9)
        assert not seen[1][1:].any()

    def test_descends(self):
        problem = Quadratics(n=2000)
        opt = region(n=2000, num_steps=30, mu=5.0)
        x = opt.run(problem, progress=False).x
        assert (x - problem.records.mean(dim=0)).norm() < 0.1


class Slopes:
    """Record 0 loses ``first`` times the first coordinate, others nothing."""

    def __init__(self, first):
        self.slopes = torch.zeros(N, 2, **DOUBLE)
        self.slopes[0, 0] = first

    def __call__(self, X):
        return self.slopes @ X.mT


def released_slopes(first, seed, broken=None):
    """Return the released slope of many checks of the same move."""
    problem, found = Slopes(first), []
    opt = DPTrustRegion(
        unit_box(2),
        N,
        GDP(MU),
        2,
        B,
        moves_per_check=1,
        ledger=Ledger(),  # without a cap: the check is repeated
        generator=seeded(seed),
    )
    opt.tell(problem(opt.ask()))
    if broken == "noise halved":
        draw = opt._mechanism.noise_source.add_gaussian
        opt._mechanism.noise_source.add_gaussian = lambda value, std: draw(
            value, std / 2
        )
    release = opt._release

    def note(private_mean):
        found.append(release(private_mean))
        return found[-1]

    opt._release = note
    center = opt._center
    moved = center + torch.tensor([0.1, 0.0], dtype=center.dtype, device="cpu")
    points = torch.stack([moved, center])
    losses = problem(opt._points_of(points))
    for _ in range(RUNS):
        opt._parameter, opt._center = moved, center
        opt._learn(losses, points)
    return torch.stack(found)[:, 0]


class TestAudit:
    """A record's slope turns from -3 B to 3 B, and is clipped: a step of mu / sqrt 2.

    Two releases share mu = 1. With 500 checks a side, a claim of half the truth is
    refuted with power 0.95 at least.
    """

    share = MU / math.sqrt(2)

    def test_power(self):
        power = mu_audit_power(
            true_mu=2 * self.share, claimed_mu=self.share, num_samples=RUNS
        )
        assert power > 0.95

    def test_a_check(self):
        low, high = released_slopes(-3.0, 1), released_slopes(3.0, 2)
        result = audit_mu(low, high, threshold=0.0)
        assert not result.rejects(GDP(self.share))
        assert result.rejects(GDP(self.share / 4))  # the audit sees what is there

    def test_halved_noise_is_refuted(self):
        low = released_slopes(-3.0, 3, "noise halved")
        high = released_slopes(3.0, 4, "noise halved")
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(self.share))

    def test_no_clipping_is_refuted(self, monkeypatch):
        monkeypatch.setattr(
            trust_region, "clipped_row_sum", lambda rows, bound: rows.sum(dim=0)
        )
        low, high = released_slopes(-3.0, 5), released_slopes(3.0, 6)
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(self.share))


class TestPrivacy:
    @pytest.mark.parametrize("step", [1, 2])
    @pytest.mark.parametrize(
        "value", [1e30, -1e30, float("nan"), float("inf"), 1e308, 7.0]
    )
    def test_a_record_moves_a_mean_by_at_most_2B_over_n(self, value, step):
        problem, means = Quadratics(n=N, d=2), []
        for hostile in (False, True):
            opt = region(n=N, d=2, num_steps=2, moves_per_check=1, clip_norm=0.3)
            for number in (1, 2):
                losses = problem(opt.ask())
                if hostile:
                    losses[0] = value
                    losses[0, 0] = -value
                seen = []

                def release(private_mean, seen=seen):
                    seen.append(private_mean.clone())
                    return torch.tensor([1.0, 0.0], **DOUBLE)

                opt._release = release
                opt.tell(losses)
                if number == step:
                    means.append(seen[0])
        assert means[1].isfinite().all()
        assert (means[1] - means[0]).norm() <= 2 * 0.3 / N * (1 + 1e-9)

    def test_state_depends_on_data_through_releases_only(self, monkeypatch):
        given = []

        def release(self, private_value, *, ledger, batch_dims=0):
            given.append(private_value.clone())
            self._charge(ledger, self.event(3), 1, private_value.device)
            return torch.randn(3, generator=seeded(len(given) % 10), **DOUBLE)

        monkeypatch.setattr(GaussianMechanism, "release", release)
        found = []
        for scale in (1.0, -7.0):
            given.clear()
            opt, problem = region(num_steps=10), Quadratics(seed=int(scale > 0))
            asked = []
            while not opt.done:
                asked.append(opt.ask())
                opt.tell(scale * problem(asked[-1]))
            found.append((asked, torch.stack(given), opt))
        (first, data, opt), (second, other_data, other) = found
        assert not torch.allclose(data, other_data)
        assert same_state(first, second)
        assert differing(opt, other) == []

    @pytest.mark.parametrize("secure", [False, True])
    def test_the_whole_run_is_planned_and_paid(self, secure):
        guarantee = ApproxDP(1.0, 1e-6)
        opt = region(guarantee=guarantee, num_steps=7, secure=secure, generator=None)
        ((event, count),) = opt.planned_releases()
        assert count == 7
        opt.run(Quadratics(), progress=False)
        assert [entry.event for entry in opt.ledger.entries] == [event] * 7
        assert opt.account.num_charged == 7
        assert opt.certificate().private

    def test_refused_before_the_first_evaluation(self):
        opt = region(ledger=Ledger(cap=GDP(0.5)))
        with pytest.raises(BudgetExceededError):
            opt.ask()

    def test_noise(self):
        opt = region(num_steps=9, clip_norm=0.3, n=200, mu=2.0)
        assert math.isclose(opt.noise_std, 2 * 0.3 * 3 / (200 * 2.0), rel_tol=1e-9)


class TestState:
    def test_resumes(self):
        problem = Quadratics()
        whole, first = (region(num_steps=12) for _ in range(2))
        whole.run(problem, progress=False)
        for _ in range(6):
            first.tell(problem(first.ask()))
        second = region(num_steps=12)
        second.load_state_dict(first.state_dict())
        assert second.run(problem, progress=False).x.tolist() == whole.x.tolist()
        assert second.radius == whole.radius

    def test_a_centre_outside_the_box_is_refused(self):
        state = region().state_dict()
        state["center"] = torch.full((3,), 2.0, **DOUBLE)
        with pytest.raises(OptimizerStateError, match="outside the box"):
            region().load_state_dict(state)

    @pytest.mark.parametrize(
        "name", ["update", "step_size", "initial_accumulator", "num_directions"]
    )
    def test_takes_no_rule(self, name):
        with pytest.raises(InvalidArgumentError, match=name):
            region(**{name: 0.1})
