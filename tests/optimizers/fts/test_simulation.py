"""Federations in one process: what is shared helps, and what is private stays."""

import dataclasses

import pytest
import torch

from botorch_dp import DPFTSDE, ApproxDP, Federation, Ledger
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from tests.optimizers.problems import DEVICE, DOUBLE, same_state, seeded

N = 20
FEDERATION = Federation(
    num_agents=N,
    lower=(0.0,),
    upper=(1.0,),
    lengthscale=(0.1,),
    num_features=40,
    num_regions=2,
    num_initial=3,
    num_candidates=100,
)
PEAKS = torch.linspace(0.6, 0.7, N, **DOUBLE).unsqueeze(-1)


def scores(X):
    return torch.exp(-((X.squeeze(-1) - PEAKS) ** 2) / 0.02)


def make(federation=FEDERATION, **kwargs):
    defaults = {
        "num_steps": 6,
        "seed": 1,
        "clip_norm": 8.0,
        "noise_multiplier": 0.5,
        "sampling_rate": 0.5,
        "generator": seeded(2),
        "device": DEVICE,
    }
    return DPFTSDE(federation, **{**defaults, **kwargs})


class TestRun:
    def test_improves_and_certifies(self):
        result = make(num_steps=10).run(scores, progress=False)
        best = result.private_best_so_far
        assert best.shape == (11, N)
        assert (best.diff(dim=0) >= 0).all()
        assert float(best[-1].mean()) > 0.9
        assert torch.allclose(
            scores(result.private_x.unsqueeze(1)).squeeze(1), best[-1]
        )
        assert result.certificate.unit == "agent"
        # What is released after the last step would help nobody.
        assert len(result.broadcasts) == result.certificate.num_releases == 10

    def test_broadcasts_stop_and_agents_go_on(self):
        opt = make(num_rounds=3)
        result = opt.run(scores, progress=False)
        assert len(result.broadcasts) == result.certificate.num_releases == 3
        assert len(result.private_best_so_far) == 7

    def test_no_broadcast_is_followed_when_it_is_old(self):
        opt = make(num_rounds=2)
        seen, ask = [], opt.agents.ask
        opt.agents.ask = lambda number, told=None: (
            seen.append(told),
            ask(number, told),
        )[1]
        opt.run(scores, progress=False)
        assert [told is not None for told in seen] == [False] + 2 * [True] + 4 * [False]

    def test_a_release_that_failed_is_repeated_alone(self):
        opt = make()
        release, calls = opt.server.release, []

        def fails_once(messages):
            calls.append(1)
            if len(calls) == 1:
                raise OSError("the disk is full")
            return release(messages)

        opt.server.release = fails_once
        told = scores(opt.ask())
        with pytest.raises(OSError, match="disk"):
            opt.tell(told)
        opt.tell(told)
        assert opt.agents._models.counts.tolist() == [3] * N
        result = opt.run(scores, progress=False)
        assert len(result.private_best_so_far) == 7
        assert len(result.broadcasts) == 6

    def test_what_an_objective_does_to_its_points_stays_there(self):
        def careless(X):
            value = scores(X)
            X -= 0.3
            return value

        result = make().run(careless, progress=False)
        plain = make().run(scores, progress=False)
        assert torch.equal(result.private_x, plain.private_x)

    def test_agents_go_on_when_the_budget_is_spent(self):
        ledger = Ledger(cap=ApproxDP(5.0, 1e-3))
        result = make(ledger=ledger, noise_multiplier=1.0).run(scores, progress=False)
        assert 0 < len(result.broadcasts) == len(ledger) < 6
        assert len(result.private_best_so_far) == 7

    def test_agents_see_broadcasts_only(self):
        """Another agent's scores reach an agent through the broadcast alone."""
        first, second = make(), make()
        for number in range(4):
            X, Y = first.ask(), second.ask()
            assert torch.equal(X[0], Y[0])  # agent 0 has seen the same in both
            told, other = scores(X), scores(Y)
            other[1:] = 5.0 - other[1:]
            first.tell(told)
            second.tell(other)
            if number < 3:  # the same broadcast to both
                second._broadcasts[-1] = first._broadcasts[-1]

    def test_absent_agents_send_nothing(self):
        where = torch.ones(N, dtype=torch.bool, device=DEVICE)
        where[3] = False
        seen = []
        opt = make()
        release = opt.server.release
        opt.server.release = lambda messages: (
            seen.append(messages),
            release(messages),
        )[1]
        opt.tell(scores(opt.ask()))
        opt.ask()
        opt.tell(scores(opt.ask()), where)
        assert seen[0].abs().sum(dim=-1).min() > 0
        assert not seen[1][3].any()
        assert seen[1][where].abs().sum(dim=-1).min() > 0

    def test_progress_bar(self, capsys):
        make(num_steps=1).run(scores)
        assert "dp-fts-de" in capsys.readouterr().err

    def test_single_precision(self):
        opt = make(dtype=torch.float32)
        opt.tell(scores(opt.ask().double()).float())
        assert opt.ask().dtype == torch.float32


