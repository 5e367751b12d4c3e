"""The server of a vote: sensitivity, closed forms, audits, accounting, state."""

import math

import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers import (
    ApprovalBallot,
    Election,
    RankBallot,
    RegretBallot,
    ScoreBallot,
    VoteServer,
)
from botorch_dp.optimizers.vote import server as module
from botorch_dp.optimizers.vote.server import clipped_marks
from botorch_dp.privacy import (
    audit_epsilon_finite,
    audit_mu,
    clip_rows,
    worst_log_ratio,
)
from botorch_dp.privacy.mechanisms import shared
from tests.optimizers.problems import DEVICE, DOUBLE, seeded
from tests.privacy.mechanisms.test_permute_and_flip import in_polynomial_time

N, M = 8, 4


def election(n=N, m=M, ballot=None, **kwargs):
    ballot = ScoreBallot() if ballot is None else ballot
    return Election(n, list(range(m)), ballot=ballot, **kwargs)


def server(guarantee=None, *, n=N, m=M, ballot=None, **kwargs):
    if guarantee is None:
        gaussian = kwargs.get("trust", "server") != "server"
        guarantee = GDP(1.0) if gaussian else PureDP(1.0)
    return VoteServer(election(n, m, ballot), guarantee, **{"device": DEVICE, **kwargs})


def some_marks(n=N, m=M, seed=0):
    return torch.rand(n, m, generator=seeded(seed), **DOUBLE)


def log_probabilities(made, marks):
    """Return those of each winner, in closed form."""
    sums = clipped_marks(marks).sum(dim=0).cpu().numpy()
    logs = np.log(in_polynomial_time(sums, made._mechanism.scale))
    return torch.from_numpy(logs).to(DEVICE)


class TestWinner:
    def test_frequencies(self):
        """Of 1,500 votes, against the closed form: 4.5 standard errors."""
        marks, generator = some_marks(), seeded(1)
        made = server(PureDP(1.0))
        drawn = torch.tensor(
            [
                server(PureDP(1.0), generator=generator).release(marks)
                for _ in range(1500)
            ],
            device=DEVICE,
        )
        found = drawn.bincount(minlength=M).double() / 1500
        expected = log_probabilities(made, marks).exp()
        error = (expected * (1 - expected) / 1500).sqrt()
        assert ((found - expected).abs() < 4.5 * error).all()

    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_how_often_one_behind_wins(self, epsilon):
        marks = some_marks(n=40)
        sums = clipped_marks(marks).sum(dim=0)
        behind = sums.max() - sums
        probabilities = log_probabilities(server(PureDP(epsilon), n=40), marks)
        assert (probabilities <= -epsilon * behind + 1e-12).all()

    def test_many_agents_who_agree(self):
        marks = torch.zeros(200, 50, **DOUBLE)
        marks[:, 17] = 1.0
        made = server(PureDP(1.0), n=200, m=50)
        assert made.release(marks) == 17
        result = made.result()
        assert result.index == result.candidate == 17
        assert result.sums is None

    @pytest.mark.parametrize("trust", ["aggregation", "nobody"])
    def test_sums_are_those_of_centered_marks(self, trust):
        marks = some_marks()
        made = server(GDP(1e6), trust=trust)
        made.release(marks)
        result = made.result()
        expected = (marks - marks.mean(dim=-1, keepdim=True)).sum(dim=0)
        assert torch.allclose(result.sums, expected, atol=1e-3)
        assert result.index == int(expected.argmax())
        result.sums.zero_()  # a copy
        assert made.result().sums.abs().max() > 0


