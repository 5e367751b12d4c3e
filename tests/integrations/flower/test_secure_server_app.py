"""Whole deployments without a trusted server: exact sums, and what agents refuse."""

import math
from dataclasses import replace

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from botorch_dp import Certificate, Ledger
from botorch_dp.integrations.flower import secure_server_app
from botorch_dp.integrations.flower.messages import Question
from botorch_dp.integrations.flower.secure_messages import (
    SumAnswer,
    SumQuestion,
    vector_from_bytes,
    vector_to_bytes,
)
from botorch_dp.integrations.flower.secure_server_app import SecureDeployment
from botorch_dp.integrations.flower.secure_sum import KEYS, REVEAL, SHARES, VECTOR
from botorch_dp.optimizers.core.checkpoint import read_checkpoint

from .deployments import CPU, deploy, private_log, simulate
from .grid import NAME, counted

SIZE = 2 * 20  # P x M


@pytest.fixture
def secure_of(settings_of):
    """Settings of sums with almost no noise, of at least three of four agents."""

    def make(**changes):
        values = {
            "trust": "aggregation",
            "num_honest": 3,
            "noise_multiplier": 1e-8,
            "sampling_rate": 1.0,
        }
        return settings_of(**{**values, **changes})

    return make


@pytest.fixture
def pauses(monkeypatch):
    """Do not wait before a round begins again; returns how often it did."""
    found = []
    monkeypatch.setattr(secure_server_app.time, "sleep", found.append)
    return found


def assert_near(got, expected):
    """Up to the little noise that there is."""
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, rtol=0, atol=1e-5)
    assert expected.abs().max() > 0.1


def num_charged(settings):
    return len(Ledger(path=f"{settings.output}/ledger.sqlite"))


class TestEqualsTheSimulation:
    @pytest.mark.parametrize("files", [False, True])
    def test_when_all_answer(self, secure_of, grid_of, files):
        settings = secure_of()
        grid = grid_of(settings, files=files)
        assert_near(deploy(settings, grid), simulate(settings))
        assert num_charged(settings) == 3

    def test_when_one_is_away(self, secure_of, grid_of):
        settings = secure_of(num_rounds=5)
        grid = grid_of(settings)
        grid.nodes[101].silent = {1, 2}
        expected = simulate(settings, absent={1: [1], 2: [1]})
        assert_near(deploy(settings, grid), expected)

    @pytest.mark.parametrize("how", ["silent", "slow"])
    def test_when_one_drops_out_in_each_stage(self, secure_of, grid_of, how):
        settings = secure_of(num_rounds=4)
        grid = grid_of(settings)
        # In the last stage its vector counts already.
        moments = {101: (0, SHARES), 103: (1, VECTOR), 100: (2, REVEAL)}
        for node, moment in moments.items():
            setattr(grid.nodes[node], how, {moment})
        expected = simulate(settings, late={0: [1], 1: [3]})
        assert_near(deploy(settings, grid), expected)
        assert "round 1: no answer from agents [3]" in private_log(settings)

    def test_with_keys_through_flower(self, secure_of, grid_of, keys_of):
        settings = secure_of()
        grid = grid_of(settings)
        settings = replace(settings, keys=keys_of(grid))
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config=settings.to_run_config(),
        )
        for node in grid.nodes.values():
            node.run_config = settings.to_run_config()
        secure_server_app.app(grid, context)
        state = read_checkpoint(f"{settings.output}/state.pt", CPU)
        assert_near(state["broadcasts"], simulate(settings))


class TestNoise:
    def test_has_the_level_that_the_server_states(self, secure_of, grid_of, federation):
        wide = replace(federation, num_features=300, num_candidates=20)
        settings = secure_of(
            federation=wide, noise_multiplier=5.0, sampling_rate=0.5, num_rounds=4
        )
        broadcasts = deploy(settings, grid_of(settings))
        server = SecureDeployment(settings).server
        stds = torch.tensor(
            [server.noise_std(number) for number in range(4)],
            dtype=torch.float64,
            device="cpu",
        )
        # All four add shares, of which three would be enough.
        assert float(stds[0]) == pytest.approx(
            5.0 * server.contribution_bound(0) * math.sqrt(4 / 3) / 0.5, rel=0.03
        )
        scaled = broadcasts / stds.view(-1, 1, 1)
        assert float(scaled.std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * 2400))

    def test_is_never_seeded(self, secure_of, grid_of, tmp_path):
        """A seed is public: it would show the noise to all agents."""
        settings = secure_of(noise_multiplier=1.0, num_rounds=1)
        other = replace(settings, output=str(tmp_path / "other"))
        first = deploy(settings, grid_of(settings))
        assert not torch.allclose(first, deploy(other, grid_of(other)), atol=1e-3)
        (entry,) = Ledger(path=f"{settings.output}/ledger.sqlite").entries
        assert entry.noise == "system"