class TestState:
    def test_goes_on(self, tmp_path):
        half = make(ledger=Ledger(tmp_path / "ledger"))
        for _ in range(3):
            half.tell(scores(half.ask()))
        resumed = make(ledger=Ledger(tmp_path / "ledger"))
        resumed.load_private_state_dict(half.private_state_dict())
        assert same_state(resumed.private_state_dict(), half.private_state_dict())
        assert torch.allclose(resumed.ask(), half.ask(), atol=1e-9)
        result = resumed.run(scores, progress=False)
        assert len(result.private_best_so_far) == 7

    def test_refuses_another_federation(self):
        other = dataclasses.replace(FEDERATION, feature_seed=3)
        with pytest.raises(OptimizerStateError, match="other settings: federation="):
            make().load_private_state_dict(make(other).private_state_dict())


class TestRefuses:
    def test_out_of_turn(self):
        opt = make()
        with pytest.raises(OptimizerStateError, match="call ask"):
            opt.tell(torch.zeros(N, 3, **DOUBLE))
        with pytest.raises(OptimizerStateError, match="No step"):
            opt.result()
        opt.run(scores, progress=False)
        with pytest.raises(OptimizerStateError, match="All 6 steps"):
            opt.ask()

    def test_scores_and_presence(self):
        opt = make()
        opt.ask()
        with pytest.raises(InvalidArgumentError, match="shape 20 x 3, one score"):
            opt.tell(torch.zeros(N, 1, **DOUBLE))
        with pytest.raises(
            InvalidArgumentError, match=r"where must be a 20 tensor of torch\.bool"
        ):
            opt.tell(
                torch.zeros(N, 3, **DOUBLE),
                torch.ones(N, dtype=torch.int64, device=DEVICE),
            )
        with pytest.raises(InvalidArgumentError, match="got a list") as raised:
            opt.tell([[0.777] * 3] * N)
        assert "777" not in str(raised.value)
        with pytest.raises(InvalidArgumentError, match="of shape") as raised:
            opt.tell(torch.full((N, 1), 0.777, **DOUBLE))
        assert "777" not in str(raised.value)
        assert len(opt.server.ledger) == 0


class TestAggregation:
    """Agents add the noise themselves."""

    def test_improves_and_certifies(self):
        result = make(num_steps=10, trust="aggregation").run(scores, progress=False)
        assert float(result.private_best_so_far[-1].mean()) > 0.9
        assert "secure aggregation" in str(result.certificate)
        assert result.certificate.num_releases == 10

    def test_a_round_with_too_few_can_be_repeated(self):
        opt = make(trust="aggregation", num_honest=15)
        few = torch.arange(N, device=DEVICE) < 14
        Y = scores(opt.ask())
        with pytest.raises(InvalidArgumentError, match="nothing is released"):
            opt.tell(Y, answers=few)
        assert opt.server.num_broadcasts == 0
        opt.tell(Y)
        assert opt.server.num_broadcasts == 1

    def test_nobody_keeps_vectors_of_others(self):
        with pytest.raises(InvalidArgumentError, match="max_age must be 0"):
            make(trust="aggregation", max_age=2)
