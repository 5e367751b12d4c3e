"""The certificate: what is guaranteed, to whom, and under which assumptions."""

import html
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.entries import UNITS, LedgerEntry
from botorch_dp.privacy.events import ADJACENCIES, AssumedEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger import Ledger, accountant_of
from botorch_dp.privacy.noise import SecureNoise, SeededNoise, SystemNoise

# Assumptions under which a guarantee holds, as certificates state them.
WORST_CASE = "worst case over all neighbouring data sets, no assumption on the data"
RECORDS_ALONE = (
    "what is told of a record depends on that record and the point alone, not on other "
    "private records"
)
SAME_ROWS = "row i is the same record in every tell (record_ids= puts rows in order)"
PUBLIC_SETTINGS = "all settings were chosen without the private data"
TOLD_RECORDS = (
    "protects the records whose losses are told, not data that models were trained on"
)
# What an optimizer assumes that is told the losses of records.
OF_TOLD_LOSSES = (RECORDS_ALONE, SAME_ROWS, PUBLIC_SETTINGS, TOLD_RECORDS)
_DELTAS = (1e-3, 1e-5, 1e-7)
_NEIGHBOURS = {
    "replace_one": "one {unit} is replaced by any other",
    "zero_out": "one {unit} contributes nothing; the number of {unit}s is public",
    "add_or_remove_one": "one {unit} is added or removed",
}
_NOISE = {
    source.name: source.description
    for source in (SeededNoise, SystemNoise, SecureNoise)
}
# What no mechanism here covers, and differential privacy systems usually exclude.
_EXCLUDED = (
    "side channels (running time, memory, the caller's own logs and exceptions)",
    "sensitivities, bounds or hyperparameters that the caller chose by looking at the "
    "data",
    "rounding in the caller's own sums before the noise is added",
    "releases whose noise or number was chosen after seeing others: for these only the "
    "cap of the ledger is valid, not the epsilons stated here",
    "other releases of the same data: this certificate counts what its ledger was "
    "charged, nothing else",
)
_FLOATING_POINT = (
    "the low bits of floating-point noise (closed by secure=True, where it is offered)"
)
_PACKAGES = ("botorch-dp", "torch", "dp-accounting", "opendp")