class TestSensitivity:
    def test_hostile_marks_are_clipped(self):
        hostile = torch.tensor(
            [[1e300, -1e300, math.nan, math.inf], [0.5, 2.0, -0.1, -math.inf]],
            **DOUBLE,
        )
        assert clipped_marks(hostile).tolist() == [
            [1.0, 0.0, 0.0, 0.0],
            [0.5, 1.0, 0.0, 0.0],
        ]

    def test_sums_are_exact(self):
        """In any order, so that one agent moves them by its own marks and no more."""
        marks = clipped_marks(some_marks(n=4000, m=3))
        order = torch.randperm(4000, generator=seeded(2), device=DEVICE)
        assert torch.equal(marks.sum(dim=0), marks[order].sum(dim=0))
        difference = marks.sum(dim=0) - marks[1:].sum(dim=0)
        assert torch.equal(difference, marks[0])

    @pytest.mark.parametrize("epsilon", [0.5, 2.0])
    def test_exact_losses_of_neighbours(self, epsilon):
        """By the closed form, with and without an agent: at most epsilon, nearly so."""
        made = server(PureDP(epsilon))
        worst = 0.0
        for seed in range(30):
            marks = 3 * some_marks(seed=seed) - 1
            for row in (
                [1.0, 0.0, 0.0, 0.0],
                [1e9, -1e9, 1e9, 0.5],
                [1.0, 1.0, 1.0, 0],
            ):
                marks[0] = torch.tensor(row, **DOUBLE)
                without = marks.clone()
                without[0] = 0.0
                loss = worst_log_ratio(
                    log_probabilities(made, marks), log_probabilities(made, without)
                )
                assert loss <= epsilon + 1e-9
                worst = max(worst, loss)
        assert worst > 0.8 * epsilon

    def test_half_the_noise_would_not_do(self):
        made = server(PureDP(1.0))
        made._mechanism.scale /= 2
        # One vote turns a winner into the second.
        marks = torch.zeros(N, M, **DOUBLE)
        marks[1:4, 0] = 1.0
        marks[0, 1:] = 1.0
        without = marks.clone()
        without[0] = 0.0
        loss = worst_log_ratio(
            log_probabilities(made, marks), log_probabilities(made, without)
        )
        assert loss > 1.5

    @pytest.mark.parametrize("trust", ["aggregation", "nobody"])
    @pytest.mark.parametrize(
        "ballot", [RankBallot(), ApprovalBallot(1), RegretBallot()]
    )
    def test_rows_are_clipped_before_gaussian_noise(self, trust, ballot, monkeypatch):
        """Also marks that no honest agent would send."""
        seen = []

        def spy(rows, bound):
            seen.append(clip(rows, bound))
            return seen[-1]

        clip = clip_rows
        for each in (module, shared):
            monkeypatch.setattr(each, "clip_rows", spy)
        marks = (some_marks() > 0.5).double()
        made = server(trust=trust, ballot=ballot)
        made.release(marks)
        assert float(seen[0].norm(dim=-1).max()) <= ballot.spread(M)
        # The grid of whole numbers adds less than a hundredth.
        assert made._mechanism.sensitivity == pytest.approx(ballot.spread(M), rel=0.01)
        assert made._mechanism.sensitivity >= ballot.spread(M)


class TestAudit:
    """Votes with and without one agent.

    All others have one vote for candidate 0, so that candidate 1 wins with probability
    e^-epsilon / 2 without the agent, and 1/2 with its vote for candidate 1. With 1,500
    votes a side at epsilon 2 the bound came out at 1.6 to 1.9 for the sound server, and
    above 2.5 for the broken ones.
    """

    COUNT, EPSILON = 1500, 2.0

    def winners(self, mark, seed, factor=1.0):
        generator = seeded(seed)
        marks = torch.zeros(3, 2, **DOUBLE)
        marks[1, 0] = 1.0
        marks[0, 1] = mark
        found = []
        for _ in range(self.COUNT):
            made = server(PureDP(self.EPSILON), n=3, m=2, generator=generator)
            made._mechanism.scale *= factor
            found.append(made.release(marks))
        return torch.tensor(found, device=DEVICE).double()

    def audit(self, **kwargs):
        with_it, without = (
            self.winners(30.0, 1, **kwargs),
            self.winners(0.0, 2, **kwargs),
        )
        return audit_epsilon_finite(with_it, without, num_outcomes=2)

    def test_a_hostile_agent_has_one_vote(self):
        assert not self.audit().rejects(self.EPSILON)

    def test_half_the_noise_is_refuted(self):
        assert self.audit(factor=0.5).rejects(self.EPSILON)

    def test_marks_without_clipping_are_refuted(self, monkeypatch):
        monkeypatch.setattr(module, "clipped_marks", lambda marks: marks)
        assert self.audit().rejects(self.EPSILON)

    @pytest.mark.parametrize("trust", ["aggregation", "nobody"])
    @pytest.mark.parametrize("broken", [False, True])
    def test_gaussian_noise(self, trust, broken):
        """mu = 1 with all agents honest: 1,000 votes find noise 1.5 times too small.

        (:func:`mu_audit_power` is above 0.99.) In the local model an observer looks at
        the agent's own row, which is not kept: the audit is of the sum, so that it is
        about a federation of one.
        """
        agents = 1 if trust == "nobody" else 3
        honest = {} if trust == "nobody" else {"num_honest": agents}
        sides = []
        for present, seed in ((0.0, 3), (1.0, 4)):
            generator = seeded(seed)
            marks = torch.zeros(agents, 4, **DOUBLE)
            marks[0, :2] = present * 1e9
            drawn = []
            for _ in range(1000):
                made = server(
                    n=agents,
                    m=4,
                    trust=trust,
                    generator=generator,
                    ledger=Ledger(),
                    **honest,
                )
                made._mechanism.noise_std /= 1.5 if broken else 1.0
                made.release(marks)
                sums = made.sums
                drawn.append(float(sums[:2].sum() - sums[2:].sum()) / 2)
            sides.append(torch.tensor(drawn, **DOUBLE))
        result = audit_mu(*sides, threshold=0.5)
        assert result.rejects(GDP(1.0)) == broken


