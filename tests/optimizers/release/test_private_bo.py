"""Stable and adaptive releases: sensitivities, probabilities, budgets, misuse."""

import itertools
import math
from collections import Counter

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp import GDP, RDP, ApproxDP, GradientGP, Ledger, PrivateBO, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers.release.scores import StableScores
from botorch_dp.privacy import (
    ExponentialEvent,
    ExponentialMechanism,
    GaussianEvent,
    GaussianMechanism,
    LaplaceMechanism,
    PureEvent,
    SeededNoise,
    audit_epsilon,
    worst_log_ratio,
)
from tests.optimizers.problems import (
    CPU,
    DOUBLE,
    differing,
    same_state,
    seeded,
    unit_box,
)

N, D = 40, 2


def candidates(count=N, seed=1):
    return torch.rand(count, D, generator=seeded(seed), **DOUBLE)


class Bowls:
    """Record i loses the squared distance to its own point, over the range."""

    def __init__(self, n=300, seed=0):
        self.records = torch.rand(n, D, generator=seeded(seed), **DOUBLE)

    def __call__(self, X):
        return (X - self.records.unsqueeze(1)).square().sum(dim=-1) / D


def make(n=300, num_steps=6, guarantee=PureDP(1.0), **kwargs):  # noqa: B008
    kwargs.setdefault("generator", seeded())
    if "bounds" not in kwargs:
        kwargs.setdefault("candidates", candidates())
    kwargs.setdefault("loss_range", (0.0, 1.0))
    return PrivateBO(num_records=n, guarantee=guarantee, num_steps=num_steps, **kwargs)


def make_scores(n=7, T=5, noise_variance=1e-3):
    with CPU:
        kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
        kernel.lengthscale = 0.5
    points = candidates()
    evaluated = [3, 8, 20, 31, 39][:T]
    scores = StableScores(
        kernel,
        points,
        evaluated,
        num_records=n,
        width=4.0,
        noise_variance=noise_variance,
    )
    K = kernel(points[evaluated]).to_dense() + noise_variance * torch.eye(T, **DOUBLE)
    weights = torch.linalg.solve(K, kernel(points[evaluated], points).to_dense()).mT
    return scores, weights  # N x T


class TestScores:
    def test_by_hand(self):
        scores, weights = make_scores()
        losses = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)
        found = {
            method: torch.cat([*scores.private_scores(method, losses)])
            for method in ("evaluated", "per-record", "linear")
        }
        assert torch.allclose(found["evaluated"], -losses.mean(dim=0))
        smooth = (losses - 2.0) @ weights.mT + 2.0  # n x N, around the middle
        expected = smooth.clamp(0.0, 4.0).mean(dim=0)
        assert torch.allclose(found["per-record"], -expected, atol=1e-9)
        assert torch.allclose(found["linear"], -smooth.mean(dim=0), atol=1e-9)
        for method, index in itertools.product(("per-record", "linear"), (0, 17, 20)):
            value = scores.private_value(method, losses, index)
            expected = -found[method][index]
            if index == 20:  # evaluated: no need to guess
                expected = losses[:, 2].mean()
            assert torch.allclose(value, expected, atol=1e-9)

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    def test_sensitivity_holds_and_is_attained(self, method):
        # One record's losses are set to the corners that move each candidate most.
        scores, weights = make_scores(noise_variance=1e-6)
        bound = scores.sensitivity(method)
        base = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)

        def score(row):
            losses = base.clone()
            losses[0] = row
            return torch.cat([*scores.private_scores(method, losses)])

        corners = [torch.full((5,), -1.0, **DOUBLE), torch.full((5,), 3.0, **DOUBLE)]
        for signs in weights.sign():
            corners += [1.0 + 2.0 * signs, 1.0 - 2.0 * signs]
        corners += [
            4 * torch.rand(5, generator=seeded(s), **DOUBLE) - 1 for s in range(20)
        ]
        values = torch.stack([score(row) for row in corners])
        moved = (values.amax(dim=0) - values.amin(dim=0)).max()
        assert moved <= bound * (1 + 1e-9)
        assert moved >= 0.99 * bound

    def test_value_sensitivity(self):
        scores, weights = make_scores()
        base = torch.zeros(7, 5, **DOUBLE)
        for method in ("per-record", "linear"):
            index = 0
            found = []
            for signs in (weights[index].sign(), -weights[index].sign()):
                losses = base.clone()
                losses[0] = 2.0 + 2.0 * signs
                found.append(float(scores.private_value(method, losses, index)))
            size = scores.value_sensitivity(method)
            assert abs(found[0] - found[1]) <= size * (1 + 1e-9)

    def test_method_follows_public_numbers(self):
        scores, _ = make_scores(n=7)
        assert scores.choose_method(epsilon=0.01) == "evaluated"
        scores, _ = make_scores(n=100_000)
        assert scores.choose_method(epsilon=1.0) in ("per-record", "linear")


