"""A secure sum: exact, whoever drops out, and nothing but the sum is shown."""

import math

import numpy as np
import pytest
import torch

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.secure_masks import (
    SECRET_BYTES,
    SumTask,
    exchange,
    new_secret,
    public_key,
)
from botorch_dp.integrations.flower.secure_sum import (
    KEY_BYTES,
    SHARE_BYTES,
    SumAgent,
    sum_of,
)
from botorch_dp.integrations.flower.secure_sum_server import SumFailedError, SumServer

NAME = "0123456789abcdef" * 2
ENTRIES = 12


def task_of(threshold, num_entries=ENTRIES, number=3):
    return SumTask(NAME, number, threshold, num_entries)


def vectors_of(num_agents, num_entries=ENTRIES, seed=0):
    """Whole numbers of all sizes, so that sums wrap around."""
    numbers = np.random.default_rng(seed).integers(
        -(2**63), 2**63, (num_agents, num_entries), dtype=np.int64
    )
    return torch.from_numpy(numbers)


class Run:
    """A sum of some agents, in which others are left out from a stage on."""

    def __init__(self, num_agents, threshold, *, gone=None, num_entries=ENTRIES):
        self.task = task_of(threshold, num_entries)
        self.vectors = vectors_of(num_agents, num_entries)
        self.agents = {n: SumAgent(self.task, n) for n in range(num_agents)}
        self.server = SumServer(self.task)
        self.gone = gone or {}  # the stage that an agent does not answer

    def there(self, stage, asked):
        return [n for n in asked if self.gone.get(n, 5) > stage]

    def stored(self, agent):
        """An agent as it is after its state was kept."""
        state = self.agents[agent].private_state_dict()
        self.agents[agent] = SumAgent.from_private_state(self.task, state)
        return self.agents[agent]

    def introduce(self):
        there = self.there(1, self.agents)
        self.peers = self.server.introduce({n: self.agents[n].keys() for n in there})
        return self.peers

    def forward(self):
        peers = self.introduce()
        there = self.there(2, peers)
        self.sealed = self.server.forward(
            {n: self.stored(n).share(peers[n]) for n in there}
        )
        return self.sealed

    def wanted(self):
        sealed = self.forward()
        self.masked = {
            n: self.stored(n).masked(self.vectors[n], sealed[n])
            for n in self.there(3, sealed)
        }
        return self.server.wanted_shares(self.masked)

    def reveal(self, agent, wanted):
        active = [one for one, kind in wanted.items() if kind == b"seed"]
        return self.stored(agent).reveal(active, set(wanted) - set(active))

    def total(self):
        wanted = self.wanted()
        there = self.there(4, wanted)
        return self.server.total({n: self.reveal(n, wanted[n]) for n in there})


