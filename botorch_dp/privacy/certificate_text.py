"""The words of a certificate: two sentences, then a table, then the parameters."""

import math
import textwrap
from typing import TYPE_CHECKING

from botorch_dp.privacy.contradictions import contradicting
from botorch_dp.privacy.declaration import NOT_STATED
from botorch_dp.privacy.noise import SecureNoise, SeededNoise, SystemNoise
from botorch_dp.privacy.person_level import (
    person_epsilon,
    person_guess,
    person_words,
    records_of,
)
from botorch_dp.privacy.spending import budget_limit

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate

WORST_CASE = "worst case over all neighbouring data sets, no assumption on the data"
# How an assumption begins that says who sees exact data.
_STATED_TRUST = ("local:", "central", "secure aggregation:")
CONTRADICTS = ", which contradicts this certificate"
# Who is protected, by unit; every other unit is "every <unit>".
_WHO = {
    "agent": "every agent with all its data",
    "person": "every person with all their records",
}
_NEIGHBOURS = {
    "replace_one": "one {unit} is replaced by any other",
    "zero_out": "one {unit} contributes nothing; the number of {units} is public",
    "add_or_remove_one": "one {unit} is added or removed",
}
# What the attacker of the first sentences guesses, by adjacency.
_GUESSES = {
    "replace_one": "which of two possible values a {unit} has",
    "zero_out": "whether a given {unit} contributed",
    "add_or_remove_one": "whether a given {unit} is in the data",
}
# NIST SP 800-226, 2.2: up to 1 strong, up to 20 not clear, above that hardly anything.
_STRONG, _UNCLEAR = 1.0, 20.0
_STRENGTHS = {
    "none": "no protection",
    "strong": "strong protection (epsilon is at most 1)",
    "unclear": "protection whose strength depends on the case (epsilon is between 1 "
    "and 20)",
    "little": "little protection (epsilon is above 20)",
}
_NO_EPSILON = (
    "protection of unclear strength (no epsilon is stated at a delta of at most 0.001)"
)
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
_TRUST = (
    "the process that adds the noise, and whoever controls its machine, see exact "
    "data; everybody else sees releases only"
)
# What assumptions say that state which of the records of training are protected.
_TRAINING = (
    *("data that models were trained on", "the training records (X, y)"),
    "training and validation records",
)
_BOUNDS = ("clip_norm", "loss_range", "gradient_bound")
_PLURALS = {"person": "people"}
_WIDTH, _LABEL = 88, 20


def strength(certificate: "Certificate") -> str:
    """Return the strength of a guarantee: the key of one of the phrases here."""
    if not certificate.private or certificate.for_experiments_only:
        return "none"
    if contradicting(certificate):
        return "none"
    delta = certificate.main_delta
    if delta is None:
        return "unclear"
    epsilon = person_epsilon(certificate, delta)
    if epsilon <= _STRONG:
        return "strong"
    return "unclear" if epsilon <= _UNCLEAR else "little"


def who(certificate: "Certificate") -> str:
    """Return who is protected."""
    if not certificate.private:
        return "nobody"
    everyone = _WHO.get(certificate.unit, f"every {certificate.unit}")
    if certificate.partition:
        return f"{everyone} of the partition {certificate.partition!r}"
    return everyone


def percent(probability: float) -> str:
    """Return a probability in percent, rounded up."""
    return f"{min(100.0, math.ceil(probability * 1000 - 1e-9) / 10):.1f} %"


