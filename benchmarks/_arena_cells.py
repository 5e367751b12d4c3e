"""The cells of the arena: which task, how many records, which epsilon, which half."""

import hashlib
from dataclasses import dataclass

from benchmarks.problems.arena_tasks import FAMILIES

DIMENSIONS = {
    "quadratic": (2, 6, 10, 20, 50),
    "ackley": (2, 6),
    "hartmann": (3, 6),
    "levy": (4, 10),
    "rosenbrock": (4, 10),
    "styblinski": (2, 5, 20),
    "deceptive": (2, 4),
    "cover": (4, 10),
    "classify": (6, 20),
    "regression": (5, 20),
    "pareto": (2, 10),
}
SETTINGS = (
    (500, 0.3),
    (500, 1.0),
    (500, 3.0),
    (5000, 0.3),
    (5000, 1.0),
    (5000, 3.0),
    (20_000, 0.3),
    (20_000, 1.0),
)
# Each task and dimension is run in this many of the settings.
NUM_SETTINGS = 5
EXTREMES = dict.fromkeys((("quadratic", 6), ("levy", 4)), ((50000, 1.0), (500, 0.1)))
CHOOSE, REPORT = "choose", "report"
HALVES = (CHOOSE, REPORT)
# Families whose mean loss is smooth.
SMOOTH = tuple(task for family in "QMH" for task in FAMILIES[family])


@dataclass(frozen=True)
class Cell:
    """A task of the arena at a number of records and an epsilon."""

    task: str
    dim: int
    num_records: int
    epsilon: float

    @property
    def name(self) -> str:
        return f"{self.task}-d{self.dim}-n{self.num_records}-eps{self.epsilon:g}"

    @property
    def half(self) -> str:
        """The half that the cell belongs to, by a hash of its name.

        Defaults may be chosen on cells of ``CHOOSE`` only.
        """
        digest = hashlib.sha256(self.name.encode()).digest()
        return HALVES[digest[-1] % 2]

    @property
    def first_seed(self) -> int:
        """The first seed: nothing is chosen on the records and optima to report."""
        return 0 if self.half == CHOOSE else 1000

    @property
    def signal(self) -> float:
        """The number of records times epsilon."""
        return self.num_records * self.epsilon

    @property
    def is_smooth(self) -> bool:
        return self.task in SMOOTH


def _cells() -> list[Cell]:
    cells = []
    pairs = [(task, dim) for task, dims in DIMENSIONS.items() for dim in dims]
    for index, (task, dim) in enumerate(pairs):
        # Each pair goes on where the one before it ended, so all settings are covered.
        chosen = [
            SETTINGS[(NUM_SETTINGS * index + offset) % len(SETTINGS)]
            for offset in range(NUM_SETTINGS)
        ]
        chosen += EXTREMES.get((task, dim), ())
        cells += [Cell(task, dim, n, epsilon) for n, epsilon in sorted(chosen)]
    return cells


CELLS: dict[str, Cell] = {cell.name: cell for cell in _cells()}
