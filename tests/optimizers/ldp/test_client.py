"""The user's side: budgets, hostile queries, and audits of what is sent."""

import asyncio
import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from botorch_dp import (
    GDP,
    RDP,
    ApproxDP,
    LDPBOClient,
    LDPBOServer,
    Ledger,
    PureDP,
    StepSchedule,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    MessageError,
)
from botorch_dp.optimizers import LDPQuery
from botorch_dp.optimizers.core.private_values import mallows_weighted
from botorch_dp.optimizers.ldp import gradient_release as local_release
from botorch_dp.privacy import audit_epsilon, audit_mu, mu_audit_power
from tests.devices import DEVICE
from tests.optimizers.problems import DOUBLE, same_state, seeded

pytestmark = pytest.mark.cpu_only("users send and receive CPU tensors")

RUN = bytes(16)
B, P = 1.0, 3


def slope_losses(slope):
    slope = torch.as_tensor(slope, **DOUBLE)
    return lambda X: X @ slope


def client(losses=None, guarantee=None, **kwargs):
    losses = slope_losses([1.0, 0.0, 0.0]) if losses is None else losses
    kwargs.setdefault("generator", seeded(1))
    return LDPBOClient(losses, guarantee or GDP(1.0), B, **kwargs)


def query(step=1, x=None, **kwargs):
    x = torch.zeros(P, **DOUBLE) if x is None else x
    if not kwargs:
        kwargs = {"half_width": 0.2}
    return LDPQuery(RUN, step, x, **kwargs)


class TestAnswer:
    def test_is_the_clipped_gradient_and_noise_of_the_right_size(self):
        user = client(slope_losses([0.3, -0.4, 0.0]), ledger=Ledger())
        answers = torch.stack([user.answer(query(t)).gradient for t in range(1, 4001)])
        # 4,000 answers: means within 4.5 standard errors, spreads within 5 %.
        error = 2.0 / math.sqrt(4000)
        expected = torch.tensor([0.3, -0.4, 0.0], **DOUBLE)
        assert ((answers.mean(dim=0) - expected).abs() < 4.5 * error).all()
        assert ((answers.std(dim=0) / 2.0 - 1).abs() < 0.05).all()

    def test_one_answer_by_default(self):
        user = client()
        user.answer(query(1))
        with pytest.raises(BudgetExceededError):
            user.answer(query(2))
        assert user.certificate().num_releases == 1

    def test_the_same_query_again_costs_nothing(self):
        user = client()
        first, again = user.answer(query(1)), user.answer(query(1).to_bytes())
        assert torch.equal(first.gradient, again.gradient)
        assert len(user.ledger) == 1

    def test_repeat_visits_compose(self, tmp_path):
        cap = GDP(2.0)
        path = tmp_path / "user.ledger"
        for visit in range(1, 5):  # four devices' lives, one file
            user = client(ledger=Ledger(path, cap=cap), generator=None)
            user.answer(query(visit))
            assert user.certificate().guarantee.mu == pytest.approx(math.sqrt(visit))
        with pytest.raises(BudgetExceededError):
            client(ledger=Ledger(path)).answer(query(5))

    def test_certificate(self):
        user = client()
        user.answer(query())
        certificate = user.certificate()
        assert (certificate.unit, certificate.adjacency) == ("user", "replace_one")
        assert certificate.guarantee.mu == pytest.approx(1.0)
        assert any("no server has to be trusted" in a for a in certificate.assumptions)

    def test_double_precision_whatever_the_query(self):
        x = torch.zeros(P, dtype=torch.float32, device=DEVICE)
        assert client().answer(query(x=x)).gradient.dtype == torch.float64


def raising(error):
    def losses(X):
        raise error

    return losses


def endless(X):
    return endless(X)


def mutating(X):
    X.mul_(math.nan).resize_(1, P)
    return X.new_ones(1)


class Stubborn(torch.Tensor):
    """A tensor that refuses whatever is asked of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise asyncio.CancelledError("the record is 0.3")


class Sly(torch.Tensor):
    """A tensor that looks as it should, but divided by anything is six ones."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in ("div", "__truediv__"):
            return torch.ones(6, **DOUBLE).as_subclass(cls)
        return super().__torch_function__(func, types, args, kwargs)


