"""The certificate: what is guaranteed, to whom, and under which assumptions.

Its numbers follow from the charges of a ledger
(:mod:`~botorch_dp.privacy.certificate_facts`), and
:mod:`~botorch_dp.privacy.verification` makes them again. Its words are in
:mod:`~botorch_dp.privacy.certificate_text`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from botorch_dp._validation import check_choice, check_instance, check_probability
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import certificate_json, certificate_text, signatures
from botorch_dp.privacy.accountant import Spending
from botorch_dp.privacy.audit import AuditResult
from botorch_dp.privacy.certificate_facts import Facts, LedgerHead, largest_delta
from botorch_dp.privacy.certificate_text import WORST_CASE as WORST_CASE
from botorch_dp.privacy.declaration import Declaration
from botorch_dp.privacy.entries import NOISE_NAMES, UNITS, LedgerEntry
from botorch_dp.privacy.events import ADJACENCIES
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.noise import SeededNoise
from botorch_dp.privacy.signatures import Signature
from botorch_dp.privacy.versions import installed_versions

if TYPE_CHECKING:
    from botorch_dp.privacy.verification import Verification

# Assumptions under which a guarantee holds, as certificates state them.
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
# A larger delta says nothing about the strength of a guarantee.
_LARGEST_DELTA = 1e-3


@dataclass(frozen=True)
class Certificate:
    """The guarantee of a run, in words and numbers that anyone may read.

    Usually an optimizer creates it, or :meth:`from_ledger`. It counts what one ledger
    was charged, and nothing else. Two certificates are equal if they say the same,
    whatever their dates and ledgers.

    Attributes:
        unit: Who is protected: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.
        adjacency: Which data sets count as neighbours.
        guarantee: The exact total of an all-Gaussian history, otherwise None.
        epsilons: The epsilon at each of a few deltas, all below one over the number of
            units if the parameters state that number.
        accountant: The accounting that gave the epsilons.
        assumptions: The assumptions of the guarantee, in words.
        noise: The names of the noise sources.
        num_releases: The number of releases.
        parameters: Public parameters of the run.
        versions: The versions of the libraries involved.
        private: Whether anything is guaranteed. False for a baseline without noise.
        run: The run that the parameters belong to, in words, if the ledger has charges
            of other runs.
        pure_epsilon: The total of purely private releases, otherwise None.
        rho: The total of zero-concentrated privacy; None if some release has none.
        renyi: The Renyi divergence at a few orders; empty if some release has none.
        guess: The largest probability with which an attacker who knows everything else
            guesses which of two equally likely neighbouring data sets was used.
        cap: The cap of the ledger, if it has one.
        counted: What the cap counts as spent.
        partition: The partition of the data set whose members are protected; empty for
            all of them.
        has_partitions: Whether the cap counts charges to disjoint partitions.
        head: The position in the ledger's chain of digests, if there is a ledger.
        declaration: What the owner of the data says.
        audits: The results of audits of the run's mechanisms.
        created: The day when it was made (UTC, ISO 8601). The time of day is left out,
            because running times may depend on the data.
        signature: The signature of the digest, if it was signed.
        stated_digest: The digest in the JSON that this was read from.
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
    versions: Mapping[str, str] = field(default_factory=installed_versions)
    private: bool = True
    run: str | None = None
    pure_epsilon: float | None = None
    rho: float | None = None
    renyi: Mapping[float, float] = field(default_factory=dict)
    guess: float = 0.5
    cap: Guarantee | None = None
    counted: Spending | None = None
    partition: str = ""
    has_partitions: bool = False
    head: LedgerHead | None = field(default=None, compare=False)
    declaration: Declaration = field(default_factory=Declaration)
    audits: Sequence[AuditResult] = ()
    created: str = field(default_factory=lambda: _today(), compare=False)
    signature: Signature | None = None
    stated_digest: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        check_choice("adjacency", self.adjacency, ADJACENCIES)
        check_instance("partition", self.partition, str, expected="a string")
        for name in self.noise:
            check_choice("noise", name, NOISE_NAMES)

    @classmethod
    def from_ledger(
        cls,
        ledger: Ledger,
        *,
        unit: str | None = None,
        deltas: Sequence[float] | None = None,
        assumptions: Sequence[str] = (WORST_CASE,),
        parameters: Mapping[str, Any] | None = None,
        runs: Sequence[str] = (),
        declaration: Declaration | None = None,
    ) -> "Certificate":
        """Return a certificate of everything that a ledger was charged for.

        Args:
            ledger: A ledger with at least one charge.
            unit: Who is protected. None takes the unit of the ledger's charges.
            deltas: The deltas at which to state epsilon, besides that of the cap. By
                default those of 1e-3, 1e-5 and 1e-7 that are below one over the number
                of units, if ``parameters`` states it.
            assumptions: The assumptions of the guarantee, in words.
            parameters: Public parameters of the run, as plain JSON values.
            runs: The identities of the run that the parameters belong to. The
                certificate says so if the ledger has charges of others.
            declaration: What the owner of the data says about it.

        Example:
            >>> from botorch_dp.privacy import GDP, GaussianMechanism
            >>> ledger = Ledger()
            >>> mechanism = GaussianMechanism(GDP(mu=1.0), sensitivity=1.0)
            >>> released = mechanism.release(torch.zeros(3), ledger=ledger)
            >>> Certificate.from_ledger(ledger).guarantee
            GDP(mu=1)
        """
        view = ledger.view()
        entries = view.entries
        if not entries:
            raise InvalidArgumentError(
                "ledger must have at least one charge: nothing was released yet."
            )
        if unit not in (None, entries[0].unit):
            raise InvalidArgumentError(
                f"unit must be {entries[0].unit!r}, as in the ledger's charges, got "
                f"{unit!r}."
            )
        parameters = dict(parameters or {})
        bound = largest_delta(entries[0].unit, parameters)
        facts = Facts.of(view, _deltas_below(bound, deltas, _cap_delta(ledger)))
        if facts.conditions:
            others = (text for text in assumptions if text != WORST_CASE)
            assumptions = (*facts.conditions, *others)
        return cls(
            **{name: value for name, value in vars(facts).items() if name in _COUNTED},
            assumptions=tuple(assumptions),
            parameters=parameters,
            run=_run_of(entries, runs),
            declaration=declaration or Declaration(),
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
            private=False,
            guess=1.0,
        )

    @classmethod
    def larger(cls, certificates: Sequence["Certificate"]) -> "Certificate":
        """Return the certificate of units that are each in one of several data sets.

        Every number is the largest one. It belongs to no single ledger.

        Args:
            certificates: Certificates for one unit and adjacency. All or none of them
                guarantee something.
        """
        first, *others = certificates
        for name in ("unit", "adjacency", "private"):
            found = sorted({str(getattr(one, name)) for one in certificates})
            if len(found) > 1:
                raise InvalidArgumentError(
                    f"certificates must agree on {name}, got {' and '.join(found)}: "
                    "no number is the larger one."
                )
        if not others:
            return replace(first._changed(), head=None, cap=None, counted=None)
        common = [d for d in first.epsilons if all(d in c.epsilons for c in others)]
        orders = [order for order in first.renyi if all(c.renyi for c in others)]
        return replace(
            first._changed(),
            guarantee=_largest(c.guarantee for c in certificates),
            pure_epsilon=_largest(c.pure_epsilon for c in certificates),
            rho=_largest(c.rho for c in certificates),
            renyi={a: max(c.renyi[a] for c in certificates) for a in orders},
            guess=max(c.guess for c in certificates),
            epsilons={d: max(c.epsilons[d] for c in certificates) for d in common},
            accountant=" / ".join(sorted({c.accountant for c in certificates})),
            assumptions=tuple(
                dict.fromkeys(text for c in certificates for text in c.assumptions)
            ),
            noise=tuple(sorted({name for c in certificates for name in c.noise})),
            num_releases=sum(c.num_releases for c in certificates),
            partition=first.partition
            if len({c.partition for c in certificates}) == 1
            else "",
            has_partitions=any(c.has_partitions for c in certificates),
            head=None,
            cap=None,
            counted=None,
        )

    def with_declaration(self, declaration: Declaration) -> "Certificate":
        """Return the certificate with what the owner of the data says about it.

        Example:
            >>> certificate = Certificate.not_private("random search adds no noise")
            >>> declared = certificate.with_declaration(Declaration(owner="Ward 3"))
            >>> declared.declaration.owner
            'Ward 3'
        """
        check_instance("declaration", declaration, Declaration)
        return self._changed(declaration=declaration)

    def with_audit(self, audit: AuditResult) -> "Certificate":
        """Return the certificate with the result of one more audit."""
        check_instance("audit", audit, AuditResult)
        return self._changed(audits=(*self.audits, audit))

    def signed(self, key: str | os.PathLike[str]) -> "Certificate":
        """Return the certificate with a signature of its digest.

        Args:
            key: The file of a private key:
                :func:`~botorch_dp.privacy.signatures.create_key`.
        """
        changed = self._changed()
        return replace(changed, signature=signatures.sign(changed.digest, key))

    def _changed(self, **values: Any) -> "Certificate":
        """Return a new certificate, to which an old signature does not belong."""
        return replace(self, **values, signature=None, stated_digest=None)

    @property
    def digest(self) -> str:
        """The hexadecimal digest of everything in here, except for the signature."""
        return certificate_json.digest(self)

    @property
    def for_experiments_only(self) -> bool:
        """Whether some noise was seeded, so that the seed reproduces it."""
        return SeededNoise.name in self.noise

    @property
    def main_delta(self) -> float | None:
        """The delta of the epsilon that describes the strength of the guarantee.

        None if no epsilon is stated at a delta of at most 0.001.
        """
        small = [delta for delta in self.epsilons if 0 < delta <= _LARGEST_DELTA]
        if isinstance(self.cap, ApproxDP) and self.cap.delta in small:
            return self.cap.delta
        below = [delta for delta in small if delta <= 1e-5]
        return max(below) if below else min(small, default=None)

    @property
    def strength(self) -> str:
        """``"strong"``, ``"unclear"``, ``"little"`` or ``"none"``: see docs/nist.md."""
        return certificate_text.strength(self)

    @property
    def sentences(self) -> tuple[str, str]:
        """Who is protected from what, and how strongly."""
        return certificate_text.sentences(self)

    @property
    def excluded(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        return certificate_text.excluded(self)

    def rows(self) -> list[tuple[str, str]]:
        """Return the certificate as pairs of a label and a text."""
        return certificate_text.rows(self)

    def __str__(self) -> str:
        return certificate_text.text(self)

    def _repr_html_(self) -> str:
        """Return the certificate as a table, for notebooks."""
        from botorch_dp.privacy.report import certificate_card

        return certificate_card(self)

    def to_html(
        self,
        ledger: Ledger | None = None,
        *,
        public_key: str | os.PathLike[str] | None = None,
    ) -> str:
        """Return a whole page, which needs no network.

        Args:
            ledger: The ledger of the certificate. If the two agree, the page also shows
                the budget over time, and what was released and when. If not, it says
                that nobody should rely on it.
            public_key: The file of the public key of who should have signed.
        """
        from botorch_dp.privacy.report import certificate_page

        return certificate_page(self, ledger, public_key=public_key)

    def verify(
        self,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        *,
        public_key: str | os.PathLike[str] | None = None,
        current: bool = False,
    ) -> "Verification":
        """Check the certificate against its ledger, and its signature.

        Args:
            ledger: The ledger, its file or its URL. None checks the signature alone.
                The ledger of one partition must be that of the certificate, unless the
                certificate counts all of them.
            public_key: The file of the public key of who should have signed.
            current: Whether charges that came after the certificate are a finding, and
                not only a note. Ask for it if the certificate is to say what was spent
                until now.

        Returns:
            What was found. ``require()`` raises unless all is well.

        Raises:
            LedgerUnavailableError: If the ledger cannot be reached or opened.

        Example:
            >>> from botorch_dp.privacy import GaussianEvent
            >>> ledger = Ledger()
            >>> entry = ledger.charge(GaussianEvent(noise_multiplier=5.0))
            >>> Certificate.from_ledger(ledger).verify(ledger).ok
            True
        """
        from botorch_dp.privacy.verification import verify

        return verify(self, ledger, public_key=public_key, current=current)

    def to_json(self) -> str:
        """Return the certificate as JSON that :meth:`from_json` reads."""
        return certificate_json.dump(self)

    @classmethod
    def from_json(cls, text: str, *, check_digest: bool = True) -> "Certificate":
        """Return the certificate that ``to_json`` wrote.

        The numbers are as written: only :meth:`verify` compares them with a ledger.

        Args:
            text: The JSON.
            check_digest: Whether to raise if the text was altered after it was written.
                With False, :meth:`verify` reports it.

        Raises:
            CertificateError: If the text was altered, or is of an earlier version.
        """
        return certificate_json.load(cls, text, check_digest=check_digest)

    def to_registry(self) -> dict[str, Any]:
        """Return an entry for the Differential Privacy Deployments Registry.

        See ``docs/nist.md`` for what was inferred of its schema.
        """
        from botorch_dp.privacy.registry import registry_entry

        return registry_entry(self)


# The facts that are fields; conditions are among the assumptions.
_COUNTED = {item for item in Facts.__dataclass_fields__ if item != "conditions"}


def _largest(values: Any) -> Any:
    """Return the largest value or guarantee, None if one is missing."""
    found = list(values)
    if any(value is None for value in found):
        return None
    return max(found, key=lambda value: getattr(value, "mu", value))


def _deltas_below(
    bound: tuple[float, Any], deltas: Sequence[float] | None, cap: Sequence[float]
) -> list[float]:
    """Return the deltas at which a data set of so many units states epsilon."""
    largest, number = bound
    for delta in deltas or ():
        if check_probability("deltas", delta) >= largest:
            raise InvalidArgumentError(
                f"deltas must be below one over the number of units, {number}, got "
                f"{delta!r}."
            )
    chosen = {*(_DELTAS if deltas is None else deltas), *cap}
    small = [delta for delta in chosen if delta < largest]
    return sorted(small or [largest / 10], reverse=True)


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
    cap = ledger.cap
    return (cap.delta,) if isinstance(cap, ApproxDP) else ()


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
