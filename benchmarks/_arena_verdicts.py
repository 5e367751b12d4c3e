"""Who wins in a cell of the arena, and by how much.

Results are ``{cell: {method: {"regret": [one for each seed], "seconds": mean}}}``.
Methods are compared on the seeds that both of them have, in pairs.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks._arena_cells import CELLS
from benchmarks.contenders import ALTERNATIVE, CONTENDERS, NO_SEARCH, NOT_PRIVATE

Regrets = Sequence[float]
CellResults = Mapping[str, Mapping[str, Regrets]]
Results = Mapping[str, CellResults]
WIN, TIE, LOSS = "win", "tie", "loss"
# A difference counts beyond this many standard errors, and beyond this regret.
NUM_ERRORS, LEAST_DIFFERENCE = 2.0, 0.002
# A range of regret below this says nothing about the share of it that is left.
LEAST_RANGE = 0.01


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over common seeds, and its standard error."""

    mean: float
    error: float

    def verdict(self, least: float = LEAST_DIFFERENCE) -> str:
        """Return whether the first method wins, which is the one with less regret."""
        if abs(self.mean) <= max(NUM_ERRORS * self.error, least):
            return TIE
        return WIN if self.mean < 0 else LOSS

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def difference(first: Regrets, second: Regrets) -> Difference:
    """Return first - second, seed by seed. One seed alone decides nothing."""
    pairs = [a - b for a, b in zip(first, second, strict=False)]
    if len(pairs) < 2:
        return Difference(statistics.mean(pairs), math.inf)
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Difference(statistics.mean(pairs), error)


def of_kind(kind: str, known: Collection[str]) -> list[str]:
    """Return the known methods of a kind, in the order of the tables."""
    return [
        name for name, one in CONTENDERS.items() if one.kind == kind and name in known
    ]


def best(cell: CellResults, kind: str) -> str | None:
    """Return the method of a kind with the least mean regret in a cell."""
    names = of_kind(kind, cell)
    return min(names, key=lambda name: mean_regret(cell, name)) if names else None


def mean_regret(cell: CellResults, method: str) -> float:
    return statistics.mean(cell[method]["regret"])


@dataclass(frozen=True)
class Comparison:
    """A method in a cell, beside the best alternative in hindsight and no search."""

    cell: str
    method: str
    rival: str
    regret: float
    rival_regret: float
    difference: Difference
    from_no_search: Difference | None

    @property
    def verdict(self) -> str:
        return self.difference.verdict()

    @property
    def is_worse_than_no_search(self) -> bool:
        """Whether it is worse than the start by more than two standard errors."""
        if self.from_no_search is None:
            return False
        return self.from_no_search.verdict(least=0.0) == LOSS


def compare(results: Results, method: str) -> list[Comparison]:
    """Return the comparison of a method in every cell where there is one."""
    found = []
    for name, cell in results.items():
        rival = best(cell, ALTERNATIVE)
        if method not in cell or rival is None:
            continue
        regrets = cell[method]["regret"]
        start = cell.get(NO_SEARCH)
        found.append(
            Comparison(
                cell=name,
                method=method,
                rival=rival,
                regret=mean_regret(cell, method),
                rival_regret=mean_regret(cell, rival),
                difference=difference(regrets, cell[rival]["regret"]),
                from_no_search=start and difference(regrets, start["regret"]),
            )
        )
    return found


def gaps(results: Results, method: str, least_signal: float) -> dict[str, float]:
    """Return how far a method is behind the best one that is not private.

    Args:
        results: The results of the arena.
        method: The name of a method.
        least_signal: The least n epsilon of the cells.

    Returns:
        For each smooth cell, the share of the regret of no search above that method's
        which is left. Cells in which no search is nearly as good are left out.
    """
    found = {}
    for name, cell in results.items():
        public = best(cell, NOT_PRIVATE)
        if public is None or not {method, NO_SEARCH} <= cell.keys():
            continue
        if not CELLS[name].is_smooth or CELLS[name].signal < least_signal:
            continue
        reference = cell[public]["regret"]
        width = -difference(reference, cell[NO_SEARCH]["regret"]).mean
        if width >= LEAST_RANGE:
            left = difference(cell[method]["regret"], reference).mean
            found[name] = left / width
    return found
