"""The server's side: a function of public messages, in a state that does not grow."""

import math

import pytest
import torch

from botorch_dp import GDP, LDPBOClient, LDPBOServer, Ledger, PureDP, StepSchedule
from botorch_dp.exceptions import (
    InvalidArgumentError,
    MessageError,
    OptimizerStateError,
)
from botorch_dp.optimizers import LDPAnswer, longest_message
from tests.devices import DEVICE
from tests.optimizers.problems import DOUBLE, same_state, seeded

P = 3
MODES = ["stencil", "swc"]


def server(x=None, mode="stencil", **kwargs):
    x = torch.zeros(P, **DOUBLE) if x is None else x
    kwargs.setdefault("step_sizes", StepSchedule(0.1))
    kwargs.setdefault("max_norm", math.inf)
    return LDPBOServer(x, mode=mode, **kwargs)


def feed(to, count, seed=0, scale=1.0):
    generator = seeded(seed)
    for _ in range(count):
        asked = to.query()
        message = scale * torch.randn(P, generator=generator, **DOUBLE)
        to.receive(LDPAnswer(asked.run_id, asked.step, message).to_bytes())
    return to


class TestFollows:
    def test_steps_and_average(self):
        ours = server(average="running", step_sizes=StepSchedule(0.5, power=0.5))
        generator, x, sum_x = seeded(0), torch.zeros(P, **DOUBLE), 0.0
        for t in range(1, 11):
            message = torch.randn(P, generator=generator, **DOUBLE)
            ours.receive(LDPAnswer(ours.run_id, t, message))
            x = x - 0.5 / t**0.5 * message
            sum_x = sum_x + x
        assert torch.allclose(ours.x, x)
        assert torch.allclose(ours.average, sum_x / 10)
        assert ours.num_steps == 10

    def test_projects_on_the_box(self):
        bounds = torch.tensor([[-1.0] * P, [1.0] * P], **DOUBLE)
        ours = feed(server(bounds=bounds), 30, scale=100.0)
        assert (ours.x.abs() <= 1.0).all()
        assert (ours.surrogate.points.abs() <= 1.0 + 1e-12).all()

    @pytest.mark.parametrize("mode", MODES)
    def test_queries_give_gradients(self, mode):
        ours = feed(server(mode=mode), 20, scale=0.3)
        query = ours.query()
        slope = torch.tensor([1.0, -2.0, 0.5], **DOUBLE)
        gradient = query.gradient(query.evaluation_points @ slope)
        # The dictionary is as exact as kappa = 0.1 asks; the stencil is exact.
        atol = 1e-9 if mode == "stencil" else 0.2
        assert torch.allclose(gradient, slope, atol=atol)

    @pytest.mark.cpu_only("users send and receive CPU tensors")
    def test_reaches_the_mean_record_of_a_fleet(self):
        generator = seeded(7)
        records = 1.0 + 0.3 * torch.randn(400, P, generator=generator, **DOUBLE)
        ours = server(step_sizes=StepSchedule(0.5, power=0.5))
        for record in records:
            client = LDPBOClient(
                lambda X, record=record: (X - record).square().sum(dim=-1) / 2,
                GDP(8.0),
                clip_norm=2.0,
                generator=generator,
            )
            assert ours.visit(client)
        assert torch.allclose(ours.average, torch.ones(P, **DOUBLE), atol=0.15)


