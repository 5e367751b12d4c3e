"""A federation in real processes, and that none of them is left."""

import os
from pathlib import Path

import pytest
import torch

from botorch_dp import Certificate, Ledger
from botorch_dp.optimizers.core.checkpoint import read_checkpoint
from examples.flower_on_one_machine.local_federation import (
    is_over,
    loopback,
    private_seconds,
)
from examples.flower_on_one_machine.loopback import demo_settings
from tests.integrations.flower.deployments import simulate


@pytest.mark.default_device
def test_a_federation_on_the_loopback(tmp_path, monkeypatch):
    """Encrypted, with known supernodes; the broadcasts are those of the simulation."""
    monkeypatch.chdir(tmp_path)  # agents find their score function from anywhere
    home = Path.home() / ".flwr"
    touched = home.stat().st_mtime if home.exists() else None
    folder = tmp_path / "try"
    folder.mkdir(mode=0o755)
    settings = demo_settings(folder, agents=2, rounds=2, timeout=120.0, seed=5)
    before = os.umask(0o022)
    try:
        with loopback(folder, settings, tls=True) as whole:
            whole.submit()
            whole.wait(rounds=2, timeout=240.0)
            whole.finish(timeout=120.0)
            processes = whole._processes
    finally:
        os.umask(before)
    assert processes.strays() == []
    assert (home.stat().st_mtime if home.exists() else None) == touched
    written = [folder, *folder.rglob("*")]
    assert [path for path in written if path.stat().st_mode & 0o077] == []
    output = Path(settings.output)
    state = read_checkpoint(output / "state.pt", torch.device("cpu"))
    assert torch.allclose(state["broadcasts"], simulate(settings), rtol=0, atol=1e-9)
    text = (output / "certificate.json").read_text()
    assert Certificate.from_json(text).num_releases == 2
    assert len(Ledger(path=output / "ledger.sqlite")) == 2
    for agent in range(2):
        assert len(list(whole.agent_folder(agent).glob("agent-*.pt"))) == 1


LOG = """\
2026-01-01 00:00:00,000 round took 1.250 seconds
2026-01-01 00:00:01,000 round 1, node 3: x round took 0.001 seconds
2026-01-01 00:00:02,000 round took 2.000 seconds
2026-01-01 00:00:02,000 round 2, node 3: all rounds are over
"""


def test_only_whole_lines_of_the_log_count():
    assert private_seconds(LOG) == [1.25, 2.0]
    assert not is_over(LOG)
    assert is_over(f"{LOG}2026-01-01 00:00:03,000 all rounds are over\n")
