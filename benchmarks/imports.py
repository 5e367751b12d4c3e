"""The time it takes to import the library after BoTorch has been imported.

Writes ``benchmarks/results/imports.json`` and the table made from it. Run it with
``make benchmarks``.
"""

import statistics
import subprocess
import sys

from benchmarks._common import Row, report

ROUNDS = 7
SCRIPT = """
import time
import botorch
start = time.perf_counter()
{}
print(time.perf_counter() - start)
"""
STATEMENTS = (
    "import botorch_dp",
    "from botorch_dp import DPGIBO",
    "from botorch_dp.integrations.sklearn import PrivateSearch",
    "import opacus.accountants, dp_accounting.pld",
)


def over_botorch() -> list[Row]:
    """Seconds after `import botorch`, each in a new interpreter

    The package loads its names on demand. What the first of them waits for is Opacus
    and dp-accounting.
    """
    times: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(ROUNDS):  # in turns, so that load hits all alike
        for statement in STATEMENTS:
            command = [sys.executable, "-c", SCRIPT.format(statement)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times[statement].append(float(done.stdout))
    return [
        {"statement": f"`{statement}`", "seconds": statistics.median(taken)}
        for statement, taken in times.items()
    ]


def main() -> None:
    report("imports", "Imports, measured", (over_botorch,), only=sys.argv[1:])


if __name__ == "__main__":
    main()
