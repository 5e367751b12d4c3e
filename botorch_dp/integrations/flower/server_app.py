"""The server's side: a Flower ServerApp around the server of DP-FTS-DE.

In every round the server asks all connected agents. :meth:`DPFTSServer.release` draws
the sample, which stays secret. The server waits for ``timeout`` seconds. An agent that
has not answered by then counts as zero, and its weight is not given to others. While no
agent is connected, the server waits and spends nothing.
"""

import os
import time

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower.fts_server import new_server
from botorch_dp.integrations.flower.messages import Question
from botorch_dp.integrations.flower.polling import AgentPoll
from botorch_dp.integrations.flower.private_files import (
    UMASK,
    FolderLock,
    private_folder,
    write_private,
)
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.privacy import Certificate, Ledger

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the remaining rounds."""
    os.umask(UMASK)
    Deployment(DeploymentSettings.from_run_config(context.run_config)).run(grid)


class Deployment:
    """A server with its files, which may be published except for ``private``.

    ``state.pt`` contains the server's state and all broadcasts, ``ledger.sqlite`` the
    charges, ``certificate.txt`` and ``certificate.json`` the guarantee. ``private``
    contains a log and the bindings of nodes to agents. Only the owner can read the
    folder.

    Args:
        settings: The settings. If the folder contains a run with the same settings, it
            is resumed.

    Raises:
        OptimizerStateError: If another server uses the folder, or it contains a run
            with other settings or damaged files.
    """

    def __init__(self, settings: DeploymentSettings) -> None:
        self.settings = settings
        self.folder = private_folder(settings.output)
        private = private_folder(self.folder / "private")
        self._lock = FolderLock(private)
        try:
            ledger = Ledger(path=self.folder / "ledger.sqlite")
            self.server = new_server(settings, ledger)
            self.broadcasts: list[Tensor] = []
            self._poll = AgentPoll(
                self.server.num_agents,
                self.server.num_features,
                private=private,
                keys=settings.keys,
                timeout=settings.timeout,
                start_timeout=settings.start_timeout,
                quorum=settings.threshold or 1,
            )
            self._resume()
        except BaseException:
            self._lock.release()
            raise

    def run(self, grid: Grid) -> None:
        """Ask and release until all broadcasts are out, then inform the agents."""
        try:
            self._run(grid)
        finally:
            self._lock.release()

    def _run(self, grid: Grid) -> None:
        self._save()  # so that the run keeps its identity after a crash
        self._poll.wait_for_all(grid)
        while not self.server.done:
            began = time.monotonic()
            self._round(grid)
            self._save()
            seconds = time.monotonic() - began
            self._poll.private_log.info("round took %.3f seconds", seconds)
            print(f"round {self.server.num_broadcasts} of {self.server.num_rounds}")
        self._ask(grid, final=True)
        self._poll.private_log.info("all rounds are over")

    def _round(self, grid: Grid) -> None:
        """Release the broadcast of a round."""
        private_vectors = self._ask(grid)
        self.broadcasts.append(self.server.release(private_vectors))

    def _ask(self, grid: Grid, *, final: bool = False) -> Tensor:
        """Return the vectors of a round: private."""
        question = self._question(final=final)
        return self._poll.ask(grid, question.to_records(), question.number)

    def _question(self, *, final: bool = False) -> Question:
        """Return the question of the next round."""
        federation, server = self.settings.federation, self.server
        number = server.num_broadcasts
        return Question(federation, server.run_id, number, server.broadcast, final)

    def _certificate(self) -> Certificate:
        return self.server.certificate()

    def _save(self) -> None:
        shape = (0, self.server.num_regions, self.server.num_features)
        empty = torch.empty(shape, dtype=torch.float64, device="cpu")
        state = {
            "federation": self.settings.federation.to_json(),
            "server": self.server.state_dict(),
            "broadcasts": torch.stack(self.broadcasts) if self.broadcasts else empty,
        }
        write_checkpoint(self.folder / "state.pt", state)
        if not self.server.num_broadcasts:
            return  # there is nothing to certify yet
        certificate = self._certificate()
        write_private(self.folder / "certificate.txt", f"{certificate}\n")
        write_private(self.folder / "certificate.json", certificate.to_json())

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.exists():
            return
        state = read_checkpoint(path, torch.device("cpu"))
        if not isinstance(state.get("server"), dict) or not isinstance(
            state.get("broadcasts"), Tensor
        ):
            raise OptimizerStateError(f"{str(path)!r} is not the state of a server.")
        if state.get("federation") != self.settings.federation.to_json():
            raise OptimizerStateError(
                f"output {str(self.folder)!r} contains a run of another federation: "
                "name another folder."
            )
        self.server.load_state_dict(state["server"])
        self.broadcasts = list(state["broadcasts"])
