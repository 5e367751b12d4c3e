"""Federations that change: late, absent and new agents cost what all others cost."""

import pytest
import torch

from botorch_dp import DPFTSDE, Federation
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import DPFTSServer
from botorch_dp.optimizers.fts.late_messages import LastMessages
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from botorch_dp.privacy import PrivacyAccountant, audit_epsilon
from tests.optimizers.problems import DEVICE, DOUBLE, same_state, seeded

N, T = 8, 5
FEDERATION = Federation(
    num_agents=N,
    lower=(0.0,),
    upper=(1.0,),
    lengthscale=(0.1,),
    num_features=10,
    num_regions=2,
    num_initial=3,
    num_candidates=50,
)


def flags(*present):
    mask = torch.zeros(N, dtype=torch.bool, device=DEVICE)
    mask[list(present)] = True
    return mask


def make(**kwargs):
    settings = {
        "num_steps": T,
        "clip_norm": 8.0,
        "noise_multiplier": 0.5,
        "sampling_rate": 0.5,
        "seed": 1,
        "generator": seeded(2),
        "device": DEVICE,
    }
    return DPFTSDE(FEDERATION, **{**settings, **kwargs})


def watched(opt):
    """The rows that the server gets, as a list that fills."""
    seen, release = [], opt.server.release
    opt.server.release = lambda rows: (seen.append(rows.clone()), release(rows))[1]
    return seen


def scores(X):
    return -(X.squeeze(-1) - 0.4).square()


class TestLastMessages:
    def test_by_hand(self):
        late = LastMessages(2, max_age=2)
        rows = torch.ones(2, 3, **DOUBLE)
        first = torch.tensor([True, False], device=DEVICE)
        nobody = torch.zeros_like(first)
        found = [late.update(rows, first)]
        found += [late.update(9 * rows, nobody) for _ in range(4)]
        assert [float(row[0, 0]) for row in found] == [1.0, 1.0, 1.0, 0.0, 0.0]
        assert not any(row[1].any() for row in found)  # it never answered
        assert torch.equal(late.update(5 * rows, None), 5 * rows)

    def test_at_once(self):
        late = LastMessages(2, max_age=0)
        rows = torch.ones(2, 3, **DOUBLE)
        late.update(rows, None)
        assert not late.update(rows, torch.zeros_like(rows[:, 0], dtype=bool)).any()

    def test_refuses(self):
        with pytest.raises(InvalidArgumentError, match="max_age"):
            LastMessages(2, max_age=-1)