BROKEN_LOSSES = {
    "ValueError": raising(ValueError("the record is 0.3")),
    "SystemExit": raising(SystemExit(3)),
    "sys.exit": lambda X: sys.exit("the record is 0.3"),
    "GeneratorExit": raising(GeneratorExit()),
    "CancelledError": raising(asyncio.CancelledError()),
    "BaseException": raising(BaseException("the record is 0.3")),
    "StopIteration": lambda X: next(iter(())),
    "RecursionError": endless,
    "MemoryError": raising(MemoryError()),
    "None": lambda X: None,
    "a list": lambda X: [0.5] * len(X),
    "a number": lambda X: 0.5,
    "an array": lambda X: np.ones(len(X)),
    "a generator": lambda X: (x for x in X),
    "too few": lambda X: X.new_ones(len(X) - 1),
    "too many": lambda X: X.new_ones(len(X) + 1),
    "a column": lambda X: X[:, :1],
    "the points": lambda X: X,
    "a scalar": lambda X: X.sum(),
    "none": lambda X: X[:0, 0],
    "integers": lambda X: X.new_ones(len(X)).long(),
    "booleans": lambda X: X[:, 0] > 0,
    "complex": lambda X: X[:, 0].cfloat(),
    "half": lambda X: X[:, 0].half(),
    "sparse": lambda X: X[:, 0].to_sparse(),
    "another device": lambda X: X[:, 0].to("meta"),
    "nan": lambda X: X[:, 0] * math.nan,
    "infinite": lambda X: X[:, 0] + math.inf,
    "points changed": mutating,
    "a stubborn tensor": lambda X: X[:, 0].as_subclass(Stubborn),
    "a sly tensor": lambda X: X[:, 0].as_subclass(Sly),
}