def sentences(certificate: "Certificate") -> tuple[str, str]:
    """Return who is protected from what, and how strongly."""
    unit = certificate.unit
    if not certificate.private:
        reason = "; ".join(certificate.assumptions)
        return (f"Nobody is protected: {reason}.", "Do not publish the results.")
    if wrong := contradicting(certificate):
        return (
            "Nobody should rely on this certificate: an audit contradicts it.",
            f"It states more protection than the audit found: {wrong[0]}.",
        )
    protected = who(certificate)
    if (k := records_of(certificate)) > 1:
        protected = f"{protected}, and every person with at most {k} of them,"
        unit = "person"
    others = _PLURALS.get(unit, f"{unit}s")
    first = (
        f"{protected.replace('every', 'Every', 1)} is protected from anyone who "
        f"sees what was released, even from an attacker who knows all other {others}."
    )
    if certificate.for_experiments_only:
        first = (
            "Nobody is protected from who knows or guesses the seed: the noise was "
            "seeded, for experiments only."
        )
    condition = "An attacker"
    if any(text.startswith("NOT worst case") for text in certificate.assumptions):
        condition = "If the assumptions below are true, an attacker"
    guessed = _GUESSES[certificate.adjacency].format(unit=unit)
    if (unit, certificate.adjacency) == ("person", "replace_one"):
        guessed = "which of two possible sets of records a person has"
    phrase = _STRENGTHS[strength(certificate)]
    if certificate.main_delta is None and not certificate.for_experiments_only:
        phrase = _NO_EPSILON
    return first, (
        f"{condition} who guesses {guessed}, with even odds before, is right at most "
        f"{percent(person_guess(certificate))} of the time: {phrase}."
    )


def excluded(certificate: "Certificate") -> tuple[str, ...]:
    """Return what the guarantee does not cover."""
    if set(certificate.noise) == {SecureNoise.name}:
        return _EXCLUDED
    return (*_EXCLUDED, _FLOATING_POINT)


def trust(certificate: "Certificate") -> str:
    """Return who sees exact data."""
    stated = (t for t in certificate.assumptions if t.startswith(_STATED_TRUST))
    return next(stated, _TRUST)