@pytest.mark.parametrize("num_agents", [2, 5, 6, 7, 8])
def test_it_is_the_plain_sum(num_agents):
    run = Run(num_agents, num_agents // 2 + 1)
    assert torch.equal(run.total(), run.vectors.sum(dim=0))


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
@pytest.mark.parametrize("num_gone", [0, 1, 3])
def test_who_drops_out_is_left_out(stage, num_gone):
    num_agents, threshold = 8, 5
    gone = dict.fromkeys([1, 4, 7][:num_gone], stage)
    run = Run(num_agents, threshold, gone=gone)
    # Those who leave after they sent their vectors are in the sum.
    summed = [n for n in range(num_agents) if n not in gone or stage == 4]
    assert torch.equal(run.total(), run.vectors[summed].sum(dim=0))


def test_agents_drop_out_in_every_stage():
    run = Run(8, 4, gone={0: 1, 2: 2, 5: 3, 7: 4})
    assert torch.equal(run.total(), run.vectors[[1, 3, 4, 6, 7]].sum(dim=0))


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_too_few_show_nothing(stage):
    run = Run(6, 4, gone=dict.fromkeys([0, 2, 5], stage))
    with pytest.raises(SumFailedError, match="needs 4 agents, got 3"):
        run.total()


class TestAnAgentRefuses:
    """Nobody gets both shares of one agent's secrets, or a sum of too few."""

    @pytest.fixture
    def run(self):
        run = Run(6, 4, gone={5: 3})
        run.wanted()
        return run

    def test_a_second_reveal(self, run):
        agent = run.agents[0]
        agent.reveal([0, 1, 2, 3, 4], [5])
        with pytest.raises(MessageError, match="stage 4 of round 3 after stage 4"):
            agent.reveal([0, 1, 2, 3, 5], [4])

    @pytest.mark.parametrize(
        ("active", "dropped", "match"),
        [
            ([0, 1, 2, 3, 4], [4, 5], "both in the sum and not in it"),
            ([0, 1, 2], [3, 4, 5], "needs 4 agents, got 3"),
            ([0, 0, 1, 2], [3, 4, 5], "needs 4 agents, got 3"),
            ([0, 1, 2, 3, 4], [], "other agents than those"),
            ([0, 1, 2, 3, 4, 6], [5], "other agents than those"),
            ([1, 2, 3, 4, 5], [0], "does not contain this agent"),
        ],
    )
    def test_other_lists(self, run, active, dropped, match):
        with pytest.raises(MessageError, match=match):
            run.agents[0].reveal(active, dropped)

    def test_to_reveal_without_a_vector(self):
        run = Run(6, 4)
        run.forward()
        with pytest.raises(MessageError, match="after stage 2"):
            run.agents[0].reveal([0, 1, 2, 3, 4], [5])

    def test_a_second_vector(self, run):
        sealed = dict(run.sealed[0])
        del sealed[4]
        with pytest.raises(MessageError, match="stage 3 of round 3 after stage 3"):
            run.agents[0].masked(run.vectors[0], sealed)

    @pytest.mark.parametrize("where", [0, 20, -1])
    def test_altered_shares(self, where):
        run = Run(5, 3)
        sealed = dict(run.forward()[0])
        data = bytearray(sealed[2])
        data[where] ^= 1
        sealed[2] = bytes(data)
        with pytest.raises(MessageError, match="shares of agent 2 were altered"):
            run.agents[0].masked(run.vectors[0], sealed)

    def test_shares_of_another_sender_or_for_another(self):
        for change in ("sender", "receiver"):
            run = Run(5, 3)
            sealed = run.forward()
            mine = dict(sealed[0])
            mine[2] = mine[3] if change == "sender" else sealed[1][2]
            with pytest.raises(MessageError, match="shares of agent 2 were altered"):
                run.agents[0].masked(run.vectors[0], mine)

    def test_shares_of_too_few_or_of_strangers(self):
        run = Run(5, 3)
        sealed = run.forward()[0]
        with pytest.raises(MessageError, match="needs 3 agents, got 2"):
            run.agents[0].masked(run.vectors[0], {1: sealed[1]})
        run = Run(5, 3, gone={4: 1})
        sealed = run.forward()[0]
        with pytest.raises(MessageError, match="do not take part"):
            run.agents[0].masked(run.vectors[0], {**sealed, 4: sealed[1]})

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda peers: {n: peers[n] for n in (0, 1, 2)}, "needs 4 agents, got 3"),
            (lambda peers: {**peers, 0: peers[1]}, "other keys for this agent"),
            (lambda peers: {**peers, 2: peers[1]}, "Two agents have the same keys"),
            (lambda peers: {**peers, 2: b"short"}, "must have 64 bytes"),
            (lambda peers: {**peers, 2: bytes(64)}, "public key is not valid"),
        ],
    )
    def test_other_keys(self, change, match):
        run = Run(6, 4)
        peers = run.introduce()[0]
        with pytest.raises(MessageError, match=match):
            run.agents[0].share(change(peers))

    def test_anything_after_it_forgot(self, run):
        agent = run.agents[0]
        agent.forget()
        state = agent.private_state_dict()
        assert state["secrets"] == [b"", b"", b""]
        assert state["shares"] == []


class TestTheServer:
    def test_leaves_out_shares_that_are_not_for_all(self):
        run = Run(6, 4)
        peers = run.introduce()
        sealed = {n: run.agents[n].share(peers[n]) for n in peers}
        del sealed[3][1]
        assert set(run.server.forward(sealed)) == {0, 1, 2, 4, 5}

    def test_leaves_out_keys_that_are_too_short(self):
        run = Run(6, 4)
        keys = {n: agent.keys() for n, agent in run.agents.items()}
        assert set(run.server.introduce({**keys, 2: b""})) == {0, 1, 3, 4, 5}

    def test_leaves_out_vectors_and_shares_that_nobody_asked_for(self):
        run = Run(6, 4, gone={5: 2})
        wanted = run.wanted()
        revealed = {n: run.reveal(n, wanted[n]) for n in wanted}
        stranger = {**revealed, 5: revealed[0], 1: {**revealed[1], 0: b""}}
        assert torch.equal(run.server.total(stranger), run.vectors[:5].sum(dim=0))
        run = Run(6, 4, gone={5: 2})
        run.forward()
        late = run.server.wanted_shares(dict.fromkeys(range(6), run.vectors[0]))
        assert set(late) == {0, 1, 2, 3, 4}

    def test_notices_a_wrong_mask_key(self):
        run = Run(6, 4, gone={5: 3})
        wanted = run.wanted()
        revealed = {n: run.reveal(n, wanted[n]) for n in wanted}
        other = {n: {**one, 5: one[4]} for n, one in revealed.items()}
        with pytest.raises(SumFailedError, match="shares of agent 5 are wrong"):
            run.server.total(other)
        same = dict.fromkeys(revealed, revealed[0])  # the same share from all
        with pytest.raises(SumFailedError, match="shares of agent 0 are wrong"):
            run.server.total(same)