@dataclass(frozen=True)
class Certificate:
    """The guarantee of a run, in words and numbers that anyone may read.

    Usually an optimizer creates it, or :meth:`from_ledger`.

    Attributes:
        unit: Who is protected: ``"record"``, ``"user"`` or ``"agent"``.
        adjacency: Which data sets count as neighbours.
        guarantee: The exact total of an all-Gaussian history, otherwise None.
        epsilons: The epsilon at each of a few deltas.
        accountant: The accounting that gave the epsilons.
        assumptions: The assumptions of the guarantee, in words.
        noise: The names of the noise sources.
        num_releases: The number of releases.
        parameters: Public parameters of the run.
        versions: The versions of the libraries involved.
        private: Whether anything is guaranteed. False for a baseline without noise.
        run: The run that the parameters belong to, in words, if the ledger has charges
            of other runs.
    """

    unit: str
    adjacency: str
    guarantee: Guarantee | None
    epsilons: Mapping[float, float]
    accountant: str
    assumptions: Sequence[str]
    noise: Sequence[str]
    num_releases: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    private: bool = True
    run: str | None = None

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        check_choice("adjacency", self.adjacency, ADJACENCIES)
        for name in self.noise:
            check_choice("noise", name, tuple(_NOISE))

    @classmethod
    def from_ledger(
        cls,
        ledger: Ledger,
        *,
        unit: str | None = None,
        deltas: Sequence[float] = _DELTAS,
        assumptions: Sequence[str] = (WORST_CASE,),
        parameters: Mapping[str, Any] | None = None,
        runs: Sequence[str] = (),
    ) -> "Certificate":
        """Return a certificate of everything that a ledger was charged for.

        Args:
            ledger: A ledger with at least one charge.
            unit: Who is protected. None takes the unit of the ledger's charges.
            deltas: The deltas at which to state epsilon, besides that of the cap.
            assumptions: The assumptions of the guarantee, in words.
            parameters: Public parameters of the run, as plain JSON values.
            runs: The identities of the run that the parameters belong to. The
                certificate says so if the ledger has charges of others.

        Example:
            >>> from botorch_dp.privacy import GDP, GaussianMechanism
            >>> ledger = Ledger()
            >>> mechanism = GaussianMechanism(GDP(mu=1.0), sensitivity=1.0)
            >>> released = mechanism.release(torch.zeros(3), ledger=ledger)
            >>> Certificate.from_ledger(ledger).guarantee
            GDP(mu=1)
        """
        entries = ledger.entries
        if not entries:
            raise InvalidArgumentError(
                "ledger must have at least one charge: nothing was released yet."
            )
        if unit not in (None, entries[0].unit):
            raise InvalidArgumentError(
                f"unit must be {entries[0].unit!r}, as in the ledger's charges, got "
                f"{unit!r}."
            )
        conditions = sorted({text for entry in entries if (text := _condition(entry))})
        if conditions:
            assumptions = [
                *(f"NOT worst case: some releases hold {text}" for text in conditions),
                *(text for text in assumptions if text != WORST_CASE),
            ]
        deltas = sorted({*deltas, *_cap_delta(ledger)}, reverse=True)
        accountant = accountant_of(entries)
        spent = {delta: accountant.spent(delta) for delta in deltas}
        methods = sorted({spending.method for spending in spent.values()})
        return cls(
            unit=entries[0].unit,
            adjacency=entries[0].adjacency,
            guarantee=accountant.to_gdp(),
            epsilons={delta: spending.amount for delta, spending in spent.items()},
            accountant=" / ".join(methods),
            assumptions=tuple(assumptions),
            noise=tuple(sorted({entry.noise for entry in entries})),
            num_releases=sum(entry.count for entry in entries),
            parameters=dict(parameters or {}),
            versions=_versions(),
            run=_run_of(entries, runs),
        )

    @classmethod
    def not_private(
        cls, reason: str, *, parameters: Mapping[str, Any] | None = None
    ) -> "Certificate":
        """Return a certificate that states that nothing is guaranteed, and why.

        Args:
            reason: What uses private data without noise.
            parameters: Public parameters of the run, as plain JSON values.

        Example:
            >>> certificate = Certificate.not_private("random search adds no noise")
            >>> print(str(certificate).splitlines()[0])
            NOT PRIVATE: random search adds no noise
        """
        return cls(
            unit="record",
            adjacency="replace_one",
            guarantee=None,
            epsilons={},
            accountant="none",
            assumptions=(reason,),
            noise=(),
            num_releases=0,
            parameters=dict(parameters or {}),
            versions=_versions(),
            private=False,
        )

    @property
    def for_experiments_only(self) -> bool:
        """Whether some noise was seeded, so that the seed reproduces it."""
        return SeededNoise.name in self.noise

    def rows(self) -> list[tuple[str, str]]:
        """Return the certificate as pairs of a label and a text."""
        if not self.private:
            return [("protects", "nobody"), *self._parameter_rows()]
        rows = [("protects", f"every {self.unit}")]
        neighbours = _NEIGHBOURS[self.adjacency].format(unit=self.unit)
        rows.append(("neighbours", f"{self.adjacency}: {neighbours}"))
        if self.guarantee is not None:
            rows.append(("guarantee", repr(self.guarantee)))
        rows += [
            ("epsilon", f"{epsilon:.6g} at delta={delta:.3g}")
            for delta, epsilon in self.epsilons.items()
        ]
        rows.append(
            ("accounting", f"{self.accountant}, {self.num_releases} release(s)")
        )
        if self.run is not None:
            rows.append(("run", self.run))
        rows += [("holds", assumption) for assumption in self.assumptions]
        rows += [("noise", _NOISE[name]) for name in self.noise]
        rows += [("not covered", text) for text in self.excluded]
        return rows + self._parameter_rows()

    def _parameter_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("parameter", f"{key}={value}") for key, value in self.parameters.items()
        ]
        versions = ", ".join(f"{name} {text}" for name, text in self.versions.items())
        return [*rows, ("versions", versions)]

    @property
    def excluded(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        if set(self.noise) == {SecureNoise.name}:
            return _EXCLUDED
        return (*_EXCLUDED, _FLOATING_POINT)

    def __str__(self) -> str:
        lines = ["Differential privacy certificate"]
        if not self.private:
            lines = [f"NOT PRIVATE: {'; '.join(self.assumptions)}"]
        if self.for_experiments_only:
            lines[0] += " (FOR EXPERIMENTS ONLY: the noise was seeded)"
        lines += [f"  {label:<12}{text}" for label, text in self.rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the certificate as a table, for notebooks."""
        title = html.escape(str(self).splitlines()[0])
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in self.rows()
        )
        return f"<table><caption>{title}</caption>{rows}</table>"

    def to_json(self) -> str:
        """Return the certificate as JSON that :meth:`from_json` reads."""
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        state["guarantee"] = (
            None if self.guarantee is None else self.guarantee.to_dict()
        )
        state["epsilons"] = [  # JSON has no infinity
            [delta, eps if math.isfinite(eps) else None]
            for delta, eps in self.epsilons.items()
        ]
        for name in ("assumptions", "noise"):
            state[name] = list(state[name])
        for name in ("parameters", "versions"):
            state[name] = dict(state[name])
        try:
            return json.dumps({"certificate": 1, **state}, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"parameters must be plain JSON values, got {self.parameters!r}."
            ) from error

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Return the certificate that ``to_json`` wrote."""
        try:
            state = json.loads(text)
            if state.pop("certificate") != 1:
                raise ValueError("unknown version")
            if state["guarantee"] is not None:
                state["guarantee"] = Guarantee.from_dict(state["guarantee"])
            state["epsilons"] = {
                delta: math.inf if epsilon is None else epsilon
                for delta, epsilon in state["epsilons"]
            }
            state["assumptions"] = tuple(state["assumptions"])
            state["noise"] = tuple(state["noise"])
            return cls(**state)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(
                f"text must be a certificate that to_json wrote: {error}."
            ) from error


def _condition(entry: LedgerEntry) -> str | None:
    """Return the assumption of a charge, in words; None in the worst case."""
    if entry.condition is not None:
        return f"assuming {entry.condition}"
    if isinstance(entry.event, AssumedEvent):
        return "under an assumption that was not stated"
    return None


def _run_of(entries: Sequence[LedgerEntry], runs: Sequence[str]) -> str | None:
    """Return which run of several the parameters of a certificate belong to."""
    own = sum(entry.count for entry in entries if entry.run in runs)
    total = sum(entry.count for entry in entries)
    if not runs or own == total:
        return None
    return (
        f"the parameters are those of {runs[-1]}, which made {own} of the {total} "
        "releases; the others are of other runs"
    )


def _cap_delta(ledger: Ledger) -> tuple[float, ...]:
    delta = getattr(ledger.cap, "delta", None)
    return (delta,) if isinstance(delta, float) else ()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