class TestTooFew:
    """Nothing is revealed."""

    @pytest.mark.parametrize("stage", [VECTOR, REVEAL])
    def test_after_the_charge_the_round_is_over(self, secure_of, grid_of, stage):
        settings = secure_of(num_rounds=3)
        grid = grid_of(settings)
        for node in (100, 102):
            grid.nodes[node].silent = {(1, stage)}
        broadcasts = deploy(settings, grid)
        assert len(broadcasts) == 2
        assert num_charged(settings) == 3
        assert "no broadcast: A sum needs 3 agents, got 2" in private_log(settings)
        asked = [(one.metadata.group_id, stage_of(one)) for one in grid.sent]
        assert asked.count(("1", REVEAL)) == (4 if stage == REVEAL else 0)
        # Agents do not follow the broadcast of an earlier round.
        sent = {one.metadata.group_id: one.content["question"] for one in grid.sent}
        assert "broadcast" not in sent["2"]
        assert broadcast_in(grid, "1") is not None
        assert broadcast_in(grid, "2") is None
        assert broadcast_in(grid, "3") is not None

    @pytest.mark.parametrize("stage", [KEYS, SHARES])
    def test_before_the_charge_the_round_begins_again(
        self, secure_of, grid_of, pauses, stage
    ):
        settings = secure_of(num_rounds=2)
        grid = grid_of(settings)
        nodes = [grid.nodes[100], grid.nodes[102]]
        for node in nodes:
            node.slow = {(1, stage)}

        def come_back(seconds):
            pauses.append(seconds)
            if seconds == 1.0:
                assert num_charged(settings) == 1
                for node in nodes:
                    node.slow = set()

        secure_server_app.time.sleep = come_back
        assert_near(deploy(settings, grid), simulate(settings))
        assert pauses.count(1.0) == 1
        assert num_charged(settings) == 2
        assert "begins again: A sum needs 3 agents" in private_log(settings)

    def test_a_round_waits_for_enough_agents(self, secure_of, grid_of, pauses):
        settings = secure_of(start_timeout=0.01)
        grid = grid_of(settings)
        away = [grid.nodes[100], grid.nodes[101]]
        for node in away:
            node.connected = False

        def come_back(seconds):
            pauses.append(seconds)
            if len(pauses) == 20:
                assert not grid.sent
                away[0].connected = True

        secure_server_app.time.sleep = come_back
        deploy(settings, grid)
        assert num_charged(settings) == 3


def stage_of(message):
    return message.content["question"].get("stage")


def broadcast_in(grid, number):
    first = next(one for one in grid.sent if one.metadata.group_id == number)
    return first.content["question"].get("broadcast")


class TestFiles:
    def test_what_is_certified(self, secure_of, grid_of, tmp_path):
        settings = secure_of(noise_multiplier=1.0, sampling_rate=0.5)
        deploy(settings, grid_of(settings))
        text = (tmp_path / "server" / "certificate.json").read_text()
        certificate = Certificate.from_json(text)
        assert certificate.num_releases == 3
        shown = " ".join(str(certificate).split())
        assert "at least 3 agents other than those who try to learn" in shown
        assert "follow the protocol" in shown
        assert "bounded computations only" in shown
        assert "The server sees who takes part" in shown
        assert "central" not in shown

    def test_a_crash_after_the_charge_ends_the_round(self, secure_of, grid_of):
        settings = secure_of()
        grid = grid_of(settings)

        def stop(message, reply):
            raise KeyboardInterrupt

        grid.nodes[102].tamper = {(1, VECTOR): stop}
        with pytest.raises(KeyboardInterrupt):
            deploy(settings, grid)
        assert num_charged(settings) == 2
        grid.nodes[102].tamper = {}
        assert len(deploy(settings, grid)) == 2  # of rounds 0 and 2
        assert num_charged(settings) == 3
        assert broadcast_in(grid, "2") is None

    def test_a_crash_before_the_charge_costs_nothing(self, secure_of, grid_of):
        settings = secure_of()
        grid = grid_of(settings)

        def stop(message, reply):
            raise KeyboardInterrupt

        grid.nodes[102].tamper = {(1, SHARES): stop}
        with pytest.raises(KeyboardInterrupt):
            deploy(settings, grid)
        assert num_charged(settings) == 1
        grid.nodes[102].tamper = {}
        assert_near(deploy(settings, grid), simulate(settings))


