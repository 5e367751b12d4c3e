"""The server's side without a trusted server: it sees sums of noisy vectors only.

A round is a secure sum (:mod:`~botorch_dp.integrations.flower.secure_sum`) in four
stages, in each of which the server waits for ``timeout`` seconds. Agents that do not
answer are left out. If fewer than ``threshold`` remain, nothing is revealed.

The ledger is charged before any agent gives its vector. What fails before costs
nothing, and the round begins again. After the charge the round is over, with a
broadcast or without.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from botorch_dp.integrations.flower.messages import Question
from botorch_dp.integrations.flower.private_files import UMASK
from botorch_dp.integrations.flower.secure_client_app import sum_task
from botorch_dp.integrations.flower.secure_messages import (
    SumAnswer,
    SumQuestion,
    vector_from_bytes,
)
from botorch_dp.integrations.flower.secure_sum import KEYS, REVEAL, SHARES, VECTOR
from botorch_dp.integrations.flower.secure_sum_server import SumFailedError, SumServer
from botorch_dp.integrations.flower.server_app import Deployment
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.privacy import Certificate

_PAUSE = 1.0  # seconds before a round begins again
_PROTOCOL = (
    "server and agents follow the protocol of the secure sum; the server forwards "
    "agents' keys as they are. The protocol rests on X25519, ChaCha20, Poly1305 and "
    "SHA-256, so that it protects against bounded computations only. It has at least "
    "{threshold} agents in every sum"
)
_Items: TypeAlias = Mapping[int, Mapping[int, bytes]]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the remaining rounds."""
    os.umask(UMASK)
    settings = DeploymentSettings.from_run_config(context.run_config)
    SecureDeployment(settings).run(grid)


class SecureDeployment(Deployment):
    """A server that adds up masked vectors, with the files of :class:`Deployment`.

    Args:
        settings: The settings, with ``trust="aggregation"``.
    """

    def _round(self, grid: Grid) -> None:
        """Charge a round and release its broadcast, if enough agents stay."""
        question = self._question()
        while (begun := self._begin(grid, question)) is None:
            time.sleep(_PAUSE)
        self.server.charge_round()
        self._save()  # with the charge, and no broadcast to follow
        try:
            total = self._finish(grid, question, *begun)
        except SumFailedError as error:
            self._poll.private_log.warning("no broadcast: %s", error)
        else:
            self.broadcasts.append(self.server.release_sum(total))

    def _begin(self, grid: Grid, question: Question) -> tuple[SumServer, _Items] | None:
        """Return a sum and what to send next; None if too few agents answer."""
        server = SumServer(sum_task(self.settings, question))
        try:
            first = SumQuestion(question, KEYS).to_records()
            read = self._reader(server, KEYS)
            answers = self._poll.ask_all(grid, first, read, question.number)
            keys = {agent: answer.own for agent, answer in answers.items()}
            items = server.introduce(keys)
            sealed = self._ask_each(grid, question, server, SHARES, items)
            return server, server.forward(_items_of(sealed))
        except SumFailedError as error:
            self._poll.private_log.warning("the round begins again: %s", error)
            return None

    def _finish(
        self, grid: Grid, question: Question, server: SumServer, items: _Items
    ) -> Tensor:
        """Return the sum of the agents' shares."""
        answers = self._ask_each(grid, question, server, VECTOR, items)
        size = server.task.num_entries
        wanted = server.wanted_shares(
            {
                agent: vector_from_bytes(answer.own, size)
                for agent, answer in answers.items()
            }
        )
        revealed = self._ask_each(grid, question, server, REVEAL, wanted)
        return server.total(_items_of(revealed))

    def _ask_each(
        self,
        grid: Grid,
        question: Question,
        server: SumServer,
        stage: int,
        items: _Items,
    ) -> dict[int, SumAnswer]:
        """Return the answers of a stage after the first one."""
        # The agents have the broadcast already.
        short = replace(question, broadcast=None)
        questions = {
            agent: SumQuestion(short, stage, mine).to_records()
            for agent, mine in items.items()
        }
        read = self._reader(server, stage)
        return self._poll.ask_each(grid, questions, read, question.number)

    def _reader(
        self, server: SumServer, stage: int
    ) -> Callable[[RecordDict], SumAnswer]:
        return partial(
            SumAnswer.from_records,
            stage=stage,
            num_agents=self.server.num_agents,
            num_entries=server.task.num_entries,
        )

    def _certificate(self) -> Certificate:
        return self.server.certificate(
            _PROTOCOL.format(threshold=self.settings.threshold)
        )


def _items_of(answers: Mapping[int, SumAnswer]) -> _Items:
    return {agent: answer.items for agent, answer in answers.items()}