class TestWhatTheServerSees:
    def masked_of(self, num_entries=20_000):
        run = Run(5, 3, num_entries=num_entries)
        run.vectors = torch.zeros_like(run.vectors)
        run.wanted()
        return run

    def test_one_masked_vector_looks_uniform(self):
        """Although it hides zeros. A test fails by chance once in 10^6 runs."""
        masked = self.masked_of().masked[0].numpy().view(np.uint8)
        counts = np.bincount(masked, minlength=256)
        expected = len(masked) / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 255 + 5.5 * math.sqrt(2 * 255)
        bits = np.unpackbits(masked)
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / math.sqrt(len(bits))

    def test_it_is_never_the_same(self):
        first, second = self.masked_of(50).masked, self.masked_of(50).masked
        assert not (first[0] == second[0]).any()
        assert not (first[0] == first[1]).any()

    def test_a_vector_stays_hidden_without_its_seed(self):
        """Mask keys are revealed for agents whose vectors come too late."""
        run = self.masked_of(50)
        late = run.masked[0].clone()
        for other in range(1, 5):
            keys = run.peers[0][other][KEY_BYTES:]
            secret = exchange(run.agents[0].private_mask_key, keys)
            late -= run.task.pair_mask(secret, 0, other)
        assert (late != 0).all()
        seed = run.agents[0].private_seed
        assert torch.equal(late, run.task.self_mask(seed, 0))

    def test_a_vector_stays_hidden_without_the_masks_of_pairs(self):
        """Seeds are revealed for agents whose vectors are in the sum."""
        run = self.masked_of(50)
        own = run.task.self_mask(run.agents[0].private_seed, 0)
        assert (run.masked[0] - own != 0).all()

    def test_shares_are_encrypted(self):
        run = Run(5, 3)
        run.forward()
        for receiver, sealed in run.sealed.items():
            run.agents[receiver].masked(run.vectors[receiver], sealed)
            for sender, data in sealed.items():
                plain = run.agents[receiver].private_shares[sender]
                assert plain[4:20] not in data
                assert plain[SHARE_BYTES + 4 :] not in data


class TestMasks:
    def test_they_depend_on_the_whole_secret(self):
        """Secrets whose halves, or 32-bit words, have the same exclusive or."""
        secret = new_secret() + b"\0"
        words = np.frombuffer(secret, dtype="<u4")
        other = np.roll(words, 1).tobytes()
        folded = np.frombuffer(other, dtype="<u4")
        assert np.bitwise_xor.reduce(words) == np.bitwise_xor.reduce(folded)
        task = task_of(3, 100)
        assert not (task.self_mask(secret, 0) == task.self_mask(other, 0)).any()
        for position in range(SECRET_BYTES):
            flipped = bytearray(secret)
            flipped[position] ^= 128
            mask = task.self_mask(bytes(flipped), 0)
            assert not (mask == task.self_mask(secret, 0)).any()

    def test_they_belong_to_one_round_of_one_experiment(self):
        secret = new_secret()
        masks = [
            task.self_mask(secret, agent)
            for task in (
                task_of(3),
                task_of(3, number=4),
                SumTask("f" * 32, 3, 3, ENTRIES),
            )
            for agent in (0, 1)
        ]
        masks.append(task_of(3).pair_mask(secret, 0, 1))
        for index, mask in enumerate(masks):
            assert not any((mask == other).any() for other in masks[:index])

    def test_they_cancel(self):
        task, first, second = task_of(3), new_secret(), new_secret()
        forth = exchange(first, public_key(second))
        back = exchange(second, public_key(first))
        masks = [task.pair_mask(forth, 2, 7), task.pair_mask(back, 7, 2)]
        assert not sum_of(masks).any()
        assert masks[0].any()

    def test_what_is_sealed_belongs_to_one_round(self):
        task, secret = task_of(3), new_secret()
        sealed = task.seal(secret, 0, 1, b"share")
        assert task.unseal(secret, 0, 1, sealed) == b"share"
        for other, sender, receiver in (
            (task_of(3, number=4), 0, 1),
            (task, 1, 0),
            (task, 2, 1),
        ):
            with pytest.raises(MessageError, match="were altered"):
                other.unseal(secret, sender, receiver, sealed)
        with pytest.raises(MessageError, match="were altered"):
            task.unseal(secret, 0, 1, b"")
