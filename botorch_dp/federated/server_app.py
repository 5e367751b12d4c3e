"""The server's side: a Flower ServerApp around the server of DP-FTS-DE.

In every round all connected agents are asked. Who of them counts is drawn inside
:meth:`DPFTSServer.release` and told to nobody. The server waits for ``timeout``
seconds; who has not answered by then counts as zero, and its weight is not given to
others. While nobody is connected the server waits and spends nothing.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.federated.messages import MESSAGE_TYPE, Question
from botorch_dp.federated.roll_call import RollCall, open_private_log
from botorch_dp.federated.settings import DeploymentSettings
from botorch_dp.optimizers.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.fts_server import DPFTSServer
from botorch_dp.privacy import Ledger

# Seconds between looks for replies. Flower's own send_and_receive looks every three.
_POLL = 0.2

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left."""
    Deployment(DeploymentSettings.from_run_config(context.run_config)).run(grid)


class Deployment:
    """A server with its files: everything in the folder may be shown, except private/.

    ``state.pt`` holds the server's state and all broadcasts, ``ledger.sqlite`` what was
    spent, ``certificate.txt`` and ``certificate.json`` what is guaranteed. In
    ``private`` are a log and the bindings of nodes to agents.

    Args:
        settings: How to run. If the folder holds a run with the same settings, it is
            resumed.
    """

    def __init__(self, settings: DeploymentSettings) -> None:
        self.settings = settings
        self.folder = Path(settings.output)
        private = self.folder / "private"
        private.mkdir(parents=True, exist_ok=True)
        private.chmod(0o700)
        self._generator = None
        if settings.seed is not None:
            self._generator = torch.Generator(device="cpu").manual_seed(settings.seed)
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

    def run(self, grid: Grid) -> None:
        """Ask and release until all broadcasts are out, then say so to the agents."""
        self._save()  # names the run before anyone hears of it
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
        nodes = self._connected(grid)
        number = self.server.num_broadcasts
        question = Question(
            self.settings.federation,
            self._experiment,
            number,
            self.server.broadcast,
            final,
        ).to_records()
        messages = [
            Message(
                question,
                node,
                MESSAGE_TYPE,
                ttl=self.settings.timeout,  # nobody works for a round that is over
                group_id=str(number),
            )
            for node in nodes
        ]
        identifiers = list(grid.push_messages(messages))
        asked = dict(zip(identifiers, nodes, strict=True))
        replies = self._replies(grid, asked)
        return self._roll_call.vectors(
            replies, number=number, asked=asked, connected=set(grid.get_node_ids())
        )

    def _replies(self, grid: Grid, asked: Mapping[str, int]) -> list[Message]:
        """Return what arrives in time; it may be less than was asked for."""
        waiting = [identifier for identifier in asked if identifier]
        deadline = time.monotonic() + self.settings.timeout
        replies: list[Message] = []
        while waiting and time.monotonic() < deadline:
            for identifier in list(waiting):
                try:
                    # One by one: one that cannot be read would take the others along.
                    arrived = list(grid.pull_messages([identifier]))
                except httpx.HTTPError:
                    raise  # the superlink is gone: the run can be resumed
                except Exception as error:
                    node = asked[identifier]
                    self._private_log.warning("node %d: unreadable, %r", node, error)
                    waiting.remove(identifier)
                    continue
                if arrived:
                    replies += arrived
                    waiting.remove(identifier)
            if waiting:
                time.sleep(_POLL)
        return replies

    def _connected(self, grid: Grid) -> list[int]:
        """Wait until somebody is there: a release about nobody would be wasted."""
        while not (nodes := sorted(grid.get_node_ids())):
            time.sleep(_POLL)
        return nodes

    def _wait_for_all(self, grid: Grid) -> None:
        deadline = time.monotonic() + self.settings.start_timeout
        while time.monotonic() < deadline:
            if len(list(grid.get_node_ids())) >= self.server.num_agents:
                return
            time.sleep(_POLL)

    # The files

    @property
    def _experiment(self) -> str:
        return str(self.server.state_dict()["name"]).rpartition(" ")[2]

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
            return  # nothing was released that a certificate could be about
        certificate = self.server.certificate()
        _write(self.folder / "certificate.txt", f"{certificate}\n")
        _write(self.folder / "certificate.json", certificate.to_json())

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.exists():
            return
        state = read_checkpoint(path, torch.device("cpu"))
        if state.get("federation") != self.settings.federation.to_json():
            raise OptimizerStateError(
                f"output {str(self.folder)!r} holds a run of another federation: name "
                "another folder."
            )
        self.server.load_state_dict(state["server"])
        self.broadcasts = list(state["broadcasts"])

    def _new_server(self, ledger: Ledger) -> DPFTSServer:
        settings = self.settings
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
            generator=self._generator,
        )


def _write(path: Path, text: str) -> None:
    """Write a file that is either the old one or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o644)  # may be shown, unlike what mkstemp makes
    os.replace(temporary, path)
