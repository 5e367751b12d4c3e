"""States: which of them are refused, and how those with private data are called."""

import pytest
import torch

from botorch_dp import DPFTSDE, GDP, Federation, Ledger
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers import (
    DPGIBO,
    FTSDE,
    DPFTSServer,
    FTSAgent,
    ThompsonSampling,
)
from botorch_dp.optimizers.core.state import STATE_VERSION
from botorch_dp.optimizers.fts.private_state import PrivatelyStateful
from botorch_dp.optimizers.fts.randomness import AgentRandomness
from tests.optimizers.problems import DEVICE, DOUBLE, same_state, seeded, unit_box

N = 4
FEDERATION = Federation(
    num_agents=N,
    lower=(0.0,),
    upper=(1.0,),
    lengthscale=(0.2,),
    num_features=10,
    num_regions=2,
    num_initial=2,
    num_candidates=20,
    local="shared",
)
SERVER = {
    "clip_norm": 5.0,
    "noise_multiplier": 1.0,
    "sampling_rate": 0.5,
    "device": DEVICE,
}


def agents():
    made = FEDERATION.agents(seed=1, device=DEVICE)
    X = made.ask(0)
    made.tell(X, X.squeeze(-1))
    return made


def agent():
    return FTSAgent(
        2,
        features=FEDERATION.features(device=DEVICE),
        domain=FEDERATION.domain(device=DEVICE),
        regions=FEDERATION.regions(),
        local="shared",
        randomness=AgentRandomness(3),
    )


def simulation(cls, **kwargs):
    def make():
        opt = cls(FEDERATION, num_steps=3, seed=1, **kwargs)
        opt.tell(opt.ask().squeeze(-1))
        return opt

    return make


def server():
    return DPFTSServer(FEDERATION.weights(device=DEVICE), 10, num_rounds=3, **SERVER)


MADE = {
    "agents": agents,
    "agent": agent,
    "dp-fts-de": simulation(DPFTSDE, **SERVER),
    "fts-de": simulation(FTSDE),
    "ts": simulation(ThompsonSampling),
    "server": server,
    "dp-gibo": lambda: DPGIBO(unit_box(2), 50, GDP(1.0), 3, 1.0, generator=seeded()),
}
OURS = [kind for kind in MADE if kind != "dp-gibo"]
PRIVATE = [kind for kind in OURS if kind != "server"]


def state_of(made):
    if isinstance(made, PrivatelyStateful):
        return made.private_state_dict()
    return made.state_dict()


def load(made, state):
    if isinstance(made, PrivatelyStateful):
        made.load_private_state_dict(state)
    else:
        made.load_state_dict(state)


def assert_refused(made, state, match):
    before = state_of(made)
    with pytest.raises(OptimizerStateError, match=match):
        load(made, state)
    assert same_state(state_of(made), before)


class TestRefuses:
    @pytest.mark.parametrize(
        ("kind", "other"),
        [(kind, other) for kind in OURS for other in MADE if other != kind],
    )
    def test_states_of_others(self, kind, other):
        made = MADE[kind]()
        assert_refused(made, state_of(MADE[other]()), "state_dict is")

    @pytest.mark.parametrize("kind", OURS)
    def test_what_is_no_state(self, kind):
        made = MADE[kind]()
        assert_refused(made, {}, "must have version")
        for nothing in (None, [1], 3, "state"):
            assert_refused(made, nothing, "is not a state of")

    @pytest.mark.parametrize("version", [None, STATE_VERSION - 1, "2"])
    @pytest.mark.parametrize("kind", OURS)
    def test_other_versions(self, kind, version):
        made = MADE[kind]()
        state = {**state_of(made), "version": version}
        assert_refused(made, state, f"must have version {STATE_VERSION}, got")

    @pytest.mark.parametrize("kind", OURS)
    def test_missing_and_wrong_entries(self, kind):
        made = MADE[kind]()
        state = state_of(made)
        for key in state:
            missing = {k: v for k, v in state.items() if k != key}
            for wrong in (missing, {**state, key: object}):
                assert_refused(made, wrong, "state_dict")

    @pytest.mark.parametrize("name", ["X", "Y", "seen"])
    def test_observations_that_do_not_belong_together(self, name):
        made = agents()
        state = made.private_state_dict()
        for wrong in (state[name][:, :1], state[name][0], state[name][:-1]):
            assert_refused(made, {**state, name: wrong}, "is not a state of FTSAgents")

    def test_parts_that_do_not_belong_together(self):
        made = MADE["dp-fts-de"]()
        state = made.private_state_dict()
        wrong = {
            "agents": agent().private_state_dict(),
            "server": MADE["fts-de"]().private_state_dict(),
            "number": 2,
            "best": [],
            "broadcasts": [torch.zeros(2, 9, **DOUBLE)],
        }
        for name, part in wrong.items():
            assert_refused(made, {**state, name: part}, "state_dict")

    @pytest.mark.parametrize("part", ["agents", "server"])
    def test_all_parts_are_checked_before_any_is_loaded(self, part):
        ledger = Ledger()
        half = simulation(DPFTSDE, ledger=ledger, **SERVER)()
        fresh = DPFTSDE(FEDERATION, num_steps=3, seed=2, ledger=ledger, **SERVER)
        state = half.private_state_dict()
        assert_refused(fresh, {**state, part: {}}, "must have version")
        assert fresh.server.run_id != half.server.run_id


@pytest.mark.parametrize("kind", PRIVATE)
class TestPrivate:
    def test_goes_on(self, kind):
        made = MADE[kind]()
        state = made.private_state_dict()
        made.load_private_state_dict(state)
        assert same_state(made.private_state_dict(), state)

    def test_is_a_copy(self, kind):
        made = MADE[kind]()
        changed = made.private_state_dict()
        inner = changed.get("agents", changed)
        inner["Y"].fill_(7.0)
        inner["seen"] = torch.zeros(0, device=DEVICE)
        after = made.private_state_dict()
        assert not (after.get("agents", after)["Y"] == 7.0).any()

    def test_former_names(self, kind):
        made = MADE[kind]()
        with pytest.warns(DeprecationWarning, match=r"use private_state_dict\(\)"):
            state = made.state_dict()
        with pytest.warns(DeprecationWarning, match="use load_private_state_dict"):
            made.load_state_dict(state)
        assert same_state(made.private_state_dict(), state)


def test_the_servers_state_is_public():
    made = server()
    assert not isinstance(made, PrivatelyStateful)
    assert set(made.state_dict()) == {
        "version",
        "settings",
        "run_id",
        "num_broadcasts",
        "broadcast",
    }
