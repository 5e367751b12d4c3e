"""Deployments in one process, and what they have to be equal to."""

import torch
from flwr.app import Message

from botorch_dp import DPFTSDE, DPFTSServer
from botorch_dp.integrations.flower.messages import Answer
from botorch_dp.integrations.flower.secure_server_app import SecureDeployment
from botorch_dp.integrations.flower.server_app import Deployment
from examples.flower_on_one_machine import demo

CPU = torch.device("cpu")


def deploy(settings, grid):
    secure = settings.trust == "aggregation"
    deployment = (SecureDeployment if secure else Deployment)(settings)
    deployment.run(grid)
    return torch.stack(deployment.broadcasts)


def simulate(settings, absent=None, late=None):
    """Return the broadcasts of the simulation.

    Agents are absent by round, or late: they evaluate, and their vectors do not count.
    """
    N = settings.federation.num_agents
    opt = DPFTSDE(
        settings.federation,
        num_steps=settings.num_rounds,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        sampling_rate=settings.sampling_rate,
        sample_size=settings.sample_size,
        trust=settings.trust,
        num_honest=settings.num_honest,
        sensitivity=settings.sensitivity,
        seed=settings.seed,
        generator=torch.Generator(device="cpu").manual_seed(settings.seed),
    )
    number = 0
    while not opt.done:
        X = opt.ask()
        scores = torch.stack([demo.score(agent, X[agent]) for agent in range(N)])
        where = torch.ones(N, dtype=torch.bool, device="cpu")
        where[(absent or {}).get(number, [])] = False
        answers = where.clone()
        answers[(late or {}).get(number, [])] = False
        opt.tell(scores, where, answers)
        number += 1
    return opt.result().broadcasts


def zeroed(settings, without):
    """Return the broadcasts when the server gets zeros from an agent in a round."""
    # With agents that never follow a broadcast, other rounds do not change.
    assert settings.federation.trust == "never"
    agents = settings.federation.agents(seed=settings.seed)
    server = DPFTSServer(
        settings.federation.weights(),
        settings.federation.num_features,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        sampling_rate=settings.sampling_rate,
        num_rounds=settings.num_rounds,
        generator=torch.Generator(device="cpu").manual_seed(settings.seed),
    )
    broadcasts = []
    for number in range(settings.num_rounds):
        X = agents.ask(number)
        agents.tell(X, torch.stack([demo.score(n, X[n]) for n in range(len(X))]))
        messages = agents.messages(number)
        messages[without.get(number, [])] = 0.0
        broadcasts.append(server.release(messages))
    return torch.stack(broadcasts)


def assert_close(got, expected):
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, rtol=0, atol=1e-9)


def answer(agent, number, vector):
    records = Answer(agent, number).to_records()
    records["answer"]["vector"] = vector.tobytes()
    return records


def replaced(records):
    return lambda message, reply: [Message(records, reply_to=message)]


def private_log(settings):
    with open(f"{settings.output}/private/server.log") as file:
        return file.read()


def without_names(path):
    """Return the lines of a certificate's text except for its ledger's random name."""
    lines = path.read_text().splitlines()
    return [line for line in lines if not line.startswith("  ledger ")]
