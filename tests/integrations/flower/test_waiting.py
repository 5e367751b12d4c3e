"""Pauses that grow with the time spent waiting."""

from botorch_dp.integrations.flower.waiting import Waiting


def test_looks_get_rarer(naps):
    pause = Waiting(3.0)
    while sum(naps) < 600.0:
        pause.sleep()
    assert naps[0] == 0.05
    assert max(naps) == 3.0
    assert len([nap for nap in naps if nap < 3.0]) < 30
    slept = 0.0
    for nap in naps:  # what comes at any time waits for a fifth of it at most
        assert nap <= max(0.05, 0.2 * slept) + 1e-9
        slept += nap