class TestWhateverALossDoes:
    """What a user's code does may depend on the record: nobody is to see it."""

    @pytest.mark.parametrize("name", BROKEN_LOSSES)
    def test_it_is_answered_and_charged_like_a_gradient_of_zero(self, name):
        broken = client(BROKEN_LOSSES[name])
        quiet = client(slope_losses([0.0] * P))
        answers = [user.answer(query()) for user in (broken, quiet)]
        assert answers[0].to_bytes() == answers[1].to_bytes()  # from the same seed
        assert broken.answer(query()) is answers[0]  # again, and at no cost
        charges = [
            dataclasses.asdict(user.ledger.entries[0]) for user in (broken, quiet)
        ]
        for charge in charges:
            charge.pop("time", None)
        assert charges[0] == charges[1]
        assert len(broken.ledger) == len(quiet.ledger) == 1
        assert broken.certificate() == quiet.certificate()

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"guarantee": PureDP(1.0), "mechanism": "laplace"},
            {"guarantee": ApproxDP(1.0, 1e-5), "secure": True, "generator": None},
        ],
    )
    def test_with_any_noise(self, kwargs):
        user = client(BROKEN_LOSSES["sys.exit"], **kwargs)
        assert user.answer(query()).gradient.shape == (P,)
        assert len(user.ledger) == 1

    def test_it_is_charged_before_the_loss_is_called(self):
        seen = []
        user = client(lambda X: seen.append(len(user.ledger)) or X[:, 0])
        user.answer(query())
        assert seen == [1]
        assert len(user.ledger) == 1  # and once

    def test_an_interrupt_from_the_keyboard_is_charged_and_not_kept_back(self):
        user = client(raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            user.answer(query())
        assert len(user.ledger) == 1
        with pytest.raises(BudgetExceededError):  # no second look for nothing
            user.answer(query())

    def test_losses_that_require_gradients_count(self):
        slope = torch.ones(P, **DOUBLE, requires_grad=True)
        user, plain = client(lambda X: X @ slope), client(slope_losses([1.0] * P))
        assert torch.equal(*(u.answer(query()).gradient for u in (user, plain)))

    def test_a_generator_on_another_device_is_refused_before_the_charge(self):
        calls = []
        user = client(lambda X: calls.append(1))
        source = user._release._mechanism.noise_source
        source.check_device = raising(InvalidArgumentError("generator is on cuda"))
        with pytest.raises(InvalidArgumentError, match="generator is on cuda"):
            user.answer(query())
        assert len(user.ledger) == len(calls) == 0

    def test_a_spent_budget_is_an_end_of_evaluations(self):
        calls = []
        user = client(lambda X: calls.append(1) or X.sum(dim=-1))
        user.answer(query(1))
        for step in range(2, 5):
            with pytest.raises(BudgetExceededError, match="nothing was evaluated"):
                user.answer(query(step))
        assert len(calls) == 1


class TestRefuses:
    @pytest.mark.parametrize(
        ("guarantee", "kwargs"),
        [
            (GDP(1.0), {"secure": True}),  # discrete noise is not proven to be GDP
            (ApproxDP(10.0, 1e-5), {"mechanism": "classical"}),  # gives 10.39
        ],
    )
    def test_a_client_that_could_never_answer(self, guarantee, kwargs):
        with pytest.raises(InvalidArgumentError, match="allows one answer"):
            LDPBOClient(slope_losses([0.0]), guarantee, B, **kwargs)

    def test_bad_arguments(self):
        with pytest.raises(InvalidArgumentError, match="losses must be a function"):
            LDPBOClient(1.0, GDP(1.0), B)
        with pytest.raises(InvalidArgumentError, match="ledger must be"):
            client(ledger="file")

    def test_messages_that_are_none(self):
        with pytest.raises(MessageError, match="at most"):
            client().answer(b"")


class TestPrivateLosses:
    """To find a mistake in a loss, on the user's own device."""

    def test_as_an_answer_would_see_them(self):
        user = client(slope_losses([1.0, 2.0, 0.0]))
        for asked in (query(), query().to_bytes()):
            losses = user.private_losses(asked)
            assert torch.equal(
                losses, query().evaluation_points @ losses.new_tensor([1, 2, 0])
            )
        assert len(user.ledger) == 0

    def test_what_a_loss_raises(self):
        with pytest.raises(SystemExit):
            client(raising(SystemExit(3))).private_losses(query())

    @pytest.mark.parametrize("shape", [(5,), (6, 1), ()])
    def test_losses_of_the_wrong_length(self, shape):
        user = client(lambda X: X.new_zeros(shape))
        with pytest.raises(InvalidArgumentError, match="must return 6 numbers"):
            user.private_losses(query())

    def test_losses_that_are_no_tensor(self):
        with pytest.raises(InvalidArgumentError, match=r"losses must be a torch\.Tens"):
            client(lambda X: [0.0] * len(X)).private_losses(query())


HOSTILE = {
    "huge weights": torch.full((P, 2), 1e300, **DOUBLE),
    "opposed": torch.tensor([[1e300, -1e300]] * P, **DOUBLE),
    "tiny": torch.full((P, 2), 1e-320, **DOUBLE),
    "nan": torch.full((P, 2), float("nan"), **DOUBLE),
    "one inf": torch.tensor([[1, 1], [1, float("inf")], [0, 0]], **DOUBLE),
}


class TestHostileServer:
    """Whatever a server sends, a gradient of norm at most B is what noise covers."""

    def sent_without_noise(self, monkeypatch, asked, losses):
        kept = []

        def clip(rows, bound, norm):
            clipped = real(rows, bound, norm=norm)
            kept.append(clipped)
            return clipped

        real = local_release.clip_few_rows
        monkeypatch.setattr(local_release, "clip_few_rows", clip)
        user = client(losses)
        answer = user.answer(asked)
        assert answer.gradient.isfinite().all()
        assert len(user.ledger) == 1
        return kept[0]

    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("point", [0.0, 1e200, float("nan"), float("inf")])
    def test_weights_and_points(self, monkeypatch, name, point):
        points = torch.full((2, P), point, **DOUBLE)  # coincident, too
        asked = query(points=points, weights=HOSTILE[name])
        sent = self.sent_without_noise(
            monkeypatch, asked, slope_losses([1.0, 2.0, 3.0])
        )
        assert float(sent.norm()) <= B
        if not math.isfinite(point) or name in ("nan", "one inf"):
            assert not sent.any()  # noise on zero

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
    def test_parameter(self, monkeypatch, value):
        asked = query(x=torch.full((P,), value, **DOUBLE))
        sent = self.sent_without_noise(
            monkeypatch, asked, slope_losses([1e9, 2.0, 3.0])
        )
        assert float(sent.norm()) <= B

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e308])
    def test_losses_of_any_size(self, monkeypatch, value):
        def losses(X):
            return torch.tensor([value, 0.0, 1.0, 0.0, value, 2.0], **DOUBLE)

        sent = self.sent_without_noise(monkeypatch, query(), losses)
        assert float(sent.norm()) <= B

    def test_a_loss_is_not_evaluated_where_there_is_no_number(self):
        asked = []  # not an assertion: what a loss raises is not heard

        def losses(X):
            asked.append(X)
            return X.sum(dim=-1)

        bad = torch.full((P,), float("nan"), **DOUBLE)
        assert client(losses).answer(query(x=bad)).gradient.isfinite().all()
        assert asked == []