class TestNoise:
    @pytest.mark.parametrize(
        ("trust", "honest", "shares"),
        [("nobody", None, 9), ("aggregation", 3, 3), ("aggregation", 9, 1)],
    )
    def test_size(self, trust, honest, shares):
        """Of 400 x 6 sums, within 5 %."""
        generator = seeded(5)
        drawn = []
        for _ in range(400):
            made = server(
                GDP(2.0), n=9, m=6, trust=trust, num_honest=honest, generator=generator
            )
            made.release(torch.zeros(9, 6, **DOUBLE))
            drawn.append(made.sums)
        one = ScoreBallot().spread(6) / 2.0
        assert made.noise_std == pytest.approx(one * math.sqrt(shares), rel=0.01)
        assert made.noise_std >= 0.999999 * one * math.sqrt(shares)
        assert float(torch.stack(drawn).std()) == pytest.approx(
            made.noise_std, rel=0.05
        )

    def test_shares_of_the_dishonest_are_not_paid_with(self):
        """The cost is that of the honest agents' noise alone."""
        for honest in (3, 9):
            made = server(GDP(2.0), n=9, trust="aggregation", num_honest=honest)
            made.release(some_marks(n=9))
            assert made.certificate().guarantee == GDP(2.0)

    def test_two_thirds_are_honest_by_default(self):
        assert server(n=10, trust="aggregation").num_honest == 7


