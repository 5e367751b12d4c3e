"""The planner of DP-GIBO: its formulas, its limits, and the runs that follow it."""

import itertools
import math

import pytest
import torch

from botorch_dp import DPGIBO, GDP, RDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.models.gradient_weights import gradient_weights
from botorch_dp.optimizers.gibo.descent_plan import plan_descent
from botorch_dp.privacy import GaussianEvent
from tests.optimizers.problems import DEVICE, Quadratics, same_state, seeded, unit_box

BASE = {"num_records": 1000, "guarantee": GDP(1.0), "loss_range": (0.0, 1.0)}


class TestFormulas:
    def test_by_hand(self):
        # d = 10, n = 1000, mu = 1, T = 20.
        plan = plan_descent(dim=10, **BASE)
        T = 20
        assert plan.num_steps == T
        assert plan.radius == pytest.approx(
            0.33 * (10 * math.sqrt(T) / 1000) ** (1 / 3)
        )
        clip = 0.1 / 10 * 1000 / (2 * math.sqrt(T))  # what noise of R / 100 allows
        assert 0.6 / math.sqrt(10) < clip < math.sqrt(10) / (2 * plan.radius)
        assert plan.clip_norm == pytest.approx(clip)
        assert plan.noise_std == pytest.approx(0.01)
        assert plan.initial_accumulator == pytest.approx(T * 0.01**2)
        assert plan.length_scale == pytest.approx(0.25 * math.sqrt(10))
        assert plan.batch_size == 11
        assert plan.num_evaluations == 220

    def test_radius_has_limits(self):
        many = plan_descent(dim=3, **{**BASE, "num_records": 10**9})
        few = plan_descent(dim=3, **{**BASE, "num_records": 10})
        assert many.radius == pytest.approx(0.03)
        assert few.radius == pytest.approx(0.1 * math.sqrt(3))

    def test_clip_norm_has_limits(self):
        many = plan_descent(dim=4, **{**BASE, "num_records": 10**9})
        few = plan_descent(dim=4, **{**BASE, "num_records": 10})
        assert many.clip_norm == pytest.approx(math.sqrt(4) / (2 * 0.03))
        assert few.clip_norm == pytest.approx(0.25)
        assert plan_descent(
            dim=100, **{**BASE, "num_records": 10}
        ).clip_norm == pytest.approx(0.06)

    def test_scales_with_the_range(self):
        one = plan_descent(dim=5, **BASE)
        other = plan_descent(dim=5, **{**BASE, "loss_range": (-3.0, 4.0)})
        assert other.clip_norm == pytest.approx(7 * one.clip_norm)
        assert other.radius == one.radius
        assert other.noise_variances == one.noise_variances

    def test_a_record_that_is_left_out_needs_half_the_noise(self):
        replaced = plan_descent(dim=5, clip_norm=1.0, **BASE)
        left_out = plan_descent(dim=5, clip_norm=1.0, moves=1.0, **BASE)
        assert left_out.noise_std == pytest.approx(replaced.noise_std / 2)
        assert left_out.radius == pytest.approx(replaced.radius)

    def test_what_is_given_is_kept(self):
        plan = plan_descent(dim=5, clip_norm=0.7, num_steps=7, **BASE)
        assert (plan.clip_norm, plan.num_steps) == (0.7, 7)
        assert plan.noise_std == pytest.approx(2 * 0.7 * math.sqrt(7) / 1000)

    @pytest.mark.parametrize("d", [2, 3, 5])
    def test_a_simplex_gives_no_longer_gradient_than_the_clip_norm_allows(self, d):
        # The bound sqrt(d) R / (2 h) by brute force over losses in {0, R}.
        h = 0.05
        ones = torch.ones(d, d + 1, dtype=torch.float64, device=DEVICE)
        vertices = torch.eye(d + 1, dtype=torch.float64, device=DEVICE) - 1 / (d + 1)
        directions = torch.linalg.svd(vertices).Vh[:d]  # d x (d + 1), orthonormal
        points = (h * math.sqrt((d + 1) / d) * directions).mT  # (d + 1) x d
        assert torch.allclose(points.norm(dim=-1), h * ones[0])
        slopes = torch.linalg.pinv(
            torch.cat([points, torch.ones_like(points[:, :1])], dim=-1)
        )[:d]
        losses = itertools.product((0.0, 1.0), repeat=d + 1)
        norms = [float((slopes @ points.new_tensor(loss)).norm()) for loss in losses]
        bound = math.sqrt(d) / (2 * h)
        assert max(norms) <= bound * (1 + 1e-9)
        if d % 2:  # half of the vertices attain it
            assert max(norms) == pytest.approx(bound)