def messages(
    slope, asked, guarantee, *, mechanism="gaussian", count, seed, broken=None
):
    """Answers of one user to one query, many times, each with a budget of its own."""
    user = LDPBOClient(
        slope_losses(slope), guarantee, B, mechanism=mechanism, generator=seeded(seed)
    )
    if broken == "noise halved":
        source = user._release._mechanism.noise_source
        for kind in ("add_gaussian", "add_laplace"):
            draw = getattr(source, kind)
            setattr(source, kind, lambda v, s, draw=draw: draw(v, s / 2))
    user.ledger = Ledger()
    answers = []
    for number in range(1, count + 1):
        again = dataclasses.replace(asked, step=number)
        answers.append(user.answer(again).gradient)
    return torch.stack(answers)


def queries():
    generator = seeded(11)
    x = torch.randn(P, generator=generator, **DOUBLE)
    points = torch.randn(4, P, generator=generator, **DOUBLE)
    weights = torch.randn(P, 4, generator=generator, **DOUBLE)
    return {
        "stencil": LDPQuery(RUN, 1, x, 0.2),
        "random dictionary": LDPQuery(RUN, 1, x, points=points, weights=weights),
        "hostile dictionary": LDPQuery(
            RUN, 1, x, points=points, weights=1e12 * weights
        ),
    }


GAUSSIAN = {
    "gdp": (GDP(1.0), "gaussian"),
    "rdp": (RDP(2.0, 1.0), "gaussian"),
    "analytic": (ApproxDP(2.0, 0.01), "gaussian"),
    "classical": (ApproxDP(4.0, 0.01), "classical"),
}