class TestRounding:
    """A mean must not round more coarsely than one record counts."""

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("low", [0.0, 1000.0, 1e9])
    def test_many_records_far_from_zero(self, method, dtype, low):
        n, width = 100_000, 1.0
        points = candidates(6).to(dtype)
        opt = make(
            n=n,
            candidates=points,
            loss_range=(low, low + width),
            num_steps=3,
            scoring=method,
            noise_variance=1e-2,
        )
        # Doubles, whatever the candidates are: told losses are rounded one by one.
        base = torch.rand(n, 3, generator=seeded(), **DOUBLE)
        found, release = [], opt._release
        scores = StableScores(
            opt.kernel,
            opt.search_candidates,
            [0, 1, 2],
            num_records=n,
            width=width,
            noise_variance=1e-2,
        )
        for first in (0.0, width):
            losses = base.clone()
            losses[7] = first
            told = opt._clip((losses + low).to(dtype))
            assert told.dtype == torch.float64
            assert float(told.min()) >= 0.0
            assert float(told.max()) <= width
            told[torch.arange(n, device=CPU) != 7] = base[
                torch.arange(n, device=CPU) != 7
            ]
            found.append(torch.cat([*scores.private_scores(method, told)]))
        assert release.loss_width == width
        moved = float((found[1] - found[0]).abs().max())
        assert moved <= scores.sensitivity(method)


class TestLinearWeights:
    """The weights that are applied have no larger norm than was calibrated for.

    Solving for one candidate rounds differently from solving for all: by 2.5 % of the
    sensitivity in single precision and by 1e-8 in double, with these kernels.
    """

    T, RECORDS = 20, 100

    def make(self, dtype, d, lengthscale, noise_variance, **kwargs):
        with CPU:
            kernel = RBFKernel().to(dtype).requires_grad_(False)
            kernel.lengthscale = lengthscale
        points = torch.rand(300, d, generator=seeded(d), **DOUBLE).to(dtype)
        return make(
            n=self.RECORDS,
            candidates=points,
            num_steps=self.T,
            scoring="linear",
            kernel=kernel,
            noise_variance=noise_variance,
            **kwargs,
        )

    def corners(self, weights):
        """Yield data sets whose first record moves a prediction most, up and down."""
        for side in (weights > 0, weights < 0):
            losses = torch.rand(self.RECORDS, self.T, generator=seeded(), **DOUBLE)
            losses[0] = side.double()
            yield losses

    def hardest(self, opt, count):
        """Return scores, weights and the candidates whose weights are largest."""
        scores = opt._release._scores
        weights = torch.cat([*scores._weights()])
        norms = weights.abs().sum(dim=-1)
        norms[opt._release._design] = 0.0  # their values are plain means
        return scores, weights, norms.topk(count).indices.tolist()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("d", [1, 2, 3])
    @pytest.mark.parametrize("lengthscale", [0.3, 1.0])
    @pytest.mark.parametrize("noise_variance", [1e6, 1e-4, 1e-8])
    def test_scores_and_values(self, dtype, d, lengthscale, noise_variance):
        opt = self.make(dtype, d, lengthscale, noise_variance)
        scores, weights, hardest = self.hardest(opt, 20)
        moves, changes = [], []
        for index in hardest:
            values, found = [], []
            for losses in self.corners(weights[index]):
                values.append(float(scores.private_value("linear", losses, index)))
                found.append(torch.cat([*scores.private_scores("linear", losses)]))
            moves.append(abs(values[0] - values[1]))
            changes.append(float((found[0] - found[1]).abs().max()))
        assert max(moves) <= scores.value_sensitivity("linear")
        assert max(changes) <= scores.sensitivity("linear")
        norm = float(weights[hardest[0]].abs().sum())
        assert max(moves) >= 0.99 * norm / self.RECORDS  # the corners are the worst

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_whole_runs(self, dtype, monkeypatch):
        _, weights, (index,) = self.hardest(self.make(dtype, 1, 1.0, 1e-8), 1)
        given = []

        def choose(self, private_scores, *, ledger):
            return torch.tensor(index, device=CPU)

        def add(self, private_value, *, ledger, batch_dims=0):
            given.append((float(private_value), self.sensitivity))
            return private_value

        monkeypatch.setattr(ExponentialMechanism, "release", choose)
        monkeypatch.setattr(LaplaceMechanism, "release", add)
        for losses in self.corners(weights[index]):
            opt = self.make(dtype, 1, 1.0, 1e-8)
            for step in range(self.T):
                opt.ask()
                opt.tell(losses[:, step : step + 1])
        (first, size), (second, same_size) = given
        assert abs(first - second) <= size
        assert size == same_size > 1.0 / self.RECORDS