def native(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the guarantee in its own parameters, which others can convert."""
    rows = []
    if certificate.guarantee is not None:
        rows.append(("guarantee", repr(certificate.guarantee)))
    if certificate.pure_epsilon is not None:
        rows.append(("pure DP", f"epsilon={certificate.pure_epsilon:.6g}"))
    if certificate.rho is not None:
        rows.append(("zCDP", f"rho={certificate.rho:.6g}"))
    if certificate.renyi:
        curve = ", ".join(f"{a:g}: {e:.6g}" for a, e in certificate.renyi.items())
        rows.append(("Renyi DP", f"epsilon by order: {curve}"))
    return rows


def epsilons(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the epsilon at each delta."""
    return [
        ("epsilon", f"{epsilon:.6g} at delta={delta:.3g}")
        for delta, epsilon in certificate.epsilons.items()
    ]


def budget(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the cap, and what is left of it."""
    cap, spent = certificate.cap, certificate.counted
    if cap is None or spent is None:
        return [("cap", "none: the ledger accepts any further release")]
    limit = budget_limit(cap)
    left = spent.left(limit)
    disjoint = ""
    if certificate.has_partitions:
        disjoint = " (in the partition that spent most, if partitions are disjoint)"
    return [
        (
            "cap",
            f"{cap!r}; {spent.unit}={spent.amount:.6g} is spent{disjoint}, {left:.6g} "
            f"of {limit:.6g} ({left / limit:.1%}) is left, by {spent.method}",
        )
    ]


def audits(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the lower bounds that audits found."""
    wrong = contradicting(certificate)
    return [
        ("audit", f"{audit}{CONTRADICTS if audit in wrong else ''}")
        for audit in certificate.audits
    ] or [("audit", "none attached")]


def declared(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return what the owner of the data says, and what was not stated."""
    rows = certificate.declaration.rows()
    stated = [(label, text) for label, text in rows if text != NOT_STATED]
    missing = [label for label, text in rows if text == NOT_STATED]
    if missing:
        stated.append((NOT_STATED, ", ".join(missing)))
    return stated


def identity(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return the date, the ledger and the versions."""
    head, versions = certificate.head, certificate.versions
    ledger = "none that this certificate could be checked against"
    if head is not None:
        ledger = f"{head.ledger}, {head.num_rows} row(s), digest {head.digest[:16]}..."
    return [
        ("date", certificate.created),
        ("ledger", ledger),
        ("versions", ", ".join(f"{name} {text}" for name, text in versions.items())),
    ]


def bias(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return what clipping does to the results."""
    bounds = [name for name in _BOUNDS if certificate.parameters.get(name)]
    if not bounds:
        return []
    return [
        (
            "bias",
            f"values beyond {' and '.join(bounds)} are clipped, so records with "
            "unusual values count less than others",
        )
    ]


def contribution(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return what the guarantee means for a person with several records."""
    k = certificate.declaration.records_per_person
    if certificate.unit != "record":
        return []
    if k is None:
        text = (
            "not stated: for a person with k records epsilon and mu are k times as "
            "large, and rho is k^2 times as large"
        )
    elif k == 1:
        text = "a person has at most one record, as declared"
    else:
        text = (
            f"a person has at most {k} records, as declared; for such a person: "
            f"{person_words(certificate)}"
        )
    return [("contribution", text)]


def training(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return whether the records that models were trained on are protected."""
    if any(words in t for t in certificate.assumptions for words in _TRAINING):
        return [("training data", "as stated above")]
    return [
        (
            "training data",
            "covered only if the training was charged as well; a model that was "
            "trained without a charge may reveal its records",
        )
    ]


def rows(certificate: "Certificate") -> list[tuple[str, str]]:
    """Return a certificate as pairs of a label and a text."""
    if not certificate.private:
        return [
            ("protects", who(certificate)),
            *declared(certificate),
            *identity(certificate),
            *_parameters(certificate),
        ]
    unit, adjacency = certificate.unit, certificate.adjacency
    units = _PLURALS.get(unit, f"{unit}s")
    neighbours = _NEIGHBOURS[adjacency].format(unit=unit, units=units)
    accounting = f"{certificate.accountant}, {certificate.num_releases} release(s)"
    run = [] if certificate.run is None else [("run", certificate.run)]
    return [
        ("protects", who(certificate)),
        ("neighbours", f"{adjacency}: {neighbours}"),
        *contribution(certificate),
        *epsilons(certificate),
        *native(certificate),
        ("accounting", accounting),
        *budget(certificate),
        *run,
        *(("holds", text) for text in certificate.assumptions),
        *training(certificate),
        ("trust", trust(certificate)),
        *(("noise", _NOISE[name]) for name in certificate.noise),
        *bias(certificate),
        *audits(certificate),
        *(("not covered", text) for text in excluded(certificate)),
        *declared(certificate),
        *identity(certificate),
        *_parameters(certificate),
    ]


def _parameters(certificate: "Certificate") -> list[tuple[str, str]]:
    items = [f"{key}={value}" for key, value in certificate.parameters.items()]
    return [("parameters", "; ".join(items))] if items else []


def title(certificate: "Certificate") -> str:
    """Return the first line."""
    line = "Differential privacy certificate"
    if not certificate.private:
        line = f"NOT PRIVATE: {'; '.join(certificate.assumptions)}"
    if certificate.for_experiments_only:
        line += " (FOR EXPERIMENTS ONLY: the noise was seeded)"
    return line


def text(certificate: "Certificate") -> str:
    """Return a certificate as text, in which no label or text can begin a line."""
    lines = [in_one_line(title(certificate))]
    for sentence in sentences(certificate):
        lines += textwrap.wrap(sentence, _WIDTH)
    lines.append("")
    table = [tuple(map(in_one_line, row)) for row in rows(certificate)]
    last = [line for line in table if line[0] == "parameters"]
    lines += [
        f"  {label:<{_LABEL}}{words}"
        for label, words in table[: len(table) - len(last)]
    ]
    for label, words in last:
        lines += _wrapped(label, words.split("; "))
    return "\n".join(lines)


def in_one_line(words: str) -> str:
    """Return a text without line breaks and other characters that are not shown."""
    return "".join(one if one.isprintable() else " " for one in words)


def _wrapped(label: str, items: list[str]) -> list[str]:
    """Return items in lines of a block, none of them divided."""
    start = f"  {label:<{_LABEL}}"
    lines, line = [], start
    for item in items:
        room = _WIDTH - len(line)
        if line.strip() not in ("", label) and len(item) > room - 2:
            lines.append(line)
            line = " " * len(start)
        line += item if line.endswith(" ") else f"; {item}"
    return [*lines, line]
