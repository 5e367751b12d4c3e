"""Run a whole federation on one machine.

Run it with ``python -m examples.flower_on_one_machine.loopback`` in a clone of the
repository. It starts a Flower superlink and a supernode for every agent, all on
127.0.0.1, submits the app, waits, prints the results and ends everything that it
started. It writes to a temporary folder only, or to the one given by ``--output``.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from botorch_dp.integrations.flower.agent_store import agent_file, private_best
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.integrations.flower.vote_settings import VoteSettings
from botorch_dp.optimizers.core.checkpoint import read_checkpoint
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.vote.election import Election
from examples.flower_on_one_machine.local_federation import Loopback, loopback

_KILL_AFTER = 3  # rounds


def demo_settings(
    folder: Path,
    *,
    agents: int,
    rounds: int,
    timeout: float,
    seed: int | None = None,
    secure: bool = False,
) -> DeploymentSettings:
    """Return the settings of the demonstration, with secure sums or without."""
    federation = Federation(
        num_agents=agents,
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        lengthscale=(0.25, 0.25),
        num_features=100,
        num_regions=2,
        num_initial=5,
    )
    return DeploymentSettings(
        federation,
        num_rounds=rounds,
        clip_norm=5.0,
        noise_multiplier=1.0,
        sampling_rate=0.5,
        trust="aggregation" if secure else "server",
        output=str(folder / "server"),
        scores="examples.flower_on_one_machine.demo:score",
        timeout=timeout,
        seed=seed,
    )


def demo_vote(
    folder: Path, *, agents: int, timeout: float, seed: int | None = None
) -> VoteSettings:
    """Return the settings of a vote about learning rates."""
    rates = [{"rate": 10.0**exponent} for exponent in range(-4, 3)]
    return VoteSettings(
        Election(agents, rates),
        epsilon=2.0,
        output=str(folder / "server"),
        scores="examples.flower_on_one_machine.demo:accuracies",
        timeout=timeout,
        seed=seed,
    )


@dataclass
class _Options:
    agents: int
    rounds: int
    tls: bool
    kill: bool
    vote: bool
    secure: bool
    timeout: float
    output: Path | None


def _parse(arguments: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flower_on_one_machine.loopback", description=__doc__
    )
    parser.add_argument("--agents", type=int, default=4, help="default: 4")
    parser.add_argument("--rounds", type=int, default=10, help="default: 10")
    parser.add_argument(
        "--tls", action="store_true", help="encrypt, and authenticate supernodes"
    )
    parser.add_argument(
        "--kill", action="store_true", help="kill an agent after three rounds"
    )
    parser.add_argument(
        "--vote", action="store_true", help="hold a vote instead of DP-FTS-DE"
    )
    parser.add_argument(
        "--secure", action="store_true", help="show the server sums of vectors only"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="of a round in seconds, default: 30"
    )
    parser.add_argument(
        "--output", type=Path, help="a folder for all files, default: temporary"
    )
    return _Options(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration."""
    options = _parse(arguments)
    # SIGTERM unwinds the stack, as Ctrl-C does, and so ends all processes.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="botorch-dp-") as temporary:
        folder = Path(temporary)
        if options.output is not None:
            folder = options.output.resolve()
            folder.mkdir(parents=True, exist_ok=True)
        if options.vote:
            _hold_vote(folder, options)
            return
        settings = demo_settings(
            folder,
            agents=options.agents,
            rounds=options.rounds,
            timeout=options.timeout,
            secure=options.secure,
        )
        print(f"starting a superlink and {options.agents} supernodes on 127.0.0.1")
        with loopback(folder, settings, tls=options.tls) as whole:
            whole.submit()
            _watch(whole, options)
            status = whole.finish(timeout=60.0 + 2 * options.timeout)
        _report(whole, status, killed=options.kill)


def _hold_vote(folder: Path, options: _Options) -> None:
    settings = demo_vote(folder, agents=options.agents, timeout=options.timeout)
    print(f"starting a superlink and {options.agents} supernodes on 127.0.0.1")
    with loopback(folder, settings, tls=options.tls) as whole:
        whole.submit()
        whole.finish(timeout=240.0 + 2 * options.timeout)
    output = Path(settings.output)
    winner = json.loads((output / "winner.json").read_text())
    print(f"\nthe winner is {winner['candidate']}")
    print(f"\n{(output / 'certificate.txt').read_text()}")


def _watch(whole: Loopback, options: _Options) -> None:
    patience = 120.0 + 2 * options.timeout  # round 0 waits for all agents
    for number in range(1, options.rounds + 1):
        whole.wait(rounds=number, timeout=patience)
        seconds = whole.private_seconds()[number - 1]
        print(f"round {number}: {seconds:.1f} seconds")
        if options.kill and number == _KILL_AFTER:
            print(f"killing agent {options.agents - 1}")
            whole.kill_agent(options.agents - 1)


def _report(whole: Loopback, status: dict[str, Any], *, killed: bool) -> None:
    output = Path(whole.settings.output)
    state = read_checkpoint(output / "state.pt", torch.device("cpu"))
    experiment = state["server"]["run_id"]
    print("\nbest points, which only the agents themselves know:")
    for agent in range(whole.num_agents):
        x, score = private_best(
            agent_file(whole.agent_folder(agent), agent, experiment)
        )
        where = ", ".join(f"{value:.3f}" for value in x.tolist())
        print(f"  agent {agent}: {score:.4f} at ({where})")
    print(f"\n{(output / 'certificate.txt').read_text()}")
    seconds = whole.private_seconds()
    median = statistics.median(seconds)
    traffic = status["network-traffic"]["total-bytes"]
    rounds = len(seconds) + 1  # with the final message
    print(f"seconds a round: {median:.1f} (median)")
    if killed:
        lost = sum(max(0.0, second - median) for second in seconds[_KILL_AFTER:])
        print(f"seconds lost with the agent that was killed: {lost:.1f}")
    print(f"bytes a round, as Flower counts them: {traffic // rounds}")


if __name__ == "__main__":
    main()
