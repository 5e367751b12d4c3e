"""The server's side of a vote: a Flower ServerApp around its server.

The server asks all connected agents for their marks, once. An agent that has not
answered in time counts as zero. Then it releases the winner and tells all agents.
"""

import json
import os

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower.polling import AgentPoll
from botorch_dp.integrations.flower.private_files import (
    UMASK,
    FolderLock,
    private_folder,
    write_private,
)
from botorch_dp.integrations.flower.vote_messages import VoteQuestion
from botorch_dp.integrations.flower.vote_settings import VoteSettings
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.vote.server import VoteResult, VoteServer
from botorch_dp.privacy import Ledger, PureDP

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Hold the vote, or tell agents the winner of one that was held."""
    os.umask(UMASK)
    VoteDeployment(VoteSettings.from_run_config(context.run_config)).run(grid)


class VoteDeployment:
    """A server with its files, which may be published except for ``private``.

    ``winner.json`` contains the winner, ``state.pt`` the server's state,
    ``ledger.sqlite`` the charge, ``certificate.txt`` and ``certificate.json`` the
    guarantee. ``private`` contains a log and the bindings of nodes to agents. Only the
    owner can read the folder.

    Args:
        settings: The settings. If the folder contains a vote with the same settings,
            it is resumed.

    Raises:
        OptimizerStateError: If another server uses the folder, or it contains a vote
            with other settings or damaged files.
    """

    def __init__(self, settings: VoteSettings) -> None:
        self.settings = settings
        self.folder = private_folder(settings.output)
        private = private_folder(self.folder / "private")
        self._lock = FolderLock(private)
        try:
            self.server = self._new_server(Ledger(path=self.folder / "ledger.sqlite"))
            self._poll = AgentPoll(
                settings.election.num_agents,
                settings.election.num_candidates,
                private=private,
                keys=settings.keys,
                timeout=settings.timeout,
                start_timeout=settings.start_timeout,
            )
            self._resume()
        except BaseException:
            self._lock.release()
            raise

    def run(self, grid: Grid) -> VoteResult:
        """Hold the vote unless it was held, and tell the agents who has won."""
        try:
            return self._run(grid)
        finally:
            self._lock.release()

    def _run(self, grid: Grid) -> VoteResult:
        self._save()  # so that the vote keeps its identity after a crash
        self.server.reserve()  # before agents train models
        self._poll.wait_for_all(grid)
        if not self.server.done:
            private_marks = self._ask(grid, winner=None)
            self.server.release(private_marks)
            self._save()
        result = self.server.result()
        print(f"the winner is candidate {result.index}: {result.candidate!r}")
        self._ask(grid, winner=result.index)
        self._poll.private_log.info("all rounds are over")
        return result

    def _ask(self, grid: Grid, *, winner: int | None) -> Tensor:
        """Return the agents' marks: private."""
        question = VoteQuestion(self.settings.election, self.server.run_id, winner)
        return self._poll.ask(grid, question.to_records(), question.number)

    def _save(self) -> None:
        write_checkpoint(self.folder / "state.pt", self.server.state_dict())
        if self.server.done:
            result = self.server.result()
            winner = {"index": result.index, "candidate": result.candidate}
            write_private(self.folder / "winner.json", json.dumps(winner))
            certificate = result.certificate
            write_private(self.folder / "certificate.txt", f"{certificate}\n")
            write_private(self.folder / "certificate.json", certificate.to_json())

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.exists():
            return
        state = read_checkpoint(path, torch.device("cpu"))
        if not isinstance(state.get("settings"), dict):
            raise OptimizerStateError(f"{str(path)!r} is not the state of a vote.")
        self.server.load_state_dict(state)

    def _new_server(self, ledger: Ledger) -> VoteServer:
        generator, seed = None, self.settings.seed
        if seed is not None:
            generator = torch.Generator(device="cpu").manual_seed(seed)
        return VoteServer(
            self.settings.election,
            PureDP(self.settings.epsilon),
            ledger=ledger,
            generator=generator,
        )