class TestPublicState:
    @pytest.mark.parametrize("mode", MODES)
    def test_same_messages_same_state(self, mode):
        """Two streams of users whose answers are made the same."""
        ours, other = server(mode=mode), server(mode=mode)
        other.run_id = ours.run_id
        generator = seeded(5)
        for t in range(1, 31):
            message = torch.randn(P, generator=generator, **DOUBLE)
            for number, to in enumerate((ours, other)):
                user = LDPBOClient(
                    lambda X, n=number: (X - 10.0 * n).square().sum(dim=-1),
                    GDP(1.0),
                    1.0,
                )
                answer = user.answer(to.query())
                to.receive(LDPAnswer(answer.run_id, answer.step, message))
            assert same_state(ours.state_dict(), other.state_dict()), t
        assert ours.query().to_bytes() == other.query().to_bytes()

    @pytest.mark.parametrize("mode", MODES)
    def test_the_state_stays_small(self, mode, tmp_path):
        ours = feed(server(mode=mode), 300)
        ours.save(tmp_path / "state")
        early = (tmp_path / "state").stat().st_size
        feed(ours, 700, seed=1).save(tmp_path / "state")
        late = (tmp_path / "state").stat().st_size
        assert late < 2 * early < 2**20

    @pytest.mark.parametrize("mode", [*MODES, "swc-literal"])
    @pytest.mark.filterwarnings("ignore:.*:botorch_dp.exceptions.CollapseWarning")
    def test_goes_on_from_a_file(self, mode, tmp_path):
        whole = feed(server(mode=mode), 25)
        half = feed(server(mode=mode), 12)
        half.save(tmp_path / "state")
        resumed = server(mode=mode)
        resumed.load(tmp_path / "state")
        assert same_state(resumed.state_dict(), half.state_dict())
        generator = seeded(0)
        for t in range(1, 26):
            message = torch.randn(P, generator=generator, **DOUBLE)
            if t > 12:
                resumed.receive(LDPAnswer(half.run_id, t, message))
        assert torch.equal(resumed.x, whole.x)
        assert torch.equal(resumed.average, whole.average)
        assert torch.equal(resumed.surrogate.points, whole.surrogate.points)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"x": torch.zeros(2, **DOUBLE)}, "the parameter or the run"),
            ({"x": torch.full((P,), float("nan"), **DOUBLE)}, "the parameter or"),
            ({"x": None}, "'NoneType' object has no attribute"),
            ({"run": "abc"}, "LDPBOServer: ValueError"),
            ({"run": "abcd"}, "the parameter or the run"),
            ({"num_steps": -1}, "num_steps must be a whole number"),
            ({"num_steps": 4}, "another number of steps"),
            ({"average": {}}, "KeyError"),
            ({"average": {"count": 3}}, "state_dict must have version"),
            ({"surrogate": {"points": torch.zeros(1, **DOUBLE)}}, "not a state of"),
            ({"recent": None}, "TypeError"),
        ],
    )
    def test_a_state_that_does_not_fit_changes_nothing(self, change, match):
        ours, good = feed(server(), 5), feed(server(), 3).state_dict()
        before = ours.state_dict()
        with pytest.raises(OptimizerStateError, match=match):
            ours.load_state_dict({**good, **change})
        assert same_state(ours.state_dict(), before)

    def test_states_of_other_settings(self):
        ours = feed(server(), 5)
        for other, match in (
            (server(mode="swc"), "mode='swc' there, 'stencil' here"),
            (server(step_sizes=StepSchedule(0.2)), "'initial': 0.2"),
            (server(max_norm=3.0), "max_norm=3.0 there, None here"),
        ):
            with pytest.raises(OptimizerStateError, match=match):
                ours.load_state_dict(other.state_dict())

    @pytest.mark.parametrize(
        ("key", "change"),
        [
            ("x", lambda x: x + 1.0),
            ("inverse", lambda inverse: inverse * torch.nan),
            ("mask", lambda _: torch.tensor(True, device=DEVICE)),
        ],
    )
    def test_a_dictionary_that_does_not_fit_changes_nothing(self, key, change):
        ours, good = feed(server(mode="swc"), 5), feed(server(mode="swc"), 3)
        before, state = ours.state_dict(), good.state_dict()
        state["surrogate"][key] = change(state["surrogate"][key])
        with pytest.raises(OptimizerStateError, match="not a state of LDPBOServer"):
            ours.load_state_dict(state)
        assert same_state(ours.state_dict(), before)


