"""The agent's side: a Flower ClientApp around the agents of DP-FTS-DE.

Flower answers every message in a new process, so this imports torch, numpy and flwr
only. The agent's observations stay on its machine. Its answer goes to the server, which
is trusted with it.
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from botorch_dp.exceptions import (
    InvalidArgumentError,
    MessageError,
    OptimizerStateError,
)
from botorch_dp.integrations.flower.agent_store import (
    AgentMemory,
    AgentStore,
    open_store,
)
from botorch_dp.integrations.flower.messages import Answer, Question
from botorch_dp.optimizers.fts.agents import FTSAgents

Score = Callable[[int, Tensor], Tensor]

_LOG = logging.getLogger(__name__)

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Evaluate the points that the agent chooses, and answer with its vector."""
    question = Question.from_records(message.content)
    _, memory, agents = evaluate_round(question, context)
    vector = None if question.final else agents.messages(question.number)[0]
    records = Answer(memory.agent, question.number, vector).to_records()
    return Message(records, reply_to=message)


def evaluate_round(
    question: Question, context: Context
) -> tuple[AgentStore, AgentMemory, FTSAgents]:
    """Evaluate the points that the agent chooses in a round, unless it has.

    Returns:
        Where the agent keeps its memory, the memory, and the agent: private.
    """
    check_question(question, context.run_config)
    agent = agent_index(context.node_config, question.federation.num_agents)
    score = load_score(choose("scores", context.node_config, context.run_config))
    store = open_store(context, question.experiment, agent)
    memory, agents = _load(store, question, agent, context.run_config.get("seed"))
    if question.number < memory.number:
        raise MessageError(
            f"Asked for round {question.number} after round {memory.number}."
        )
    # An agent that missed the first round starts with it, as the others did.
    numbers = sorted({0, question.number}) if memory.number < 0 else [question.number]
    for number in numbers:
        if number <= memory.number:
            continue  # the last answer was lost, and the server asks again
        _evaluate(agents, number, question.broadcast, score)
        memory = replace(memory, number=number, state=agents.private_state_dict())
        store.save(memory)  # before anyone sees the answer
    return store, memory, agents


def check_question(question: Question, run_config: Mapping[str, Any]) -> None:
    """Raise a MessageError if the question does not belong to this run.

    An agent does not go back to earlier rounds, so a question from outside the run
    would keep it from all remaining rounds.
    """
    if question.federation.to_json() != run_config.get("federation"):
        raise MessageError("The settings in the question are not those of the run.")
    num_rounds = run_config.get("num-rounds")
    if not isinstance(num_rounds, int):
        raise MessageError("The run config does not say how many rounds there are.")
    last = num_rounds if question.final else num_rounds - 1
    if question.number > last:
        raise MessageError(
            f"Asked for round {question.number} in a run of {num_rounds} rounds."
        )


def agent_index(node_config: Mapping[str, Any], num_agents: int) -> int:
    """Return the index of the agent from the node config."""
    index = node_config.get("agent")
    if not isinstance(index, int) or not 0 <= index < num_agents:
        raise InvalidArgumentError(
            f"agent in the node config must be a number from 0 to {num_agents - 1}, "
            f'got {index!r}: start the supernode with --node-config "agent=3".'
        )
    return index


def load_score(path: Any) -> Score:
    """Import an agent's score function.

    Args:
        path: A module and a function in it, such as ``"hospital.scores:auc"``. The
            function takes the agent's index and a ``k x D`` tensor of points, and
            returns ``k`` scores, which are maximized.

    Example:
        >>> load_score("math:hypot").__name__
        'hypot'
    """
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not colon:
        raise InvalidArgumentError(
            f'scores must be an import path such as "module:function", got {path!r}.'
        )
    score = getattr(importlib.import_module(module), name, None)
    if not callable(score):
        raise InvalidArgumentError(
            f"scores must name a function, but module {module!r} has no function "
            f"{name!r}."
        )
    return score


def choose(key: str, node_config: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """Return the agent's own choice if it has one, or else that of the app."""
    return node_config.get(key, run.get(key))


def _load(
    store: AgentStore, question: Question, agent: int, seed: Any
) -> tuple[AgentMemory, FTSAgents]:
    """Return what the agent remembers, and the agent with its observations."""
    try:
        memory = store.load()
        if memory is None:
            memory = AgentMemory(question.federation.to_json(), agent)
            if seed is not None:
                memory = replace(memory, seed=seed)
        return memory, memory.agents()
    except OptimizerStateError:
        # The reason contains the path of the file, so it stays in the agent's log.
        _LOG.exception("The agent's file cannot be used.")
        raise RuntimeError("The agent's file cannot be used: see its log.") from None


def _evaluate(
    agents: FTSAgents, number: int, broadcast: Tensor | None, score: Score
) -> None:
    X = agents.ask(number, broadcast)  # 1 x k x D
    index = int(agents.agents[0])
    try:
        scores = torch.as_tensor(score(index, X[0]), dtype=X.dtype, device=X.device)
    except Exception:
        # The reason may contain private data, so it stays in the agent's log.
        _LOG.exception("The score function failed.")
        raise RuntimeError("The score function failed: see the agent's log.") from None
    if scores.shape != X.shape[1:2]:
        raise InvalidArgumentError(
            f"The score function must return {X.shape[1]} scores, one for each point, "
            f"got shape {tuple(scores.shape)}."
        )
    agents.tell(X, scores[None])
