"""The agent's side without a trusted server: a ClientApp that gives masked vectors.

The agent evaluates as :mod:`~botorch_dp.integrations.flower.client_app` does. It clips,
weights and samples its own vector, adds its share of the noise, and takes part in a
secure sum (:mod:`~botorch_dp.integrations.flower.secure_sum`). It gives a share for a
round once, whatever happens in that round: two would protect less than one.

Between the stages of a round, its secrets are in Flower's state of the node, in memory.
After a restart, the agent is back in the next round.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.client_app import (
    agent_index,
    check_question,
    evaluate_round,
)
from botorch_dp.integrations.flower.fts_server import new_server
from botorch_dp.integrations.flower.messages import Answer, Question
from botorch_dp.integrations.flower.secure_masks import SumTask
from botorch_dp.integrations.flower.secure_messages import (
    SumAnswer,
    SumQuestion,
    vector_to_bytes,
)
from botorch_dp.integrations.flower.secure_sum import (
    KEYS,
    MASK_KEY,
    SEED,
    SHARES,
    VECTOR,
    SumAgent,
)
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.privacy import Ledger

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer in a stage of a round, or evaluate for the last time."""
    question = Question.from_records(message.content)
    if question.final:
        _, memory, _ = evaluate_round(question, context)
        records = Answer(memory.agent, question.number).to_records()
        return Message(records, reply_to=message)
    asked = SumQuestion.from_records(message.content)
    check_question(asked.question, context.run_config)
    settings = DeploymentSettings.from_run_config(context.run_config)
    task = sum_task(settings, asked.question)
    if asked.stage == KEYS:
        agent = _begin(asked.question, context, task)
    else:
        agent = _load(context, task, settings.num_agents)
    try:
        items = _items(asked, context, settings, agent)
    finally:
        _save(context, agent)
    number = asked.question.number
    records = SumAnswer(agent.agent, number, asked.stage, items).to_records()
    return Message(records, reply_to=message)


def sum_task(settings: DeploymentSettings, question: Question) -> SumTask:
    """Return the secure sum of a round."""
    if settings.threshold is None:
        raise MessageError("The run has no secure sums: its trust is another one.")
    num_entries = settings.federation.num_regions * settings.federation.num_features
    return SumTask(
        question.experiment, question.number, settings.threshold, num_entries
    )


def _begin(question: Question, context: Context, task: SumTask) -> SumAgent:
    _, memory, _ = evaluate_round(question, context)
    if question.number <= memory.given:
        raise MessageError(f"Round {question.number} is over.")
    return SumAgent(task, memory.agent)


def _items(
    asked: SumQuestion,
    context: Context,
    settings: DeploymentSettings,
    agent: SumAgent,
) -> Mapping[int, bytes]:
    """Return what the agent says of each agent in this stage."""
    if asked.stage == KEYS:
        return {agent.agent: agent.keys()}
    if asked.stage == SHARES:
        return agent.share(asked.items)
    if asked.stage == VECTOR:
        masked = agent.masked(_share(asked.question, context, settings), asked.items)
        return {agent.agent: vector_to_bytes(masked)}
    kinds = set(asked.items.values())
    if not kinds <= {SEED, MASK_KEY}:
        raise MessageError("The server wants something else than shares.")
    try:
        return agent.reveal(
            active=[one for one, kind in asked.items.items() if kind == SEED],
            dropped=[one for one, kind in asked.items.items() if kind == MASK_KEY],
        )
    finally:
        agent.forget()


def _share(
    question: Question, context: Context, settings: DeploymentSettings
) -> Tensor:
    """Return what the agent adds to the sum, once for each round: private."""
    store, memory, agents = evaluate_round(question, context)
    if question.number <= memory.given:
        raise MessageError(f"Round {question.number} is over.")
    store.save(replace(memory, given=question.number))  # before anyone sees it
    server = new_server(settings, Ledger())
    vector = agents.messages(question.number)[0]
    return server.share(vector, agent=memory.agent, number=question.number)


def _load(context: Context, task: SumTask, num_agents: int) -> SumAgent:
    """Return the agent as it was after the last stage."""
    state: Any = context.state.get("sum")
    if (
        not isinstance(state, ConfigRecord)
        or (state["experiment"], state["number"]) != (task.experiment, task.number)
        or state["agent"] != agent_index(context.node_config, num_agents)
    ):
        raise MessageError(f"The agent has not begun round {task.number}.")
    return SumAgent.from_private_state(task, state)


def _save(context: Context, agent: SumAgent) -> None:
    task = agent.task
    context.state["sum"] = ConfigRecord(
        {
            "experiment": task.experiment,
            "number": task.number,
            **agent.private_state_dict(),
        }
    )
