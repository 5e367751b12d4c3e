"""The server: sensitivities, audits of a broadcast, accounting, state."""

import contextlib
import math

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers import DPFTSServer
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from botorch_dp.privacy import PrivacyAccountant, audit_epsilon, audit_mu
from botorch_dp.privacy.certificate_text import trust
from tests.optimizers.problems import DEVICE, DOUBLE, seeded

N, P, M, S = 12, 4, 5, 3.0


def weights(n=N, p=P):
    return ExplorationWeights(torch.arange(n, device=DEVICE) % p, p)


def server(n=N, p=P, m=M, **kwargs):
    kwargs = (
        {"sampling_rate": 0.25, **kwargs} if "sample_size" not in kwargs else kwargs
    )
    kwargs = {"noise_multiplier": 1.0, "num_rounds": 50, "device": DEVICE, **kwargs}
    return DPFTSServer(weights(n, p), m, clip_norm=S, **kwargs)


def exact_sum(made, messages, number=0):
    """The weighted sum of all, by the formula."""
    norms = messages.norm(dim=-1, keepdim=True)
    clipped = messages * (S / math.sqrt(P) / norms).clamp(max=1.0)
    return made.weights(number) @ clipped


class TestRelease:
    def test_is_unbiased(self):
        """The mean of 4,000 broadcasts, within 4.5 standard errors of the sum."""
        made = server(num_rounds=4000, noise_multiplier=0.3, generator=seeded(1))
        made.weights = ExplorationWeights(
            made.weights.assignment, P, hold=10**6
        )  # the same in every round
        messages = 2 * torch.randn(N, M, generator=seeded(2), **DOUBLE)
        drawn = torch.stack([made.release(messages) for _ in range(4000)])
        error = drawn.std(dim=0) / math.sqrt(4000)
        difference = (drawn.mean(dim=0) - exact_sum(made, messages)).abs()
        assert (difference < 4.5 * error).all()

    def test_fixed_size_is_unbiased_too(self):
        """The mean of 2,000 broadcasts of 5 of 12, within 4.5 standard errors."""
        made = server(
            sample_size=5, num_rounds=2000, noise_multiplier=0.1, generator=seeded(1)
        )
        made.weights = ExplorationWeights(made.weights.assignment, P, hold=10**6)
        messages = 2 * torch.randn(N, M, generator=seeded(2), **DOUBLE)
        drawn = torch.stack([made.release(messages) for _ in range(2000)])
        error = drawn.std(dim=0) / math.sqrt(2000)
        difference = (drawn.mean(dim=0) - exact_sum(made, messages)).abs()
        assert (difference < 4.5 * error).all()

    def test_absent_agents_leave_their_weight(self):
        made = server(sampling_rate=1.0, noise_multiplier=1e-9)
        messages = torch.randn(N, M, generator=seeded(2), **DOUBLE)
        messages[::2] = 0.0
        expected = exact_sum(made, messages + 1e-300)
        assert torch.allclose(made.release(messages), expected, atol=1e-7)

    def test_who_counts_does_not_depend_on_what_was_sent(self):
        """Each agent speaks on an axis of its own, softly or loudly."""
        counted = []
        for scale in (1e-3, 1.0, 1e6):
            made = server(m=N, noise_multiplier=1e-6, generator=seeded(6))
            heard = made.release(scale * torch.eye(N, **DOUBLE)).abs().amax(dim=0)
            counted.append(heard > 0.5 * heard.max())
        assert 0 < int(counted[0].sum()) < N
        assert all(torch.equal(counted[0], other) for other in counted[1:])

    def test_what_it_hands_out_is_a_copy(self):
        made = server()
        first = made.release(torch.zeros(N, M, **DOUBLE))
        kept = first.clone()
        first.fill_(0.0)
        made.broadcast.fill_(0.0)
        assert torch.equal(made.broadcast, kept)

    def test_everyone_counts_at_rate_one(self):
        made = server(sampling_rate=1.0, noise_multiplier=1e-9)
        messages = torch.randn(N, M, generator=seeded(2), **DOUBLE)
        assert torch.allclose(
            made.release(messages), exact_sum(made, messages), atol=1e-7
        )

    def test_nobody_sampled_is_noise_all_the_same(self):
        made = server(sampling_rate=1e-12, generator=seeded(1))
        first, second = (made.release(torch.ones(N, M, **DOUBLE)) for _ in range(2))
        assert first.abs().min() > 0
        assert not torch.equal(first, second)

    def test_broken_vectors_count_as_zero(self):
        messages = torch.randn(N, M, generator=seeded(2), **DOUBLE)
        zeroed = messages.clone()
        zeroed[3:6] = 0.0
        messages[3], messages[4], messages[5] = torch.nan, torch.inf, 0.0
        broadcasts = [
            server(generator=seeded(4)).release(m) for m in (messages, zeroed)
        ]
        assert torch.equal(*broadcasts)

    def test_noise_is_what_the_paper_says(self):
        made = server(sensitivity="paper")
        phi = float(made.weights(0).max())
        assert made.noise_std(0) == pytest.approx(1.0 * phi * S / 0.25)
        zeros = torch.zeros(N, M, **DOUBLE)
        made = server(sensitivity="paper", num_rounds=2000, generator=seeded(5), m=M)
        made.weights = ExplorationWeights(made.weights.assignment, P, hold=10**6)
        drawn = torch.stack([made.release(zeros) for _ in range(2000)])
        assert float(drawn.std()) == pytest.approx(made.noise_std(0), rel=0.02)