class TestStable:
    def test_probabilities_on_neighbours(self):
        """The exponential mechanism, in closed form: the ratio is at most e^epsilon."""
        scores, _ = make_scores()
        epsilon = 0.7
        base = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)
        worst = 0.0
        for method in ("evaluated", "per-record", "linear"):
            scale = 2 * scores.sensitivity(method) / epsilon
            for seed in range(30):
                low, high = base.clone(), base.clone()
                corner = torch.rand(5, generator=seeded(seed), **DOUBLE) < 0.5
                low[0] = torch.where(corner, 0.0, 4.0)
                high[0] = torch.where(corner, 4.0, 0.0)
                logs = [
                    (
                        torch.cat([*scores.private_scores(method, losses)]) / scale
                    ).log_softmax(dim=-1)
                    for losses in (low, high)
                ]
                worst = max(worst, worst_log_ratio(*logs))
        assert worst <= epsilon
        assert worst > epsilon / 4  # not wastefully far from it

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    @pytest.mark.parametrize("what", ["point", "both"])
    def test_the_choice_has_noise_for_its_sensitivity(self, monkeypatch, method, what):
        # 2 Delta / epsilon, with Delta = R/n, or |w|_1 R/n for the worst candidate.
        n, T, noise_variance, scales = 10, 5, 1e-3, []
        choose = SeededNoise.noisy_argmax

        def noisy_argmax(self, private_chunks, scale):
            scales.append(scale)
            return choose(self, private_chunks, scale)

        monkeypatch.setattr(SeededNoise, "noisy_argmax", noisy_argmax)
        opt = make(
            n=n,
            num_steps=T,
            what=what,
            scoring=method,
            noise_variance=noise_variance,
            loss_range=(-1.0, 3.0),
        )
        asked = []

        def problem(X):
            asked.append(X)
            return Bowls(n=n)(X)

        opt.run(problem, progress=False)
        X, points = opt.search_box.to_search(torch.cat(asked)), opt.search_candidates
        K = opt.kernel(X).to_dense() + noise_variance * torch.eye(T, **DOUBLE)
        weights = torch.linalg.solve(K, opt.kernel(X, points).to_dense())  # T x N
        largest = weights.abs().sum(dim=0).max() if method == "linear" else 1.0
        epsilon = 1.0 if what == "point" else 0.5
        assert scales == pytest.approx([2 * float(largest) * 4.0 / n / epsilon])

    def test_the_value_is_audited(self):
        # All losses at one end of the range or, of one record, at the other. Half of
        # the budget is the value's; 400 runs refute a claim of half of that.
        n, runs = 3, 400
        released = []
        for first in (0.0, 1.0):
            generator, values = seeded(int(first)), []
            losses = torch.zeros(n, 1, **DOUBLE)
            losses[0] = first
            for _ in range(runs):
                opt = make(
                    n=n,
                    num_steps=1,
                    guarantee=PureDP(4.0),
                    generator=generator,
                    candidates=candidates(2),
                    scoring="evaluated",
                )
                opt.ask()
                opt.tell(losses)
                values.append(opt.result().value)
            released.append(torch.tensor(values, **DOUBLE))
        result = audit_epsilon(released[0], released[1])
        assert not result.rejects(PureDP(2.0))
        assert result.rejects(PureDP(1.0))  # it does see what is there

    def test_finds_a_good_candidate(self):
        problem = Bowls(n=5000)
        opt = make(n=5000, num_steps=15)
        result = opt.run(problem, progress=False)
        truth = problem(candidates()).mean(dim=0)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() < 0.15  # among the best
        assert abs(result.value - float(chosen)) < 0.05

    @pytest.mark.parametrize(
        ("guarantee", "what", "charges"),
        [
            (PureDP(1.0), "both", 2),
            (PureDP(1.0), "point", 1),
            (PureDP(1.0), "value", 2),
            (ApproxDP(1.0, 1e-6), "both", 2),
            (ApproxDP(1.0, 1e-6), "point", 1),
        ],
    )
    def test_budget(self, guarantee, what, charges):
        opt = make(guarantee=guarantee, what=what)
        result = opt.run(Bowls(), progress=False)
        assert len(opt.ledger) == charges
        assert opt.ledger.accountant().within(guarantee)
        assert (result.value is None) == (what == "point")
        assert bool(result.x.isnan().any()) == (what == "value")

    def test_points_do_not_depend_on_losses(self):
        asked = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            points = []
            while not opt.done:
                X = opt.ask()
                points.append(X)
                opt.tell(scale * problem(X))
            asked.append(torch.cat(points))
        assert torch.equal(*asked)

    def test_nothing_public_before_the_end(self):
        states = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            for _ in range(5):
                opt.tell(scale * problem(opt.ask()))
            with pytest.raises(OptimizerStateError, match="Nothing is released"):
                opt.result()
            assert len(opt.ledger) == 0
            state = opt.state_dict()
            del state["runs"]
            states.append(str(state))
        assert states[0] == states[1]

    def test_no_losses_are_kept_in_the_end(self, monkeypatch):
        # Two unlike data sets, the same releases: while they run, the optimizers differ
        # in their losses, and when they have ended in nothing at all.
        def choose(self, private_scores, *, ledger):
            first, *_ = private_scores
            self._charge(ledger, self.event(), 1, first.device)
            return torch.tensor(3, device=CPU)

        def add(self, private_value, *, ledger, batch_dims=0):
            self._charge(ledger, self.event(1), 1, private_value.device)
            return torch.tensor([0.25], **DOUBLE)

        monkeypatch.setattr(ExponentialMechanism, "release", choose)
        monkeypatch.setattr(LaplaceMechanism, "release", add)
        opts = make(num_steps=2), make(num_steps=2)
        problems = Bowls(seed=0), Bowls(seed=1)
        for _ in range(2):
            for opt, problem in zip(opts, problems, strict=True):
                opt.tell(problem(opt.ask()))
            if not opts[0].done:
                assert differing(*opts)
        assert all(opt.done for opt in opts)
        assert differing(*opts) == []

    def test_losses_are_clipped_not_rescaled(self):
        # Hostile records count as the end of the range, silently.
        values = []
        for hostile in (1.0, 1e30, float("inf"), float("nan")):
            opt = make(n=10, num_steps=1, candidates=candidates(2), scoring="evaluated")
            losses = torch.full((10, 1), 0.5, **DOUBLE)
            losses[0] = hostile
            opt.ask()
            opt.tell(losses)
            values.append(opt.result().value)
        assert len(set(values)) == 1

    def test_chunks_and_batches(self):
        problem = Bowls()
        one = make(num_steps=6).run(problem, progress=False)
        chunked = make(num_steps=6).run(lambda X: problem(X).split(77), progress=False)
        batched = make(num_steps=3, batch_size=2).run(problem, progress=False)
        assert one.value == chunked.value
        assert torch.equal(one.x, batched.x)

    def test_in_a_box(self):
        opt = make(bounds=unit_box(2), num_candidates=500)
        result = opt.run(Bowls(), progress=False)
        assert ((result.x >= 0) & (result.x <= 1)).all()
        assert len(opt.candidates) == 500

    def test_a_release_that_was_interrupted_is_not_made_again(self, monkeypatch):
        opt, problem = make(num_steps=2, ledger=Ledger()), Bowls()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())

        def interrupted(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "noisy_argmax", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.tell(losses)
        for call in (lambda: opt.tell(losses), opt.ask, opt.result):
            with pytest.raises(OptimizerStateError, match="interrupted"):
                call()
        assert len(opt.ledger) == 1

    def test_a_release_that_was_refused_can_be_told_again(self):
        # Nothing was charged: the same losses again, not twice the column.
        ledger = Ledger(cap=PureDP(1.0))
        opt, problem = make(num_steps=2, ledger=ledger), Bowls()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        ledger.charge(PureEvent(0.1))  # somebody else
        for _ in range(2):
            with pytest.raises(BudgetExceededError):
                opt.tell(losses)
        assert len(opt._release._private_losses) == 2

    def test_other_candidates_or_kernels_are_other_settings(self):
        problem, opt = Bowls(), make()
        opt.run(problem, progress=False)
        with CPU:
            kernel = MaternKernel(nu=2.5).double()
            kernel.lengthscale = 0.1
        for other in (make(candidates=candidates(seed=9)), make(kernel=kernel)):
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(opt.state_dict())

    def test_a_finished_state_is_kept_and_an_unfinished_one_starts_over(self):
        problem, first = Bowls(), make()
        for _ in range(3):
            first.tell(problem(first.ask()))
        second = make()
        second.load_state_dict(first.state_dict())
        assert second.history == ()
        second.run(problem, progress=False)
        third = make(ledger=second.ledger)
        third.load_state_dict(second.state_dict())
        assert third.done
        assert torch.equal(third.result().x, second.result().x)


class TestAdaptive:
    @pytest.mark.parametrize(
        "guarantee", [GDP(1.0), ApproxDP(1.0, 1e-6), RDP(8.0, 0.5)]
    )
    def test_budget(self, guarantee):
        opt = make(guarantee=guarantee, adaptive=True, num_steps=8)
        opt.run(Bowls(), progress=False)
        assert len(opt.ledger) == 8
        assert opt.ledger.accountant().within(guarantee)

    def test_noise(self):
        opt = make(guarantee=GDP(2.0), adaptive=True, num_steps=4, n=10)
        assert math.isclose(opt.details["noise_std"], 1.0 / 10 * 2 / 2.0)

    def test_finds_a_good_candidate(self):
        problem = Bowls(n=5000)
        opt = make(n=5000, num_steps=15, adaptive=True, guarantee=GDP(1.0))
        result = opt.run(problem, progress=False)
        truth = problem(candidates()).mean(dim=0)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() < 0.1

    def test_everything_follows_from_what_was_released(self, monkeypatch):
        # Two unlike data sets, the same releases: then nothing may differ, neither the
        # points that are asked for nor what the state and the result say.
        given, values = [], (0.3, 0.8, 0.1, 0.6)

        def release(self, private_value, *, ledger, batch_dims=0):
            given.append(float(private_value))
            self._charge(ledger, self.event(1), 1, private_value.device)
            return torch.tensor([values[(len(given) - 1) % len(values)]], **DOUBLE)

        monkeypatch.setattr(GaussianMechanism, "release", release)
        opts, found = [], []
        for seed, scale in ((0, 1.0), (1, 0.2)):
            opt = make(guarantee=GDP(1.0), adaptive=True, num_steps=len(values))
            problem, public = Bowls(seed=seed), []
            while not opt.done:
                X = opt.ask()
                opt.tell(scale * problem(X))
                state = opt.state_dict()
                result = opt.result()
                public.append([X, state["release"], result.x, result.value])
            assert state["release"]["values"] == list(values)
            opts.append(opt)
            found.append(public)
        assert given[:4] != pytest.approx(given[4:], abs=0.01)  # the data do differ
        assert same_state(*found)
        assert differing(*opts) == []

    def test_what_was_paid_for_can_be_read(self, monkeypatch):
        opt, problem = make(num_steps=3, adaptive=True, guarantee=GDP(1.0)), Bowls()
        opt.tell(problem(opt.ask()))
        first = opt.result()
        assert first.x.isfinite().all()  # released, hence public
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(SeededNoise, "add_gaussian", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.tell(losses)
        assert opt.done
        assert opt.result().x.isfinite().all()

    def test_damaged_states(self):
        problem, opt = Bowls(), make(num_steps=3, adaptive=True, guarantee=GDP(1.0))
        opt.tell(problem(opt.ask()))
        for damage in (
            lambda state: state["release"].update(indices=[10**6]),
            lambda state: state["release"].update(values=[float("nan")]),
            lambda state: state["release"].update(indices=[], values=[1.0]),
            lambda state: state.update(released={"index": 10**6, "value": None}),
            lambda state: state["charges"][0].pop("adjacency"),
            lambda state: state["charges"][0].update(adjacency="anybody"),
            lambda state: state["charges"][0].update(run="other run"),
            lambda state: state["charges"][0].update(unit="agent"),
            lambda state: state["charges"][0].update(mechanism=3),
            lambda state: state["charges"][0].update(condition=3),
            lambda state: state.update(runs=[""]),
        ):
            state = opt.state_dict()
            damage(state)
            other = make(num_steps=3, adaptive=True, guarantee=GDP(1.0))
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(state)
            assert len(other.ledger) == 0
            assert other.history == ()

    def test_goes_on(self):
        problem = Bowls()
        whole = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        whole.run(problem, progress=False)
        first = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        for _ in range(3):
            first.tell(problem(first.ask()))
        second = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        second.load_state_dict(first.state_dict())
        second.run(problem, progress=False)
        assert second.result().value == whole.result().value
        assert sum(entry.count for entry in second.ledger.entries) == 6


def not_to_be_evaluated(X):
    raise AssertionError("nothing may be evaluated")


KINDS = [
    {"guarantee": PureDP(1.0), "what": "both"},
    {"guarantee": PureDP(1.0), "what": "point"},
    {"guarantee": PureDP(1.0), "what": "value"},
    {"guarantee": ApproxDP(1.0, 1e-6), "what": "both"},
    {"guarantee": ApproxDP(1.0, 1e-6), "adaptive": True},
    {"guarantee": GDP(1.0), "adaptive": True},
]


class TestPlan:
    """What a run will release is known, and paid for, before anything is evaluated."""

    @pytest.mark.parametrize("secure", [False, True])
    @pytest.mark.parametrize("kwargs", KINDS)
    def test_is_what_is_charged(self, kwargs, secure):
        if secure:
            if isinstance(kwargs["guarantee"], GDP):
                kwargs = {**kwargs, "guarantee": RDP(8.0, 0.5)}
            kwargs = {**kwargs, "secure": True, "generator": None}
        opt = make(**kwargs)
        planned = opt.planned_releases()
        opt.run(Bowls(), progress=False)
        charged = Counter()
        for entry in opt.ledger.entries:
            charged[entry.event] += entry.count
        assert charged == Counter(dict(planned))
        assert opt.planned_releases() == planned

    @pytest.mark.parametrize("kwargs", KINDS)
    def test_a_budget_that_does_not_suffice(self, kwargs):
        guarantee = kwargs["guarantee"]
        less = {
            PureDP: PureDP(0.99),
            ApproxDP: ApproxDP(0.5, 1e-6),
            GDP: GDP(0.99),
        }[type(guarantee)]
        ledger = Ledger(cap=less)
        opt = make(ledger=ledger, **kwargs)
        for call in (opt.ask, lambda: opt.run(not_to_be_evaluated, progress=False)):
            with pytest.raises(BudgetExceededError, match="would bring it to"):
                call()
        assert len(ledger) == 0

    @pytest.mark.parametrize("kwargs", KINDS)
    def test_a_budget_that_suffices(self, kwargs):
        ledger = Ledger(cap=kwargs["guarantee"])
        make(ledger=ledger, **kwargs).run(Bowls(), progress=False)
        assert len(ledger) > 0

    def test_a_ledger_for_other_neighbours(self):
        ledger = Ledger()
        ledger.charge(PureEvent(0.1), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match="'zero_out'"):
            make(ledger=ledger).run(not_to_be_evaluated, progress=False)

    def test_the_point_is_not_drawn_if_the_value_cannot_be(self, monkeypatch):
        # Others spend while this run evaluates: the point would fit, the value not.
        drawn = []
        for name in ("noisy_argmax", "add_laplace"):
            monkeypatch.setattr(SeededNoise, name, lambda *args: drawn.append(args))
        ledger = Ledger(cap=PureDP(1.0))
        opt, problem = make(num_steps=1, ledger=ledger), Bowls()
        losses = problem(opt.ask())
        ledger.charge(PureEvent(0.4))
        assert ledger.allows(PureEvent(0.5))  # the point alone
        with pytest.raises(BudgetExceededError):
            opt.tell(losses)
        assert not drawn
        assert len(ledger) == 1
        assert not opt.done

    def test_checked_from_public_settings(self):
        # Before any private data is there, and the same whatever it is.
        plans = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            before = opt.planned_releases()
            opt.run(lambda X, f=problem, s=scale: s * f(X), progress=False)
            plans += [before, opt.planned_releases()]
        assert all(plan == plans[0] for plan in plans)


class TestForgedStates:
    """A state is loaded only with the charges that its run makes."""

    def refuse(self, state, match, **kwargs):
        other = make(**kwargs)
        with pytest.raises(OptimizerStateError, match=match):
            other.load_state_dict(state)
        assert len(other.ledger) == 0
        assert other.history == ()

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_charge_that_is_missing(self, which):
        # Half of what was released would go unpaid.
        opt = make()
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        del state["charges"][which]
        self.refuse(state, "only 1 charges")
        state["history"] = []
        self.refuse(state, "without the charges for")

    def test_a_cheap_charge(self):
        opt = make()
        opt.run(Bowls(), progress=False)
        for which, event in itertools.product(
            (0, 1), (ExponentialEvent(1e-9), PureEvent(0.5), GaussianEvent(1e9))
        ):
            state = opt.state_dict()
            state["charges"][which]["event"] = event.to_dict()
            self.refuse(state, "not in the plan")

    def test_one_release_in_place_of_another(self):
        # The value's Gaussian noise has a delta, the choice has none.
        kwargs = {"guarantee": ApproxDP(1.0, 1e-6)}
        opt = make(**kwargs)
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        state["charges"][1]["event"] = state["charges"][0]["event"]
        self.refuse(state, "not in the plan", **kwargs)

    def test_values_that_nobody_paid_for(self):
        kwargs = {"guarantee": GDP(1.0), "adaptive": True, "num_steps": 3}
        opt, problem = make(**kwargs), Bowls()
        opt.tell(problem(opt.ask()))
        opt.tell(problem(opt.ask()))
        state = opt.state_dict()
        del state["charges"][0]
        del state["history"][0]
        self.refuse(state, "2 values, but only 1 charges", **kwargs)

    def test_an_assumption_that_nobody_made(self):
        opt = make()
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        first = state["charges"][0]
        first["condition"] = "luck"
        self.refuse(state, "another condition")


class TestMisuse:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"loss_range": (1.0, 0.0)}, "low below high"),
            ({"loss_range": (0.0, float("inf"))}, "low below high"),
            ({"loss_range": 1.0}, r"\(low, high\)"),
            ({"candidates": torch.zeros(1, 2, **DOUBLE)}, "at least two"),
            ({"candidates": torch.zeros(3, **DOUBLE)}, "N x d"),
            ({"candidates": torch.zeros(3, 2, **DOUBLE)}, "lower bound below"),
            ({"bounds": unit_box(2), "candidates": candidates()}, "either"),
            ({"guarantee": GDP(1.0)}, "PureDP or an ApproxDP"),
            ({"guarantee": PureDP(1.0), "adaptive": True}, "Gaussian noise can meet"),
            ({"adaptive": True, "guarantee": GDP(1.0), "batch_size": 2}, "batch_size"),
            ({"num_steps": N + 1}, "number of candidates"),
            ({"what": "all"}, "what must be one of"),
            ({"scoring": "best"}, "scoring must be one of"),
            ({"kernel": "rbf"}, "kernel must be"),
            ({"beta": 0.0}, "beta"),
            ({"noise_variance": 0.0}, "noise_variance"),
        ],
    )
    def test_arguments(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(**kwargs)

    def test_kernels(self):
        X = candidates(5)
        with CPU:
            scaled = ScaleKernel(MaternKernel(nu=2.5)).double()
            scaled.outputscale = 4.0
        with pytest.raises(InvalidArgumentError, match="variance 1 at every candidate"):
            make(kernel=scaled)
        # A design may not be built from private targets.
        model = GradientGP(X, X[:, :1])
        with pytest.raises(InvalidArgumentError, match="targets may be private"):
            make(kernel=model)

    def test_epsilon_zero(self):
        with pytest.raises(InvalidArgumentError, match="epsilon"):
            PureDP(0.0)

    def test_wrong_shape_costs_nothing(self):
        opt = make(num_steps=1)
        X = opt.ask()
        with pytest.raises(InvalidArgumentError, match="300 x 1"):
            opt.tell(Bowls()(X).mT)
        assert len(opt.ledger) == 0

    def test_an_exhausted_budget(self):
        ledger = Ledger(cap=PureDP(1.0))
        make(ledger=ledger).run(Bowls(), progress=False)
        with pytest.raises(BudgetExceededError, match="would bring it to 2"):
            make(ledger=ledger).run(Bowls(), progress=False)