class TestChangingFederation:
    def run(self, opt, where=None, answers=None):
        for number in range(T + 1):
            opt.tell(
                scores(opt.ask()),
                None if where is None else where[number],
                None if answers is None else answers[number],
            )
        return opt.result()

    def test_cost_and_weights_do_not_depend_on_who_is_there(self):
        """All present; joining and leaving; late; own boxes; nobody at all."""
        coming = [flags(*range(number, N)) for number in range(T + 1)]
        going = [flags(*range(N - number)) for number in range(T + 1)]
        boxes = torch.rand(N, 2, 1, generator=seeded(3), **DOUBLE).sort(dim=1).values
        cases = [
            ({}, None, None),
            ({}, going, None),
            ({"max_age": 2}, None, coming),
            ({"max_age": 2, "own_bounds": boxes}, going, coming),
            ({}, [flags()] * (T + 1), None),
        ]
        found = []
        for kwargs, where, answers in cases:
            opt = make(**kwargs)
            certificate = self.run(opt, where, answers).certificate
            found.append(
                (
                    opt.server.ledger.spent(1e-3),
                    certificate.num_releases,
                    certificate.adjacency,
                    [opt.server.noise_std(t) for t in range(T)],
                    [opt.server.weights(t).tolist() for t in range(T)],
                )
            )
        assert all(case == found[0] for case in found[1:])
        assert found[0][1:3] == (T, "zero_out")

    def test_late_vectors_count_until_they_are_too_old(self):
        opt = make(max_age=1)
        seen = watched(opt)
        everyone = flags(*range(N))
        answers = [everyone] + [flags(*range(1, N))] * T
        self.run(opt, answers=answers)
        assert torch.equal(seen[0][0], seen[1][0])
        assert seen[0][0].any()
        assert not seen[2][0].any()
        assert not torch.equal(seen[0][1], seen[1][1])

    def test_late_agents_learn_from_their_own_scores(self):
        opt = make()
        seen = watched(opt)
        self.run(opt, answers=[flags(*range(1, N))] * (T + 1))
        assert opt.agents._models.counts.tolist() == [3 + T] * N
        assert not any(rows[0].any() for rows in seen)

    def test_newcomers_have_nothing_to_say(self):
        opt = make()
        away = flags(*range(1, N))
        opt.tell(scores(opt.ask()), away)
        assert not opt.agents.messages(0)[0].any()
        assert opt.agents.messages(0)[1:].any(dim=-1).all()
        opt.tell(scores(opt.ask()))
        assert opt.agents.messages(1)[0].any()
        assert opt.agents._models.counts.tolist() == [1] + [4] * (N - 1)

    def test_goes_on(self):
        whole, half = make(max_age=2), make(max_age=2)
        for number in range(3):
            for opt in (whole, half):
                opt.tell(scores(opt.ask()), None, flags(*range(number, N)))
        resumed = make(max_age=2, ledger=half.server.ledger)
        resumed.load_private_state_dict(half.private_state_dict())
        assert same_state(resumed.private_state_dict(), half.private_state_dict())
        seen, other = watched(whole), watched(resumed)
        for opt in (whole, resumed):
            opt.tell(scores(opt.ask()), None, flags(7))
        assert torch.allclose(seen[0], other[0])

    def test_answers_are_booleans(self):
        opt = make()
        opt.ask()
        with pytest.raises(InvalidArgumentError, match="answers must be"):
            opt.tell(scores(opt.ask()), None, torch.ones(N, device=DEVICE))


class TestAudit:
    """A hostile agent answers once and is late in the next round.

    Its vector is used twice. All rows are in the sample (q = 1). Along its direction
    the mean of two broadcasts, in units of their noise, is N(sqrt(2) / z, 1) with it
    and N(0, 1) without. z = 0.7, delta = 0.1, 600 pairs of broadcasts a side: the
    claim for two rounds passes, and that for one round is rejected.
    """

    COUNT = 600

    def samples(self, present, seed):
        regions = torch.zeros(4, dtype=torch.int64, device=DEVICE)
        weights = ExplorationWeights(regions, 1)
        made = DPFTSServer(
            weights,
            2,
            clip_norm=1.0,
            noise_multiplier=0.7,
            sampling_rate=1.0,
            num_rounds=2 * self.COUNT,
            generator=seeded(seed),
            device=DEVICE,
        )
        made.weights = ExplorationWeights(weights.assignment, 1, hold=10**6)
        rows = torch.zeros(4, 2, **DOUBLE)
        rows[2, 0] = present * 1e9
        some = torch.tensor([True, True, False, True], device=DEVICE)
        drawn = []
        for _ in range(self.COUNT):
            late = LastMessages(4, max_age=1)
            first = made.release(late.update(rows, None))
            second = made.release(late.update(0 * rows, some))
            drawn.append((first + second)[0, 0])
        return torch.stack(drawn) / made.noise_std(0) / 2**0.5, made.event()

    def test_two_rounds(self):
        (without, event), (present, _) = self.samples(0, 1), self.samples(1, 2)
        claims = []
        for rounds in (1, 2):
            accountant = PrivacyAccountant()
            accountant.compose(event, rounds)
            claims.append(accountant.get_epsilon(0.1))
        result = audit_epsilon(without, present, delta=0.1, threshold=2.1)
        assert not result.rejects(claims[1])
        assert result.rejects(claims[0])