class TestStencil:
    @pytest.mark.parametrize(
        ("d", "shape"), [(8, "simplex"), (3, "pairs"), (1, "pairs")]
    )
    def test_points_have_the_planned_distance(self, d, shape):
        plan = plan_descent(dim=d, **BASE)
        opt = DPGIBO(unit_box(d), 1000, GDP(1.0), loss_range=(0.0, 1.0))
        distances = (opt.ask() - 0.5).norm(dim=-1)
        assert len(distances) == (2 * d if shape == "pairs" else d + 1)
        # The formulas of the radius are of leading order in s^2.
        assert torch.allclose(
            distances, distances.new_tensor(1.7 * plan.radius), rtol=0.15
        )

    def test_shrinks_over_the_first_half(self):
        variances = plan_descent(dim=8, **BASE).noise_variances
        assert variances[0] / variances[-1] == pytest.approx(1.7**8)
        assert len(set(variances[10:])) == 1
        assert all(a > b for a, b in itertools.pairwise(variances[:11]))

    def test_weights_use_the_variance_of_their_step(self):
        opt = DPGIBO(
            unit_box(3), 200, GDP(1.0), loss_range=(0.0, 1.0), generator=seeded()
        )
        problem, variances = Quadratics(), opt.plan.noise_variances
        assert len(set(variances)) > 5
        for variance in variances:
            theta, X = opt.x.cpu(), opt.ask()
            expected = gradient_weights(
                opt.geometry.kernel,
                theta,
                torch.cat([opt._points[opt._remembered], X.cpu()]),
                noise_variance=variance,
                constant_mean=True,
            )
            assert torch.allclose(opt._weights.cpu(), expected.weights, atol=1e-7)
            opt.tell(problem(X))
            assert math.isclose(
                opt.history[-1].trace, float(expected.trace), rel_tol=1e-6
            )
        assert opt.done


class TestEvaluations:
    @pytest.mark.parametrize("d", [1, 2, 5, 6, 7, 20])
    def test_never_more_than_allowed(self, d):
        for allowed in range(2, 60 * d):
            plan = plan_descent(dim=d, max_evaluations=allowed, **BASE)
            assert plan.num_evaluations <= allowed
            assert 1 <= plan.num_directions <= d
            assert plan.batch_size >= plan.num_directions + 1

    def test_few_evaluations_look_at_some_coordinates(self):
        plan = plan_descent(dim=20, max_evaluations=12, **BASE)
        whole = plan_descent(dim=20, max_evaluations=42, **BASE)
        assert (plan.num_steps, plan.num_directions) == (2, 5)
        assert (whole.num_steps, whole.num_directions) == (2, 20)
        assert plan.clip_norm == pytest.approx(whole.clip_norm / 2)

    def test_given_steps_share_the_evaluations(self):
        plan = plan_descent(dim=20, num_steps=6, max_evaluations=60, **BASE)
        assert (plan.num_steps, plan.num_directions) == (6, 9)

    def test_a_run_evaluates_as_planned(self):
        for allowed in (9, 40, 100, 400):
            problem = Quadratics(n=100, d=8)
            opt = DPGIBO(
                unit_box(8),
                100,
                GDP(1.0),
                loss_range=(0.0, 4.0),
                max_evaluations=allowed,
                generator=seeded(),
            )
            result = opt.run(problem, progress=False)
            assert result.num_evaluations == opt.plan.num_evaluations <= allowed

    @pytest.mark.parametrize("way", ["chunks", "resumed"])
    def test_points_are_not_evaluated_again(self, way):
        problem, num_points = Quadratics(n=100, d=3), 0
        settings = {"loss_range": (0.0, 2.0), "max_evaluations": 40}
        opt = DPGIBO(unit_box(3), 100, GDP(1.0), **settings)
        while not opt.done:
            X = opt.ask()
            num_points += len(X)
            losses = problem(X)
            opt.tell(list(losses.split(30)) if way == "chunks" else losses)
            if way == "resumed":
                state = opt.state_dict()
                opt = DPGIBO(unit_box(3), 100, GDP(1.0), **settings)
                opt.load_state_dict(state)
        assert num_points == opt.plan.num_evaluations <= 40