class TestAudit:
    """Two users, opposed and with gradients far beyond B: the worst pair there is.

    Their messages have means B u and -B u, 2 B apart against noise of 2 B / mu. Along u
    they are N(-mu/2, 1) and N(mu/2, 1) in units of the noise; 1,000 messages a side
    refute half the claim with power above 0.999, as the test of power computes.
    """

    COUNT = 1000

    def samples(self, name, guarantee, mechanism, seed, broken=None):
        asked, slope = queries()[name], [30.0, -40.0, 0.0]
        sides = [
            messages(
                [sign * s for s in slope],
                asked,
                guarantee,
                mechanism=mechanism,
                count=self.COUNT,
                seed=seed + sign,
                broken=broken,
            )
            for sign in (-1, 1)
        ]
        losses = slope_losses(slope)(asked.evaluation_points)
        direction = torch.nn.functional.normalize(asked.gradient(losses), dim=0)
        return [side @ direction for side in sides]

    def test_power(self):
        power = mu_audit_power(true_mu=1.0, claimed_mu=0.5, num_samples=self.COUNT)
        assert power > 0.999

    # The query sets the sensitivity and the kind sets the noise: no need for all pairs.
    @pytest.mark.parametrize(
        ("name", "kind"),
        [*((name, "gdp") for name in queries()), *(("stencil", k) for k in GAUSSIAN)][
            1:
        ],
    )
    def test_gaussian(self, name, kind):
        guarantee, mechanism = GAUSSIAN[kind]
        low, high = self.samples(name, guarantee, mechanism, seed=20)
        user = LDPBOClient(slope_losses([0.0] * P), guarantee, B, mechanism=mechanism)
        mu = 2 * B / user.noise_std
        result = audit_mu(low, high, threshold=0.0)
        assert not result.rejects(GDP(mu))
        assert result.rejects(GDP(mu / 2))  # the pair is the worst, or nearly

    @pytest.mark.parametrize("name", queries())
    def test_halved_noise_is_refuted(self, name):
        low, high = self.samples(name, GDP(1.0), "gaussian", 30, "noise halved")
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(1.0))

    def test_no_clipping_is_refuted(self, monkeypatch):
        monkeypatch.setattr(local_release, "clip_few_rows", lambda rows, *_, **__: rows)
        low, high = self.samples("stencil", GDP(1.0), "gaussian", 40)
        assert audit_mu(low, high, threshold=0.0).rejects(GDP(1.0))

    @pytest.mark.parametrize("name", queries())
    def test_laplace(self, name):
        # Along one axis, where all of the L1 norm can lie: the event x > B has odds
        # exp(epsilon). At epsilon = 1 it has probability 0.5 against 0.18.
        asked = queries()[name]
        sides = self.samples(name, PureDP(1.0), "laplace", seed=50)
        assert not audit_epsilon(*sides, threshold=0.0).rejects(PureDP(1.0))
        if name == "stencil":
            axis = [
                messages(
                    [sign * 50.0, 0.0, 0.0],
                    asked,
                    PureDP(1.0),
                    mechanism="laplace",
                    count=self.COUNT,
                    seed=60 + sign,
                )[:, 0]
                for sign in (-1, 1)
            ]
            result = audit_epsilon(*axis, threshold=B)
            assert not result.rejects(PureDP(1.0))
            assert result.rejects(PureDP(0.5))
            broken = [
                messages(
                    [sign * 50.0, 0.0, 0.0],
                    asked,
                    PureDP(1.0),
                    mechanism="laplace",
                    count=self.COUNT,
                    seed=70 + sign,
                    broken="noise halved",
                )[:, 0]
                for sign in (-1, 1)
            ]
            assert audit_epsilon(*broken, threshold=B).rejects(PureDP(1.0))

    def test_two_visits_are_what_the_ledger_says(self):
        """The mean of two answers moves by 2 B against noise of 2 B / (mu sqrt 2)."""
        low, high = self.samples("stencil", GDP(1.0), "gaussian", seed=80)
        pairs = [(side[::2] + side[1::2]) / 2 for side in (low, high)]
        user = client(ledger=Ledger())
        user.answer(query(1))
        user.answer(query(2))
        claimed = user.certificate().guarantee
        assert claimed.mu == pytest.approx(math.sqrt(2))
        result = audit_mu(*pairs, threshold=0.0)
        assert not result.rejects(claimed)
        assert result.rejects(GDP(1.0))  # one visit's guarantee no longer holds


class TestFleet:
    def test_a_refusal_leaves_the_server_as_it_was(self):
        step_sizes = StepSchedule.for_noise(
            radius=1.0, clip_norm=B, noise_std=client().noise_std, dim=P
        )
        server = LDPBOServer(torch.zeros(P, **DOUBLE), step_sizes=step_sizes)
        user = client()
        assert server.visit(user)
        state = server.state_dict()
        assert not server.visit(user)
        assert same_state(server.state_dict(), state)
        assert server.visit(client())

    def test_mallows_weights_bound_the_gradient(self):
        generator = seeded(3)
        for scale in (0.1, 1.0, 100.0):
            x = scale * torch.randn(P, generator=generator, **DOUBLE)
            losses = mallows_weighted(lambda X, x=x: softplus(-(X @ x)), x)
            asked = query(x=torch.randn(P, generator=generator, **DOUBLE))
            gradient = asked.gradient(losses(asked.evaluation_points))
            assert float(gradient.norm()) <= math.sqrt(2) + 1e-12
