"""What the library asks of an accelerator, and its times on one.

Writes ``benchmarks/results/device.json`` and the table made from it: operations,
synchronizations and transfers, counted on the simulated accelerator of the tests
(:mod:`tests.simulated_accelerator`), so that no GPU is needed. They do not depend on
the machine. Run it with ``make benchmarks``, or some sections with
``python -m benchmarks.device NAME ...``.

``python -m benchmarks.device --cuda`` needs a GPU. It prints the times of the same work
on the CPU and on CUDA, and writes nothing.
"""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from botorch.exceptions.warnings import BotorchWarning

from benchmarks import _device_work as work
from benchmarks._common import Row, report, table
from botorch_dp.exceptions import BotorchDPWarning
from tests import simulated_accelerator
from tests.simulated_accelerator import Counts

Work = Callable[[work.Device], list[work.Part]]


def counted(parts: list[work.Part]) -> Row:
    """Return what the library's own parts of a step ask of the device."""
    total = sum(map(work.counts_of, parts), start=Counts())
    return {
        "operations": total.operations,
        "of these, kernels": total.kernels,
        "synchronizations": total.synchronizations,
        "to the device": total.to_device,
        "to the host": total.to_host,
    }


def dp_gibo() -> list[Row]:
    """A step of DP-GIBO

    Ask and tell, without the objective, in d dimensions, with n records, after T steps.
    """
    return [
        {"d": d, "n": n, "T": T}
        | counted(work.dp_gibo(simulated_accelerator.NAME, d=d, n=n, before=T))
        for d, n, T in (
            (5, 1_000, 20),
            (5, 10_000, 20),
            (5, 1_000, 60),
            (20, 1_000, 20),
            (20, 10_000, 60),
        )
    ]


OTHERS: dict[str, Work] = {
    "PrivateBO, release, 1,000 candidates": partial(
        work.release, num_candidates=1_000, n=1_000
    ),
    "PrivateBO, release, 10,000 candidates": partial(
        work.release, num_candidates=10_000, n=1_000
    ),
    "LDPBO, step, stencil, 1 stream": partial(
        work.ldp_bo, mode="stencil", streams=1, before=10
    ),
    "LDPBO, step, stencil, 50 streams": partial(
        work.ldp_bo, mode="stencil", streams=50, before=10
    ),
    "LDPBO, step, dictionary, 50 streams": partial(
        work.ldp_bo, mode="swc", streams=50, before=10
    ),
    "DPFTSDE, round, 100 agents": partial(work.fts, num_agents=100, before=5),
    "DPFTSDE, round, 1,000 agents": partial(work.fts, num_agents=1_000, before=5),
    "GradientInformation, value and gradient, q = 1, (d, n) = (5, 50)": partial(
        work.value_and_gradient, d=5, n=50, q=1
    ),
    "GradientInformation, value and gradient, q = 1, (d, n) = (33, 500)": partial(
        work.value_and_gradient, d=33, n=500, q=1
    ),
    "GradientInformation, value and gradient, q = 5, (d, n) = (33, 500)": partial(
        work.value_and_gradient, d=33, n=500, q=5
    ),
    "optimize_acqf, 5 restarts, (d, n) = (10, 100)": partial(work.search, d=10, n=100),
}


def others() -> list[Row]:
    """Other work

    Steps and rounds are ask and tell, without the objective. A release is a whole run:
    one step of 50 evaluations, and the choice among all candidates.
    """
    return [
        {"work": name} | counted(make(simulated_accelerator.NAME))
        for name, make in OTHERS.items()
    ]


TIMED: dict[str, Work] = {
    f"DPGIBO, step, d = {d}, n = {n:,}": partial(work.dp_gibo, d=d, n=n, before=5)
    for d, n in ((5, 1_000), (20, 10_000), (20, 1_000_000), (100, 100_000))
}
TIMED |= {
    f"PrivateBO, release, {m:,} candidates, n = {n:,}": partial(
        work.release, num_candidates=m, n=n
    )
    for m, n in ((1_000, 1_000), (100_000, 1_000), (100_000, 100_000))
}
TIMED |= {
    f"GradientInformation, value and gradient, (d, n) = ({d}, {n:,})": partial(
        work.value_and_gradient, d=d, n=n, q=1
    )
    for d, n in ((5, 50), (33, 500), (100, 4_000))
}


def timed(make: Work, device: str, repeats: int = 5) -> float:
    """Return the shortest time of the library's parts of a step, in seconds."""
    times = []
    for _ in range(repeats + 1):
        taken = 0.0
        for part in make(device):
            synchronize(device)
            start = time.perf_counter()
            part.call()
            synchronize(device)
            taken += part.is_ours * (time.perf_counter() - start)
        times.append(taken)
    return min(times)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare_with_cuda() -> None:
    """Print the times of the same work on the CPU and on CUDA."""
    if not torch.cuda.is_available():
        sys.exit("benchmarks.device --cuda: torch finds no CUDA device.")
    rows = []
    for name, make in TIMED.items():
        cpu, cuda = timed(make, "cpu"), timed(make, "cuda")
        rows.append(
            {"work": name, "CPU, ms": 1e3 * cpu, "CUDA, ms": 1e3 * cuda}
            | {"CPU / CUDA": cpu / cuda}
        )
    print(f"{torch.cuda.get_device_name()}; {torch.get_num_threads()} CPU threads\n")
    print(table(rows))


SECTIONS = (dp_gibo, others)


def main() -> None:
    warnings.simplefilter("ignore", BotorchWarning)
    warnings.simplefilter("ignore", BotorchDPWarning)
    if "--cuda" in sys.argv[1:]:
        compare_with_cuda()
        return
    simulated_accelerator.install()
    torch.set_num_threads(1)
    report("device", "Work on an accelerator", SECTIONS, only=sys.argv[1:])


if __name__ == "__main__":
    main()