class TestALyingAgent:
    @pytest.mark.parametrize(
        ("stage", "change"),
        [
            (KEYS, {"items": [b"short"]}),
            (KEYS, {"agents": [2]}),
            (KEYS, {"stage": SHARES}),
            (SHARES, {"agents": [], "items": []}),
            (SHARES, {"items": [1, 2, 3]}),
            (VECTOR, {"items": [b"short"]}),
            (VECTOR, {"agents": [7]}),
            (VECTOR, {"agents": [1, 1]}),
        ],
    )
    def test_is_left_out(self, secure_of, grid_of, stage, change):
        settings = secure_of(num_rounds=2)
        grid = grid_of(settings)

        def lie(message, reply):
            reply.content["answer"].update(change)
            return [Message(reply.content, reply_to=message)]

        grid.nodes[101].tamper = {(0, stage): lie}
        assert_near(deploy(settings, grid), simulate(settings, late={0: [1]}))


class TestAnAgent:
    """Asked by a server that we play."""

    @pytest.fixture
    def grid(self, secure_of, grid_of):
        return grid_of(secure_of())

    def ask(self, grid, agent, stage, items=(), number=0, experiment=NAME):
        federation = grid.federation
        question = Question(federation, experiment, number)
        records = SumQuestion(question, stage, dict(items)).to_records()
        node = grid.nodes[100 + agent]
        message = Message(records, node.node_id, "query", group_id=str(number))
        (reply,) = node.handle(message)
        return reply

    def items(self, grid, agent, stage, items=(), **kwargs):
        reply = self.ask(grid, agent, stage, items, **kwargs)
        assert not reply.has_error(), reply.error.reason
        return SumAnswer.from_records(
            reply.content, stage=stage, num_agents=4, num_entries=SIZE
        ).items

    @pytest.fixture
    def until_vectors(self, grid, federation):
        """Go through the first two stages of a round."""
        grid.federation = federation

        def go(number=0):
            peers = {}
            for n in range(4):
                peers |= self.items(grid, n, KEYS, number=number)
            sealed = [
                self.items(grid, n, SHARES, peers, number=number) for n in range(4)
            ]
            return [{m: sealed[m][n] for m in range(4) if m != n} for n in range(4)]

        return go

    def test_gives_one_vector_for_a_round(self, grid, until_vectors):
        sealed = until_vectors()
        first = self.items(grid, 0, VECTOR, sealed[0])
        assert len(vector_from_bytes(first[0], SIZE)) == SIZE
        fewer = {n: sealed[0][n] for n in (1, 2)}
        reply = self.ask(grid, 0, VECTOR, fewer)
        assert "over" in reply.error.reason
        for stage in (KEYS, SHARES):
            assert self.ask(grid, 0, stage).has_error()
        assert "Round 0 is over" in self.ask(grid, 0, KEYS).error.reason
        until_vectors(number=1)

    def test_may_begin_again_before_it_gave_a_vector(self, grid, until_vectors):
        counted.points = 0
        for node in grid.nodes.values():
            node.run_config["scores"] = f"{counted.__module__}:counted"
        first, second = until_vectors(), until_vectors()
        assert counted.points == 4 * 3
        assert "altered" in self.ask(grid, 0, VECTOR, first[0]).error.reason
        assert not self.ask(grid, 1, VECTOR, second[1]).has_error()

    def test_remembers_in_its_file_which_rounds_are_over(
        self, secure_of, grid_of, federation
    ):
        settings = secure_of()
        grid = grid_of(settings, files=True)
        grid.federation = federation
        until = TestAnAgent.until_vectors.__wrapped__(self, grid, federation)
        sealed = until()
        self.items(grid, 0, VECTOR, sealed[0])
        grid = grid_of(settings, files=True)  # new supernodes, with the same files
        grid.federation = federation
        assert "Round 0 is over" in self.ask(grid, 0, KEYS).error.reason
        assert "has not begun round 0" in self.ask(grid, 1, VECTOR).error.reason
        assert not self.ask(grid, 1, KEYS).has_error()

    def test_reveals_once_and_forgets(self, grid, until_vectors):
        sealed = until_vectors()
        for n in range(4):
            self.items(grid, n, VECTOR, sealed[n])
        wanted = {0: b"seed", 1: b"seed", 2: b"seed", 3: b"mask key"}
        assert set(self.items(grid, 0, REVEAL, wanted)) == {0, 1, 2, 3}
        assert "secrets" in grid.nodes[100].state["sum"]
        assert not any(grid.nodes[100].state["sum"]["secrets"])
        assert not grid.nodes[100].state["sum"]["shares"]
        for again in (wanted, {**wanted, 3: b"seed"}, {**wanted, 1: b"mask key"}):
            assert "stage 4" in self.ask(grid, 0, REVEAL, again).error.reason
        reply = self.ask(grid, 1, REVEAL, {**wanted, 0: b"everything"})
        assert "something else" in reply.error.reason
        few = {0: b"seed", 1: b"mask key", 2: b"seed", 3: b"mask key"}
        assert "needs 3 agents" in self.ask(grid, 2, REVEAL, few).error.reason
        # Refused once, the round is over for it.
        assert self.ask(grid, 2, REVEAL, wanted).has_error()

    def test_is_asked_for_one_share_of_each_agent(self, grid, until_vectors):
        sealed = until_vectors()
        self.items(grid, 0, VECTOR, sealed[0])
        question = Question(grid.federation, NAME, 0)
        records = SumQuestion(question, REVEAL).to_records()
        records["question"]["agents"] = [0, 1, 2, 3, 3]
        records["question"]["items"] = [b"seed"] * 4 + [b"mask key"]
        node = grid.nodes[100]
        (reply,) = node.handle(Message(records, 100, "query", group_id="0"))
        assert "names an agent twice" in reply.error.reason

    def test_does_not_mix_rounds_or_experiments(self, grid, until_vectors):
        sealed = until_vectors()
        for other in ({"number": 1}, {"experiment": "f" * 32}):
            reply = self.ask(grid, 0, VECTOR, sealed[0], **other)
            assert "has not begun" in reply.error.reason

    def test_adds_only_noise_if_it_is_not_sampled(self, secure_of, grid_of, federation):
        """What it adds is the server's own formula, with its column of weights."""
        settings = secure_of(sampling_rate=0.5)
        server = SecureDeployment(settings).server
        vector = torch.ones(20, dtype=torch.float64, device="cpu")
        row = server._contributions(vector.expand(4, 20).clone(), 0)[2]
        step = server._mechanism(0).step
        shares = [
            server.share(vector, agent=2, number=0).double() * step for _ in range(200)
        ]
        given = [torch.allclose(one, row, atol=1e-5) for one in shares]
        empty = [torch.allclose(one, 0 * row, atol=1e-5) for one in shares]
        assert all(a != b for a, b in zip(given, empty, strict=True))
        assert 60 < sum(given) < 140


@pytest.mark.parametrize("num_agents", [20, 100])
def test_messages_pass_the_gateway(num_agents):
    """They stay under 64 kB, although an object of a call may have 1 MB."""
    zeros = torch.zeros(400, dtype=torch.int64, device="cpu")
    share, items = b"x" * (12 + 72 + 16), range(num_agents)
    answers = [
        SumAnswer(0, 0, SHARES, dict.fromkeys(items, share)),
        SumAnswer(0, 0, VECTOR, {0: vector_to_bytes(zeros)}),
        SumAnswer(0, 0, REVEAL, dict.fromkeys(items, b"x" * 36)),
    ]
    for answer in answers:
        size = len(answer.to_records()["answer"].deflate())
        assert size < 64 * 2**10