class TestAccounting:
    @pytest.mark.parametrize("m", [2, 1000])
    def test_candidates_cost_nothing(self, m):
        made = server(PureDP(0.7), m=m)
        made.release(torch.zeros(N, m, **DOUBLE))
        assert made.ledger.spent(1e-12) == pytest.approx(0.7)
        assert made._mechanism.scale == pytest.approx(1 / 0.7)

    def test_certificate(self):
        made = server()
        made.release(some_marks())
        certificate = made.certificate()
        assert (certificate.unit, certificate.adjacency) == ("agent", "zero_out")
        assert certificate.num_releases == 1
        text = str(certificate)
        assert "trusted to add them up" in text
        assert "not trained together" in text

    @pytest.mark.parametrize(
        ("trust", "words"),
        [
            ("aggregation", "at least 6 agents"),
            ("aggregation", "its absence is not protected"),
            ("nobody", "local: each agent adds"),
            ("nobody", "its absence is not protected"),
        ],
    )
    def test_certificate_says_who_is_trusted(self, trust, words):
        made = server(trust=trust)
        made.release(some_marks())
        assert words in str(made.certificate())

    def test_an_approximate_guarantee_is_met(self):
        made = server(ApproxDP(1.0, 1e-5))
        made.release(some_marks())
        assert made.ledger.spent(1e-5) <= 1.0 + 1e-9

    def test_a_cap_refuses_before_agents_work(self):
        ledger = Ledger(cap=PureDP(1.0))
        first = server(ledger=ledger)
        first.reserve()
        first.release(some_marks())
        second = server(ledger=ledger)
        with pytest.raises(BudgetExceededError):
            second.reserve()
        with pytest.raises(BudgetExceededError):
            second.release(some_marks())
        assert len(ledger) == 1
        assert first.result().index in range(M)

    def test_it_is_charged_before_it_is_drawn(self, monkeypatch):
        made = server()

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(made._mechanism, "_draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.release(some_marks())
        assert len(made.ledger) == 1
        with pytest.raises(OptimizerStateError, match="interrupted before"):
            made.result()
        with pytest.raises(OptimizerStateError, match="paid for"):
            made.release(some_marks())

    def test_one_vote_a_run(self):
        made = server()
        made.release(some_marks())
        with pytest.raises(OptimizerStateError, match="another one"):
            made.release(some_marks())
        assert len(made.ledger) == 1

    def test_exact_noise(self):
        pytest.importorskip("opendp")
        made = server(secure=True)
        made.release(some_marks())
        result = made.result()
        assert result.certificate.noise == ("secure",)


class TestRefuses:
    @pytest.mark.parametrize(
        "marks",
        [
            [[0.123] * M] * N,
            torch.full((N, M + 1), 0.123, device=DEVICE),
            torch.zeros(N, M, dtype=torch.int64, device=DEVICE),
        ],
    )
    def test_other_shapes_without_showing(self, marks):
        made = server()
        with pytest.raises(InvalidArgumentError, match="private_marks") as info:
            made.release(marks)
        assert "0.123" not in str(info.value)
        assert not len(made.ledger)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"trust": "everybody"}, "trust must be one of"),
            ({"num_honest": 3}, "num_honest is for"),
            ({"trust": "aggregation", "num_honest": N + 1}, "at most the number"),
            ({"trust": "aggregation", "num_honest": 0}, "num_honest"),
            ({"trust": "nobody", "guarantee": PureDP(1.0)}, "Gaussian noise can meet"),
            ({"trust": "nobody", "secure": True}, "secure=True is for"),
            ({"ledger": 3}, "ledger"),
        ],
    )
    def test_bad_settings(self, changes, match):
        with pytest.raises(InvalidArgumentError, match=match):
            server(**changes)

    def test_nothing_before_the_vote(self):
        with pytest.raises(OptimizerStateError, match="No vote has been held"):
            server().result()


class TestState:
    @pytest.mark.parametrize("trust", ["server", "aggregation"])
    def test_there_and_back(self, tmp_path, trust):
        made = server(trust=trust, ledger=Ledger(tmp_path / "ledger"))
        made.release(some_marks())
        result = made.result()
        again = server(trust=trust, ledger=Ledger(tmp_path / "ledger"))
        again.load_state_dict(made.state_dict())
        assert again.done
        assert again.result().index == result.index
        if result.sums is not None:
            assert torch.equal(again.result().sums, result.sums)

    def test_a_vote_the_state_does_not_know_is_over(self, tmp_path):
        made = server(ledger=Ledger(tmp_path / "ledger"))
        state = made.state_dict()
        made.release(some_marks())
        again = server(ledger=Ledger(tmp_path / "ledger"))
        again.load_state_dict(state)
        assert again.done
        with pytest.raises(OptimizerStateError, match="interrupted before"):
            again.result()

    def test_refuses(self):
        made = server()
        made.release(some_marks())
        state = made.state_dict()
        with pytest.raises(OptimizerStateError, match="not charged for"):
            server().load_state_dict(state)
        with pytest.raises(OptimizerStateError, match="other settings"):
            server(PureDP(2.0)).load_state_dict(state)
        again = server(ledger=made.ledger)
        sums = torch.zeros(M, **DOUBLE)
        for bad in (
            {"winner": M},
            {"winner": -1},
            {"winner": None, "sums": sums},
            {"sums": sums},
        ):
            with pytest.raises(OptimizerStateError):
                again.load_state_dict({**state, **bad})
        local = server(trust="nobody")
        local.release(some_marks())
        for bad in (sums[:1], sums + math.nan, None):
            with pytest.raises(OptimizerStateError):
                local.load_state_dict({**local.state_dict(), "sums": bad})