class TestSensitivity:
    """What an agent can add, by brute force over agents and directions."""

    @pytest.mark.parametrize("number", [0, 12, 25, 40])
    @pytest.mark.parametrize("kind", ["tight", "paper"])
    def test_is_attained_and_never_exceeded(self, number, kind):
        made = server(sensitivity=kind)
        bound = made.contribution_bound(number)
        messages = 1e6 * torch.randn(N, M, generator=seeded(3), **DOUBLE)
        rows = made._contributions(messages, number)
        largest = float(rows.norm(dim=-1).max())
        assert largest <= bound
        if kind == "tight":
            assert largest >= 0.99 * bound

    @pytest.mark.parametrize("number", [0, 40])
    def test_tight_is_never_above_the_papers(self, number):
        tight, paper = server(), server(sensitivity="paper")
        ratio = paper.contribution_bound(number) / tight.contribution_bound(number)
        # One region dominates at first: sqrt(P) times less; in the end they are equal.
        expected = math.sqrt(P) if number == 0 else 1.0
        assert ratio == pytest.approx(expected, rel=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_single_precision_stays_within(self, dtype):
        made = server(dtype=dtype)
        messages = 1e6 * torch.randn(
            N, M, generator=seeded(3), dtype=dtype, device=DEVICE
        )
        rows = made._contributions(messages, 0).double()
        assert float(rows.norm(dim=-1).max()) <= made.contribution_bound(0)


class TestAudit:
    """One broadcast with and without an agent that sends the worst there is.

    The agent's vector has norm far beyond the bound, in a direction of its own choice;
    all others send zeros. Along that direction (weighted over regions) the broadcast is
    q N(1, z^2) + (1 - q) N(0, z^2) in units of the sensitivity, against N(0, z^2). At
    q = 0.9, z = 0.7 and delta = 0.1 the event above 1.2 has a log-odds ratio of about
    1.9, the claim is 1.97. With 2,500 broadcasts a side bounds came out at 1.4 to 1.6
    of it (at 99 %), and at more than twice the claim for halved noise.
    """

    COUNT = 2500

    def samples(self, present, seed, broken=False, **kwargs):
        made = server(
            num_rounds=self.COUNT,
            noise_multiplier=0.7,
            generator=seeded(seed),
            **({"sampling_rate": 0.9} | kwargs),
        )
        made.weights = ExplorationWeights(made.weights.assignment, P, hold=10**6)
        messages = torch.zeros(N, M, **DOUBLE)
        agent = int(made.weights(0).square().sum(dim=0).argmax())
        direction = torch.nn.functional.normalize(
            torch.randn(M, generator=seeded(9), **DOUBLE), dim=0
        )
        messages[agent] = present * 1e9 * direction
        if broken:
            made.noise_multiplier = 0.35
        row = made._contributions(direction.expand(N, M), 0)[agent]
        axis = torch.nn.functional.normalize(row, dim=0)
        scale = made.contribution_bound(0) / made.rate
        drawn = [made.release(messages).flatten() @ axis for _ in range(self.COUNT)]
        return torch.stack(drawn) / scale

    def epsilon(self, delta, **kwargs):
        accountant = PrivacyAccountant()
        accountant.compose(server(noise_multiplier=0.7, **kwargs).event())
        return accountant.get_epsilon(delta)

    def test_poisson(self):
        without, present = self.samples(0, 11), self.samples(1, 12)
        delta = 0.1
        result = audit_epsilon(without, present, delta=delta, threshold=1.2)
        claim = self.epsilon(delta, sampling_rate=0.9)
        assert not result.rejects(claim)
        assert result.rejects(claim / 2)

    def test_halved_noise_is_refuted(self):
        without, present = self.samples(0, 13, True), self.samples(1, 14, True)
        result = audit_epsilon(without, present, delta=0.1, threshold=1.2)
        assert result.rejects(self.epsilon(0.1, sampling_rate=0.9))

    def test_fixed_size(self):
        """Replace-one: the agent sends the opposite. Everyone is in the subset."""
        sides = [
            self.samples(sign, 15 + sign, sampling_rate=None, sample_size=N)
            for sign in (-1, 1)
        ]
        delta = 0.1
        result = audit_epsilon(*sides, delta=delta, threshold=1.5)
        claim = self.epsilon(delta, sampling_rate=None, sample_size=N)
        assert not result.rejects(claim)
        assert result.rejects(claim / 2)

    def test_fixed_size_of_some(self):
        """Ten of twelve: amplified, as the accountant says, and no more than that."""
        sides = [
            self.samples(sign, 25 + sign, sampling_rate=None, sample_size=10)
            for sign in (-1, 1)
        ]
        result = audit_epsilon(*sides, delta=0.1, threshold=1.5)
        claim = self.epsilon(0.1, sampling_rate=None, sample_size=10)
        assert not result.rejects(claim)
        assert result.rejects(claim / 3)

    def test_forgotten_doubling_is_refuted(self):
        """The authors' script does not double the noise for subsets of fixed size."""
        sides = [
            self.samples(sign, 18 + sign, True, sampling_rate=None, sample_size=N)
            for sign in (-1, 1)
        ]
        result = audit_epsilon(*sides, delta=0.1, threshold=1.5)
        assert result.rejects(self.epsilon(0.1, sampling_rate=None, sample_size=N))


class TestAccounting:
    @pytest.mark.parametrize(
        ("q", "z", "exact"),
        [
            (0.15, 1.0, 3.96),
            (0.25, 1.0, 7.05),
            (0.5, 1.0, 15.71),
            (0.25, 1.2, 5.15),
            (0.25, 1.5, 3.60),
        ],
    )
    def test_the_papers_losses(self, q, z, exact):
        """A third lower than published, see test_accounting.py."""
        made = server(200, 1, 2, sampling_rate=q, noise_multiplier=z, num_rounds=40)
        for _ in range(40):
            made.release(torch.zeros(200, 2, **DOUBLE))
        assert made.ledger.spent(200**-1.1) == pytest.approx(exact, abs=0.005)
        assert made.certificate().adjacency == "zero_out"

    def test_a_cap_stops_the_rounds(self):
        made = server(ledger=Ledger(cap=ApproxDP(3.0, 1e-3)))
        messages = torch.zeros(N, M, **DOUBLE)
        with contextlib.suppress(BudgetExceededError):
            for _ in range(50):
                made.release(messages)
        assert 0 < made.num_broadcasts == len(made.ledger) < 50

    def test_certificate(self):
        made = server()
        made.release(torch.zeros(N, M, **DOUBLE))
        certificate = made.certificate()
        assert certificate.unit == "agent"
        assert any("trusted" in text for text in certificate.assumptions)
        assert any("not the times" in text for text in certificate.assumptions)
        fixed = server(sample_size=4)
        fixed.release(torch.zeros(N, M, **DOUBLE))
        assert fixed.certificate().adjacency == "replace_one"


class TestState:
    def test_goes_on(self, tmp_path):
        made = server(ledger=Ledger(tmp_path / "ledger"), num_rounds=3)
        messages = torch.ones(N, M, **DOUBLE)
        made.release(messages)
        last = made.release(messages)
        resumed = server(ledger=Ledger(tmp_path / "ledger"), num_rounds=3)
        resumed.load_state_dict(made.state_dict())
        assert resumed.num_broadcasts == 2
        assert torch.equal(resumed.broadcast, last)
        resumed.release(messages)
        assert resumed.done
        with pytest.raises(OptimizerStateError, match="All 3 broadcasts"):
            resumed.release(messages)

    def test_seeded_noise_is_not_used_twice(self, tmp_path):
        messages = torch.ones(N, M, **DOUBLE)
        whole = server(generator=seeded(3))
        broadcasts = [whole.release(messages) for _ in range(3)]
        half = server(generator=seeded(3), ledger=Ledger(tmp_path / "ledger"))
        half.release(messages)
        half.release(messages)
        resumed = server(generator=seeded(3), ledger=Ledger(tmp_path / "ledger"))
        resumed.load_state_dict(half.state_dict())
        assert torch.equal(resumed.release(messages), broadcasts[2])

    def test_two_that_go_on_from_one_state_share_the_rounds(self, tmp_path):
        messages = torch.ones(N, M, **DOUBLE)
        first = server(ledger=Ledger(tmp_path / "ledger"), num_rounds=3)
        first.release(messages)
        second = server(ledger=Ledger(tmp_path / "ledger"), num_rounds=3)
        second.load_state_dict(first.state_dict())
        second.release(messages)
        first.release(messages)
        for made in (first, second):
            with pytest.raises(OptimizerStateError, match="All 3 broadcasts"):
                made.release(messages)
        assert len(first.ledger) == 3

    def test_rounds_the_state_does_not_know_are_over(self, tmp_path):
        made = server(ledger=Ledger(tmp_path / "ledger"))
        state = made.state_dict()
        made.release(torch.ones(N, M, **DOUBLE))
        resumed = server(ledger=Ledger(tmp_path / "ledger"))
        resumed.load_state_dict(state)
        assert resumed.num_broadcasts == 1

    def test_refuses(self, tmp_path):
        made = server()
        made.release(torch.ones(N, M, **DOUBLE))
        state = made.state_dict()
        with pytest.raises(OptimizerStateError, match="the ledger has only 0"):
            server().load_state_dict(state)
        with pytest.raises(OptimizerStateError, match="other settings"):
            server(noise_multiplier=2.0).load_state_dict(state)
        other = server()
        other.weights = ExplorationWeights(made.weights.assignment.flip(0), P)
        with pytest.raises(OptimizerStateError, match="other settings"):
            other.load_state_dict(state)
        broken = {**state, "broadcast": torch.full((P, M), torch.nan, **DOUBLE)}
        with pytest.raises(OptimizerStateError, match="finite broadcast"):
            server(ledger=made.ledger).load_state_dict(broken)

    def test_a_charge_of_another_run_is_not_ours(self):
        ledger = Ledger()
        first = server(ledger=ledger)
        first.release(torch.ones(N, M, **DOUBLE))
        second = server(ledger=ledger)
        assert second.num_broadcasts == 0
        assert first.certificate().run is None
        assert second.run_id in second.certificate().run
        second.load_state_dict(second.state_dict())
        assert second.num_broadcasts == 0

    def test_a_run_that_has_spent_its_cap_can_be_loaded(self, tmp_path):
        plan = PrivacyAccountant()
        plan.compose(server().event(), 3)
        cap = ApproxDP(plan.get_epsilon(1e-5) * 1.0001, 1e-5)
        made = server(num_rounds=3, ledger=Ledger(tmp_path / "l.db", cap))
        for _ in range(3):  # no more and no fewer: the plan is accounted for exactly
            made.release(torch.ones(N, M, **DOUBLE))
        resumed = server(num_rounds=3, ledger=Ledger(tmp_path / "l.db"))
        resumed.load_state_dict(made.state_dict())
        assert resumed.done
        assert torch.equal(resumed.broadcast, made.broadcast)


class TestRefuses:
    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"sampling_rate": None}, "give either sampling_rate"),
            ({"sampling_rate": 2.0}, "sampling_rate"),
            ({"noise_multiplier": 0.0}, "noise_multiplier"),
            ({"sensitivity": "loose"}, "sensitivity must be one of"),
            ({"num_rounds": 0}, "num_rounds"),
            ({"ledger": 3}, "ledger must be"),
            ({"sample_size": N + 1}, "sample_size"),
            ({"ledger": Ledger(cap=ApproxDP(0.01, 1e-6))}, "at least one broadcast"),
        ],
    )
    def test_arguments(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            server(**kwargs)

    def test_messages(self):
        for messages in (torch.zeros(N, M + 1, **DOUBLE), torch.zeros(N + 1, M), [0.0]):
            made = server()
            with pytest.raises(InvalidArgumentError, match="private_messages must be"):
                made.release(messages)
            assert len(made.ledger) == 0

    def test_errors_do_not_show_what_is_private(self):
        with pytest.raises(InvalidArgumentError, match="got a list") as raised:
            server().release([[0.777] * M] * N)
        assert "777" not in str(raised.value)
        with pytest.raises(InvalidArgumentError, match="of shape") as raised:
            server().release(torch.full((N, M + 1), 0.777, **DOUBLE))
        assert "777" not in str(raised.value)


class TestAggregation:
    """Agents add the noise themselves, and the server sees sums only."""

    def made(self, **kwargs):
        return server(trust="aggregation", **kwargs)

    def test_is_unbiased(self):
        made = self.made(num_rounds=4000, noise_multiplier=0.3, generator=seeded(1))
        made.weights = ExplorationWeights(made.weights.assignment, P, hold=10**6)
        messages = 2 * torch.randn(N, M, generator=seeded(2), **DOUBLE)
        drawn = torch.stack([made.release(messages) for _ in range(4000)])
        error = drawn.std(dim=0) / math.sqrt(4000)
        difference = (drawn.mean(dim=0) - exact_sum(made, messages)).abs()
        assert (difference < 4.5 * error).all()

    def test_costs_what_a_trusted_server_costs(self):
        assert self.made().event() == server().event()
        assert self.made().num_honest == 8  # two thirds of 12

    @pytest.mark.parametrize("present", [N, 8])
    def test_noise_of_those_who_are_there(self, present):
        """At least that of a trusted server, as long as enough agents are there."""
        made = self.made(num_rounds=1000, generator=seeded(5))
        made.weights = ExplorationWeights(made.weights.assignment, P, hold=10**6)
        where = torch.arange(N, device=DEVICE) < present
        zeros = torch.zeros(N, M, **DOUBLE)
        drawn = torch.stack([made.release(zeros, where) for _ in range(1000)])
        expected = server().noise_std(0) * math.sqrt(present / 8)
        assert float(drawn.std()) == pytest.approx(expected, rel=0.02)
        if present == N:
            assert made.noise_std(0) == pytest.approx(expected, rel=0.001)

    def test_too_few_release_nothing(self):
        made = self.made()
        where = torch.arange(N, device=DEVICE) < 7
        with pytest.raises(InvalidArgumentError, match="nothing is released"):
            made.release(torch.ones(N, M, **DOUBLE), where)
        assert made.num_broadcasts == 0

    def test_certificate_says_whom_agents_trust(self):
        made = self.made(num_honest=10)
        made.release(torch.ones(N, M, **DOUBLE))
        text = str(made.certificate())
        assert "at least 10 agents" in text
        assert "central:" not in text
        assert trust(made.certificate()).startswith("secure aggregation: nobody sees")
        assert made.certificate().parameters["num_honest"] == 10

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"sample_size": 3}, "needs sampling_rate"),
            ({"num_honest": 13}, "at most the number of agents"),
            ({"num_honest": 0}, "num_honest"),
            ({"trust": "nobody"}, "trust must be"),
            ({"trust": "server", "num_honest": 3}, "is for trust='aggregation'"),
        ],
    )
    def test_refusals(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            server(**{"trust": "aggregation", **kwargs})

    def test_shares_of_agents_add_up(self):
        """As a protocol adds them, with each agent at its own server."""
        kwargs = {"noise_multiplier": 1e-8, "sampling_rate": 1.0}
        made, agents = self.made(**kwargs), [self.made(**kwargs) for _ in range(N)]
        messages = 5 * torch.randn(N, M, generator=seeded(2), **DOUBLE)
        for number in range(2):
            assert made.charge_round() == number
            shares = [
                agents[n].share(messages[n], agent=n, number=number) for n in range(N)
            ]
            broadcast = made.release_sum(torch.stack(shares).sum(dim=0))
            rows = made._contributions(messages, number)
            expected = rows.sum(dim=0).reshape(P, M)
            assert torch.allclose(broadcast, expected, rtol=0, atol=1e-5)
            assert torch.equal(made.broadcast, broadcast)
            assert made.num_broadcasts == number + 1
        assert all(not len(agent.ledger) for agent in agents)

    def test_a_charged_round_is_over(self):
        made = self.made(num_rounds=2)
        zeros = torch.zeros(P * M, dtype=torch.int64, device=DEVICE)
        with pytest.raises(OptimizerStateError, match="call charge_round"):
            made.release_sum(zeros)
        made.charge_round()
        made.release_sum(zeros)
        with pytest.raises(OptimizerStateError, match="call charge_round"):
            made.release_sum(zeros)
        assert made.broadcast is not None
        assert made.charge_round() == 1
        assert made.broadcast is None
        assert made.done
        with pytest.raises(OptimizerStateError, match="have been released"):
            made.charge_round()
        assert made.certificate("the protocol holds").num_releases == 2
        assert "the protocol holds" in str(made.certificate("the protocol holds"))

    def test_a_trusted_server_has_no_shares(self):
        made = server()
        with pytest.raises(OptimizerStateError, match="need trust='aggregation'"):
            made.charge_round()
        with pytest.raises(OptimizerStateError, match="need trust='aggregation'"):
            made.share(torch.zeros(M, **DOUBLE), agent=0, number=0)
        assert made.num_broadcasts == 0

    @pytest.mark.parametrize("honest", ["all", "half"])
    def test_audit_of_a_broadcast(self, honest):
        """One agent's vector along one axis; others know theirs."""
        made = self.made(
            n=8, p=1, m=1, num_honest=8, sampling_rate=1.0, generator=seeded(7)
        )
        mechanism = made._mechanism(0)
        count = 8 if honest == "all" else 4  # broken: half of them add nothing
        rows = torch.zeros(10_000, count, 1, **DOUBLE)
        given = rows.clone()
        given[:, 0] = made.contribution_bound(0)
        samples = [
            mechanism.shares(r).sum(dim=-2).double()[:, 0] for r in (rows, given)
        ]
        threshold = made.contribution_bound(0) / mechanism.step / 2
        found = audit_mu(*(s.cpu() for s in samples), threshold=threshold)
        assert found.rejects(GDP(1.0)) == (honest == "half")