class TestRuns:
    def make(self, **kwargs):
        kwargs = {"loss_range": (0.0, 2.0), "generator": seeded(), **kwargs}
        return DPGIBO(unit_box(4), 300, GDP(1.0), **kwargs)

    def test_settings_are_the_plan(self):
        opt = self.make()
        settings = opt.settings()
        for name in ("num_steps", "clip_norm", "step_size", "initial_accumulator"):
            assert settings[name] == getattr(opt.plan, name)
        assert settings["noise_variance"] == list(opt.plan.noise_variances)
        assert opt.noise_std == pytest.approx(opt.plan.noise_std)

    def test_spends_the_guarantee(self):
        opt = self.make()
        result = opt.run(Quadratics(n=300, d=4), progress=False)
        assert result.certificate.guarantee.mu == pytest.approx(1.0)
        assert "noise_variance" in result.certificate.parameters
        assert " to " in result.certificate.parameters["noise_variance"]

    def test_a_given_setting_wins(self):
        opt = self.make(step_size=0.05, initial_accumulator=0.0, batch_size=5)
        assert opt.settings()["step_size"] == 0.05
        assert opt.settings()["initial_accumulator"] == 0.0
        assert len(opt.ask()) == 5
        own = self.make(noise_variance=1e-4)
        assert own.settings()["noise_variance"] == 1e-4
        assert self.make(update="sgd").settings()["initial_accumulator"] == 0.0

    def test_without_planning_nothing_changes(self):
        opt = DPGIBO(unit_box(4), 300, GDP(1.0), 5, 1.0)
        assert opt.plan is None
        assert opt.settings()["noise_variance"] == 1e-6
        assert opt.settings()["initial_accumulator"] == 0.0

    def test_the_earlier_name_of_the_theory_warns(self):
        with pytest.warns(DeprecationWarning, match="plan_by_theory"):
            planner = DPGIBO.plan
        assert planner is DPGIBO.plan_by_theory

    def test_first_step_follows_adagrad_from_the_accumulator(self):
        opt = self.make()
        released = []
        release = opt._release
        opt._release = lambda mean: released.append(release(mean)) or released[-1]
        opt.tell(Quadratics(n=300, d=4)(opt.ask()))
        start = opt.plan.initial_accumulator
        step = 0.2 * released[0] / ((start + released[0].square()).sqrt() + 1e-10)
        expected = (0.5 - step).clamp(0.0, 1.0)
        assert torch.allclose(opt.x, expected)

    def test_resumes(self):
        problem = Quadratics(n=300, d=4)
        first, second = self.make(), self.make(generator=seeded(1))
        for _ in range(3):
            first.tell(problem(first.ask()))
        second.load_state_dict(first.state_dict())
        second.tell(problem(second.ask()))
        assert len(second.history) == 4
        again = self.make(generator=seeded(2))
        again.load_state_dict(second.state_dict())
        assert same_state(
            {**again.state_dict(), "runs": 0}, {**second.state_dict(), "runs": 0}
        )