class TestHostileUsers:
    """One answer, of any length, against the bound that public facts give."""

    B, SIGMA, RADIUS = 1.0, 2.0, 0.7

    def bounded(self, dim=P, sigma=SIGMA, **kwargs):
        step_sizes = StepSchedule.for_noise(
            radius=self.RADIUS, clip_norm=self.B, noise_std=sigma, dim=dim
        )
        return LDPBOServer(torch.zeros(dim, **DOUBLE), step_sizes=step_sizes, **kwargs)

    @pytest.mark.parametrize("length", [1e3, 1e8, 1e200])
    @pytest.mark.parametrize("mode", MODES)
    def test_too_long_by_default(self, mode, length):
        ours = self.bounded(mode=mode)
        before = ours.state_dict()
        far = torch.tensor([length, 0.0, 0.0], **DOUBLE)
        with pytest.raises(MessageError, match="no longer than max_norm="):
            ours.receive(LDPAnswer(ours.run_id, 1, far))
        assert same_state(ours.state_dict(), before)

    @pytest.mark.parametrize("dim", [1, 2, 5, 20, 300])
    @pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 1e3])
    def test_the_longest_moves_it_by_less_than_half_the_radius(self, dim, sigma):
        ours = self.bounded(dim, sigma)
        longest = longest_message(clip_norm=self.B, noise_std=sigma, dim=dim)
        assert ours.max_norm == longest
        far = torch.zeros(dim, **DOUBLE)
        far[0] = -longest * (1 - 1e-12)
        ours.receive(LDPAnswer(ours.run_id, 1, far))
        assert 0.0 < float(ours.x[0]) < self.RADIUS / 2

    @pytest.mark.cpu_only("users send and receive CPU tensors")
    @pytest.mark.parametrize(
        "kwargs",
        [{"guarantee": GDP(1.0)}, {"guarantee": PureDP(1.0), "mechanism": "laplace"}],
    )
    def test_honest_users_are_heard(self, kwargs):
        ours, generator = None, seeded(4)
        for _ in range(200):
            user = LDPBOClient(
                lambda X: 100.0 * X.sum(dim=-1),
                clip_norm=self.B,
                generator=generator,
                **kwargs,
            )
            ours = ours or self.bounded(sigma=user.noise_std)
            assert ours.visit(user)
        assert ours.num_steps == 200

    def test_a_schedule_that_knows_nothing_needs_a_bound(self):
        x, sizes = torch.zeros(P, **DOUBLE), StepSchedule(0.1)
        with pytest.raises(
            InvalidArgumentError, match=r"max_norm must be given.*for_no"
        ):
            LDPBOServer(x, step_sizes=sizes)
        assert LDPBOServer(x, step_sizes=sizes, max_norm=7.0).max_norm == 7.0
        endless = LDPBOServer(x, step_sizes=sizes, max_norm=math.inf)
        assert endless.settings()["max_norm"] is None  # as JSON has no infinity
        endless.receive(LDPAnswer(endless.run_id, 1, torch.full((P,), 1e6, **DOUBLE)))
        assert endless.x.tolist() == [-1e5] * P

    def test_a_bound_of_ones_own_comes_first(self):
        assert self.bounded(max_norm=3.0).max_norm == 3.0

    @pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan, "long"])
    def test_bounds_that_are_none(self, max_norm):
        with pytest.raises(InvalidArgumentError, match="max_norm must be a"):
            self.bounded(max_norm=max_norm)


