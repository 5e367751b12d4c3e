"""The server's side: a Flower ServerApp around the server of DP-FTS-DE.

In every round the server asks all connected agents. :meth:`DPFTSServer.release` draws
the sample, which stays secret. The server waits for ``timeout`` seconds. An agent that
has not answered by then counts as zero, and its weight is not given to others. While no
agent is connected, the server waits and spends nothing.
"""

import os
import time
from collections import deque
from collections.abc import Mapping

import httpx
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower.messages import MESSAGE_TYPE, Question
from botorch_dp.integrations.flower.node_keys import read_keys
from botorch_dp.integrations.flower.private_files import (
    UMASK,
    FolderLock,
    private_folder,
    write_private,
)
from botorch_dp.integrations.flower.roll_call import RollCall, open_private_log
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.integrations.flower.waiting import Waiting
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.fts.server import DPFTSServer
from botorch_dp.privacy import Ledger

# The longest time in seconds between polls for replies and nodes. Flower's own
# send_and_receive polls every three seconds.
_POLL = 0.5
_LAST = 2.0  # the last seconds of a round, in which each poll asks for all replies

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
            self._agents_of_keys = None
            if settings.keys is not None:
                num_agents = settings.federation.num_agents
                self._agents_of_keys = read_keys(settings.keys, num_agents)
            self.server = self._new_server(Ledger(path=self.folder / "ledger.sqlite"))
            self.broadcasts: list[Tensor] = []
            self._private_log = open_private_log(private)
            self._roll_call = RollCall(
                self.server.num_agents,
                self.server.num_features,
                private_log=self._private_log,
                private_path=private / "nodes.json",
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
        self._wait_for_all(grid)
        while not self.server.done:
            began = time.monotonic()
            private_vectors = self._ask(grid)
            self.broadcasts.append(self.server.release(private_vectors))
            self._save()
            seconds = time.monotonic() - began
            self._private_log.info("round took %.3f seconds", seconds)
            print(f"broadcast {self.server.num_broadcasts} of {self.server.num_rounds}")
        self._ask(grid, final=True)
        self._private_log.info("all rounds are over")

    def _ask(self, grid: Grid, *, final: bool = False) -> Tensor:
        """Return the vectors of a round: private."""
        nodes, agents = self._connected(grid)
        number = self.server.num_broadcasts
        federation, server = self.settings.federation, self.server
        question = Question(
            federation, server.run_id, number, server.broadcast, final
        ).to_records()
        # A later answer would not count, so the message ends with the round.
        ttl, group = self.settings.timeout, str(number)
        messages = [
            Message(question, node, MESSAGE_TYPE, ttl=ttl, group_id=group)
            for node in nodes
        ]
        asked = dict(zip(grid.push_messages(messages), nodes, strict=True))
        return self._roll_call.vectors(
            self._replies(grid, asked),
            number=number,
            connected=set(grid.get_node_ids()),
            agents_of_nodes=agents,
        )

    def _replies(
        self, grid: Grid, asked: Mapping[str, int]
    ) -> list[tuple[int, Message]]:
        """Return the replies that arrive in time, with the nodes that were asked."""
        waiting = deque(identifier for identifier in asked if identifier)
        deadline = time.monotonic() + self.settings.timeout
        replies: list[tuple[int, Message]] = []
        pause = Waiting(_POLL)
        while waiting and (left := deadline - time.monotonic()) > 0:
            # Each miss costs a call, so a poll gives up after a few.
            misses = len(waiting) if left < _LAST else 1 + len(waiting) // 8
            for _ in range(len(waiting)):
                identifier = waiting.popleft()
                arrived = self._reply(grid, identifier, asked[identifier])
                if arrived is None:
                    waiting.append(identifier)
                    misses -= 1
                    if not misses:
                        break
                else:
                    # Not the node that a reply names: its sender wrote that.
                    replies += [(asked[identifier], reply) for reply in arrived]
            if waiting:
                pause.sleep()
        return replies

    def _reply(self, grid: Grid, identifier: str, node: int) -> list[Message] | None:
        """Return the reply to a message, or None if there is none yet."""
        try:
            # One at a time, because an unreadable reply would hide the others.
            return list(grid.pull_messages([identifier])) or None
        except httpx.HTTPError:
            raise  # the superlink has stopped; the run can be resumed
        except Exception as error:
            self._private_log.warning("node %d: unreadable, %r", node, error)
            return []

    def _nodes(self, grid: Grid) -> tuple[list[int], dict[int, int] | None]:
        """Return the nodes to ask, and their agents if the operator listed keys."""
        if self._agents_of_keys is None:
            return sorted(grid.get_node_ids()), None
        known = self._agents_of_keys
        agents = {
            node.node_id: known[node.public_key]
            for node in grid.get_nodes()
            if node.public_key in known
        }
        return sorted(agents), agents

    def _connected(self, grid: Grid) -> tuple[list[int], dict[int, int] | None]:
        """Wait for a node, because a release without agents would be wasted."""
        while True:
            nodes, agents = self._nodes(grid)
            if nodes:
                return nodes, agents
            time.sleep(_POLL)

    def _wait_for_all(self, grid: Grid) -> None:
        deadline = time.monotonic() + self.settings.start_timeout
        while time.monotonic() < deadline:
            if len(self._nodes(grid)[0]) >= self.server.num_agents:
                return
            time.sleep(_POLL)

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
        certificate = self.server.certificate()
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

    def _new_server(self, ledger: Ledger) -> DPFTSServer:
        settings, generator = self.settings, None
        if settings.seed is not None:
            generator = torch.Generator(device="cpu").manual_seed(settings.seed)
        return DPFTSServer(
            settings.federation.weights(),
            settings.federation.num_features,
            clip_norm=settings.clip_norm,
            noise_multiplier=settings.noise_multiplier,
            sampling_rate=settings.sampling_rate,
            sample_size=settings.sample_size,
            sensitivity=settings.sensitivity,
            num_rounds=settings.num_rounds,
            ledger=ledger,
            generator=generator,
        )