class TestDirections:
    def make(self, **kwargs):
        kwargs = {"num_directions": 2, "generator": seeded(), **kwargs}
        return DPGIBO(unit_box(5), 200, GDP(1.0), 5, 0.5, **kwargs)

    def test_only_the_chosen_coordinates_move(self):
        opt, problem, seen = self.make(), Quadratics(n=200, d=5), set()
        for step in range(5):
            before, chosen = opt.x, opt.geometry.directions(step)
            points = opt.ask()
            others = [i for i in range(5) if i not in chosen]
            assert len(set(chosen)) == 2
            assert len(points) == 3
            assert torch.equal(points[:, others], before[others].expand(3, -1))
            opt.tell(problem(points))
            assert torch.equal(opt.x[others], before[others])
            assert (opt.x[chosen] != before[chosen]).all()
            seen |= set(chosen)
        assert seen == set(range(5))  # they take turns

    def test_gradients_are_those_of_the_chosen_coordinates(self):
        opt = self.make(window=0)
        whole = gradient_weights(
            opt.geometry.kernel,
            opt.x.cpu(),
            opt.ask().cpu(),
            noise_variance=1e-6,
            constant_mean=True,
        ).weights
        expected = whole[opt.geometry.directions(0)]
        assert torch.allclose(opt._weights.cpu(), expected, rtol=1e-9)

    def test_one_record_moves_the_released_mean_by_at_most_the_sensitivity(self):
        calm, hostile = (
            torch.zeros(200, 3, device=DEVICE),
            torch.zeros(200, 3, device=DEVICE),
        )
        hostile[0] = torch.tensor([1e9, -1e9, 3e8], device=DEVICE)
        means = []
        for losses in (calm.double(), hostile.double()):
            opt = self.make()
            opt._release = lambda mean: means.append(mean.clone()) or mean
            opt.ask()
            opt.tell(losses)
        assert len(means[0]) == 2
        assert 0 < float((means[1] - means[0]).norm()) <= 0.5 / 200 * (1 + 1e-9)

    def test_charges_what_all_directions_would(self):
        opt = self.make()
        ((event, count),) = opt.planned_releases()
        assert count == 5
        assert isinstance(event, GaussianEvent)
        assert event.gdp_mu == pytest.approx(1 / math.sqrt(5))

    @pytest.mark.parametrize("num_directions", [0, 6, 1.5])
    def test_bad_numbers(self, num_directions):
        with pytest.raises(InvalidArgumentError, match="num_directions"):
            self.make(num_directions=num_directions)

    def test_a_given_number_is_planned_for(self):
        opt = DPGIBO(unit_box(6), 200, GDP(1.0), loss_range=(0, 1), num_directions=1)
        assert len(opt.ask()) == 2
        assert opt.plan.num_directions == 1
        whole = DPGIBO(unit_box(6), 200, GDP(1.0), loss_range=(0, 1))
        assert opt.clip_norm == pytest.approx(whole.clip_norm / math.sqrt(6))

    def test_excludes_a_tolerance(self):
        with pytest.raises(InvalidArgumentError, match="no tolerance"):
            self.make(tolerance=2.0)

    def test_needs_designs_with_one_length_scale(self):
        with pytest.raises(InvalidArgumentError, match="search='design'"):
            self.make(search="optimize")


class TestMistakes:
    def test_a_range_or_a_clip_norm_is_needed(self):
        with pytest.raises(InvalidArgumentError, match="Give loss_range"):
            DPGIBO(unit_box(2), 100, GDP(1.0))
        assert DPGIBO(unit_box(2), 100, GDP(1.0), clip_norm=1.0).plan is not None

    def test_identity_has_no_unit(self):
        with pytest.raises(InvalidArgumentError, match="identity"):
            DPGIBO(unit_box(2), 9, GDP(1.0), loss_range=(0, 1), transform="identity")

    def test_evaluations_and_batch_size(self):
        with pytest.raises(InvalidArgumentError, match="leave out batch_size"):
            DPGIBO(
                unit_box(2),
                100,
                GDP(1.0),
                loss_range=(0, 1),
                max_evaluations=50,
                batch_size=4,
            )

    def test_too_few_evaluations_for_the_steps(self):
        with pytest.raises(InvalidArgumentError, match="at least 20"):
            plan_descent(dim=3, num_steps=10, max_evaluations=19, **BASE)

    def test_guarantees(self):
        for guarantee in (ApproxDP(1.0, 1e-5), RDP(order=8, epsilon=1.0)):
            plan = plan_descent(dim=3, **{**BASE, "guarantee": guarantee})
            assert plan.mu == guarantee.to_gdp().mu
        with pytest.raises(UnsupportedConversionError):
            plan_descent(dim=3, **{**BASE, "guarantee": PureDP(1.0)})

    def test_accumulator_needs_adagrad(self):
        with pytest.raises(InvalidArgumentError, match="update='adagrad'"):
            DPGIBO(
                unit_box(2),
                100,
                GDP(1.0),
                5,
                1.0,
                update="sgd",
                initial_accumulator=1.0,
            )

    def test_noise_variances_must_be_positive(self):
        for bad in ([], [1e-4, 0.0]):
            with pytest.raises(InvalidArgumentError, match="noise_variance"):
                DPGIBO(unit_box(2), 100, GDP(1.0), 5, 1.0, noise_variance=bad)