class TestRefuses:
    def answer(self, to, **changes):
        fields = {"run_id": to.run_id, "step": 1, "gradient": torch.zeros(P, **DOUBLE)}
        return LDPAnswer(**{**fields, **changes})

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"run_id": bytes(16)}, "another run"),
            ({"step": 2}, "to step 2, but the server is at step 1"),
            ({"gradient": torch.zeros(P + 1, **DOUBLE)}, "must have 3 numbers, got 4"),
            ({"gradient": torch.full((P,), float("nan"), **DOUBLE)}, "must be finite"),
        ],
    )
    def test_answers(self, changes, match):
        ours = server()
        state = ours.state_dict()
        with pytest.raises(MessageError, match=match):
            ours.receive(self.answer(ours, **changes))
        assert same_state(ours.state_dict(), state)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_answers_that_would_carry_it_out_of_the_world(self, mode, dtype):
        x = torch.zeros(P, dtype=dtype, device=DEVICE)
        ours = server(x, mode=mode, step_sizes=StepSchedule(10.0))
        state = ours.state_dict()
        for value in (1e39, 1.7e308):
            far = torch.full((P,), value, **DOUBLE)
            if dtype == torch.float64 and value < 1e300:
                continue
            with pytest.raises(MessageError, match="no honest user"):
                ours.receive(self.answer(ours, gradient=far))
            assert same_state(ours.state_dict(), state)

    def test_answers_longer_than_agreed(self):
        ours = server(max_norm=3.0)
        with pytest.raises(MessageError, match=r"no longer than max_norm=3\.0"):
            ours.receive(self.answer(ours, gradient=torch.full((P,), 2.0, **DOUBLE)))
        ours.receive(self.answer(ours, gradient=torch.full((P,), 1.7, **DOUBLE)))

    def test_answers_that_come_twice(self):
        ours = server(max_staleness=3)
        answer = self.answer(ours, gradient=torch.ones(P, **DOUBLE))
        ours.receive(answer)
        resumed = server(max_staleness=3)
        resumed.load_state_dict(ours.state_dict())
        for to in (ours, resumed):
            with pytest.raises(MessageError, match="already received this answer"):
                to.receive(answer)
        ours.receive(self.answer(ours))  # another one, as late
        assert ours.num_steps == 2

    def test_answers_that_come_late(self):
        ours = feed(server(max_staleness=2), 5)  # at step 6
        with pytest.raises(MessageError, match="max_staleness is 2"):
            ours.receive(self.answer(ours, step=3))
        ours.receive(self.answer(ours, step=4))
        assert ours.num_steps == 6

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"x": [0.0]}, r"initial_x must be a \.\.\. x p tensor"),
            (
                {"x": torch.zeros(3, dtype=torch.int64, device=DEVICE)},
                "float32 or torch.float64, got torch.int64",
            ),
            ({"x": torch.full((2,), float("nan"), **DOUBLE)}, "must be finite"),
            ({"x": torch.zeros(0, 2, **DOUBLE)}, "initial_x must not be empty"),
            (
                {"x": torch.zeros((), **DOUBLE)},
                r"initial_x must be a \.\.\. x p tensor",
            ),
            ({"step_sizes": 0.1}, "step_sizes must be a StepSchedule"),
            ({"mode": "grid"}, "mode must be one of"),
            ({"mode": "swc", "kappa": 0.0}, "kappa"),
            ({"mode": "swc", "kappa": -1.0}, "kappa"),
            ({"max_staleness": -1}, "max_staleness"),
            ({"average": "median"}, "average must be one of"),
            (
                {"bounds": torch.zeros(3, 2, **DOUBLE)},
                "bounds must be a 2 x 3 tensor",
            ),
            ({"bounds": torch.zeros(2, 3, **DOUBLE)}, "lower bound below its upper"),
            ({"bounds": torch.ones(2, 3, **DOUBLE).cumsum(0)}, "within bounds"),
        ],
    )
    def test_arguments(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            server(**kwargs)

    def test_old_names_work_and_warn(self):
        x, sizes = torch.zeros(P, **DOUBLE), StepSchedule(0.1)
        with pytest.warns(DeprecationWarning, match="step= is .* use step_sizes="):
            ours = LDPBOServer(x, step=sizes, max_norm=1.0)
        with pytest.warns(DeprecationWarning, match=r"LDPBOServer\.step is deprecated"):
            assert ours.step is sizes
        with pytest.warns(DeprecationWarning, match=r"LDPBOServer\.run is deprecated"):
            assert ours.run == ours.run_id
        with pytest.warns(DeprecationWarning, match="use run_id"):
            ours.run = bytes(16)
        assert ours.run_id == bytes(16)

    def test_a_batch_has_no_messages(self):
        with pytest.raises(OptimizerStateError, match="for simulations"):
            server(torch.zeros(2, P, **DOUBLE)).query()

    def test_ledgers_of_users_are_their_own(self):
        ours, shared = server(), Ledger(cap=GDP(1.0))
        users = [
            LDPBOClient(lambda X: X.sum(dim=-1), GDP(1.0), 1.0, ledger=shared)
            for _ in range(2)
        ]
        assert [ours.visit(user) for user in users] == [True, False]
