"""The agent's side of a vote: a Flower ClientApp that scores candidates.

Flower answers every message in a new process, so this imports torch, numpy and flwr
only. The agent's data and models stay on its machine. Its marks go to the server, which
is trusted with them.
"""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.integrations.flower.client_app import agent_index, choose, load_score
from botorch_dp.integrations.flower.messages import Answer
from botorch_dp.integrations.flower.vote_messages import VoteQuestion

Scores = Callable[[int, Sequence[Any]], Sequence[float] | Tensor]

_LOG = logging.getLogger(__name__)

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Score the agent's candidates and answer with its marks, or take the winner."""
    question = VoteQuestion.from_records(message.content)
    if question.election.to_json() != context.run_config.get("election"):
        raise MessageError("The settings in the question are not those of the run.")
    agent = agent_index(context.node_config, question.election.num_agents)
    marks = None
    if question.winner is None:
        path = choose("scores", context.node_config, context.run_config)
        scores: Any = load_score(path)  # of candidates here, not of points
        marks = _marks(context, question, agent, scores)
    else:
        _keep_winner(context, question, question.winner)
    records = Answer(agent, question.number, marks).to_records()
    return Message(records, reply_to=message)


def _marks(
    context: Context, question: VoteQuestion, agent: int, scores: Scores
) -> Tensor:
    """Return the agent's marks; those of an earlier answer that was lost, if any."""
    known = context.state.get("ballot")
    if isinstance(known, ConfigRecord) and known["experiment"] == question.experiment:
        data = known["marks"]
        assert isinstance(data, bytes)
        return torch.from_numpy(np.frombuffer(data, dtype="<f8").copy())
    election = question.election
    indices = election.candidates_of(agent)
    found = _evaluate(scores, agent, [election.candidates[i] for i in indices.tolist()])
    marks = election.marks(found[None], indices[None])[0]
    context.state["ballot"] = ConfigRecord(
        {
            "experiment": question.experiment,
            "marks": marks.numpy().astype("<f8").tobytes(),
        }
    )
    return marks


def _evaluate(scores: Scores, agent: int, candidates: Sequence[Any]) -> Tensor:
    try:
        found = torch.as_tensor(
            scores(agent, candidates), dtype=torch.float64, device="cpu"
        )
    except Exception:
        # The reason may contain private data, so it stays in the agent's log.
        _LOG.exception("The score function failed.")
        raise RuntimeError("The score function failed: see the agent's log.") from None
    if found.shape != (len(candidates),):
        raise InvalidArgumentError(
            f"The score function must return {len(candidates)} scores, one for each "
            f"candidate, got shape {tuple(found.shape)}."
        )
    return found


def _keep_winner(context: Context, question: VoteQuestion, winner: int) -> None:
    """Write the winner to the agent's folder, if its node config names one: public."""
    folder = context.node_config.get("state")
    if folder is None:
        return
    if not isinstance(folder, str) or not Path(folder).is_dir():
        raise InvalidArgumentError(
            f"state in the node config must be a folder that exists, got {folder!r}."
        )
    chosen = {"index": winner, "candidate": question.election.candidates[winner]}
    path = Path(folder) / f"winner-{question.experiment}.json"
    path.write_text(json.dumps(chosen))
