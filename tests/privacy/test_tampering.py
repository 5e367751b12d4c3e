"""Every edit of a ledger or of its certificate is found, and nothing else is."""

import contextlib
import hashlib
import json
import sqlite3
from dataclasses import replace

import pytest

from botorch_dp.exceptions import BotorchDPError, CertificateError, LedgerError
from botorch_dp.privacy import (
    ApproxDP,
    AssumedEvent,
    Certificate,
    Declaration,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    create_key,
)
from botorch_dp.privacy.certificate_facts import Facts

ASSUMED = "smooth losses"


def charge(ledger):
    """Charge several releases, of which one is not worst case."""
    ledger.charge(LaplaceEvent(8.0), count=3, mechanism="laplace", run="one")
    ledger.charge(LaplaceEvent(9.0), mechanism="laplace", run="one")
    ledger.charge(LaplaceEvent(20.0), mechanism="laplace", run="two")
    ledger.charge(AssumedEvent(0.01, 1e-9), mechanism="x", condition=ASSUMED)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.sqlite"
    charge(Ledger(path, cap=ApproxDP(9.0, 1e-6), filter="basic"))
    return path


@pytest.fixture
def text(path):
    return Certificate.from_ledger(
        Ledger(path),
        parameters={"num_records": 5000, "clip_norm": 1.0},
        declaration=Declaration(data_set="visits", owner="Ward 3"),
    ).to_json()


# Edits of a ledger's file with SQLite.


@contextlib.contextmanager
def opened(path):
    """Open the file without its triggers, as a forger would, and put them back."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


def rows_of(connection):
    return [text for (text,) in connection.execute("SELECT text FROM rows ORDER BY id")]


def rewrite(connection, rows, header=None):
    """Write other rows, with all digests as they would be of an honest ledger."""
    if header is not None:
        connection.execute("UPDATE header SET text = ?", (header,))
    (header,) = connection.execute("SELECT text FROM header").fetchone()
    digest = hashlib.sha256(header.encode()).hexdigest()
    connection.execute("DELETE FROM rows")
    for number, row in enumerate(rows, 1):
        digest = hashlib.sha256(f"{digest}\n{row}".encode()).hexdigest()
        connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, row, digest))
    connection.execute("UPDATE sqlite_sequence SET seq = ?", (len(rows),))


def edit_a_row(connection):
    connection.execute(
        "UPDATE rows SET text = replace(text, ' 9.0', ' 900.0') WHERE id = 2"
    )


def edit_a_row_and_its_digest(connection):
    edit_a_row(connection)
    (before,) = connection.execute("SELECT digest FROM rows WHERE id = 1").fetchone()
    (row,) = connection.execute("SELECT text FROM rows WHERE id = 2").fetchone()
    digest = hashlib.sha256(f"{before}\n{row}".encode()).hexdigest()
    connection.execute("UPDATE rows SET digest = ? WHERE id = 2", (digest,))


def edit_a_row_and_all_digests(connection):
    rows = rows_of(connection)
    rewrite(connection, [row.replace(" 8.0", " 800.0") for row in rows])


def edit_a_time_and_all_digests(connection):
    rewrite(connection, [row.replace("20", "19", 1) for row in rows_of(connection)])


def edit_the_last_row_and_its_digest(connection):
    *others, last = rows_of(connection)
    rewrite(connection, [*others, last.replace(ASSUMED, "nothing")])


def remove_the_first_row(connection):
    connection.execute("DELETE FROM rows WHERE id = 1")


def remove_a_row(connection):
    connection.execute("DELETE FROM rows WHERE id = 3")


def remove_the_last_row(connection):
    connection.execute("DELETE FROM rows WHERE id = (SELECT MAX(id) FROM rows)")


def remove_the_last_row_for_good(connection):
    rewrite(connection, rows_of(connection)[:-1])


def remove_a_row_and_renumber(connection):
    first, second, _, *others = rows_of(connection)
    rewrite(connection, [first, second, *others])


def remove_all_rows(connection):
    rewrite(connection, [])


def swap_rows(connection):
    for old, new in ((2, -2), (3, 2), (-2, 3)):
        connection.execute("UPDATE rows SET id = ? WHERE id = ?", (new, old))


def swap_rows_and_all_digests(connection):
    first, second, third, *others = rows_of(connection)
    rewrite(connection, [first, third, second, *others])


def insert_a_row_before_others(connection):
    first, second, *others = rows_of(connection)
    rewrite(connection, [first, second, second, *others])


def replace_the_last_row(connection):
    *others, _ = rows_of(connection)
    rewrite(connection, [*others, others[-1]])


def raise_the_cap(connection):
    connection.execute("UPDATE header SET text = replace(text, '9.0', '90.0')")


def raise_the_cap_and_all_digests(connection):
    (header,) = connection.execute("SELECT text FROM header").fetchone()
    rewrite(connection, rows_of(connection), header.replace("9.0", "90.0"))


def add_a_header(connection):
    connection.execute("INSERT INTO header SELECT text FROM header")


def insert_a_row_with_number_zero(connection):
    connection.execute("INSERT INTO rows VALUES (0, '{}', 'x')")


def insert_a_row_with_a_negative_number(connection):
    connection.execute("INSERT INTO rows VALUES (-1, '{}', 'x')")


def write_rubbish(connection):
    rewrite(connection, [*rows_of(connection)[:-1], '{"time": "now"}'])


# The first ones leave traces in the file. The others are known by a digest alone.
TRACES = [
    edit_a_row,
    edit_a_row_and_its_digest,
    remove_the_first_row,
    remove_a_row,
    remove_the_last_row,
    swap_rows,
    raise_the_cap,
    add_a_header,
    insert_a_row_with_number_zero,
    insert_a_row_with_a_negative_number,
    write_rubbish,
]
REWRITTEN = [
    edit_a_row_and_all_digests,
    edit_a_time_and_all_digests,
    edit_the_last_row_and_its_digest,
    remove_the_last_row_for_good,
    remove_a_row_and_renumber,
    remove_all_rows,
    swap_rows_and_all_digests,
    insert_a_row_before_others,
    replace_the_last_row,
    raise_the_cap_and_all_digests,
]


def named(edits):
    return [pytest.param(edit, id=edit.__name__) for edit in edits]


class TestLedger:
    def test_an_untouched_pair_verifies(self, path, text):
        found = Certificate.from_json(text).verify(path)
        assert found.ok
        assert found.findings == ()
        found.require()

    def test_opening_without_an_edit_changes_nothing(self, path, text):
        with opened(path):
            pass
        assert Certificate.from_json(text).verify(path).ok

    def test_later_charges_are_allowed_and_reported(self, path, text):
        ledger = Ledger(path)
        ledger.charge(LaplaceEvent(50.0))
        ledger.charge(LaplaceEvent(50.0))
        found = Certificate.from_json(text).verify(ledger)
        assert found.ok
        assert any("2 more charge(s) since" in note for note in found.notes)

    @pytest.mark.parametrize("edit", named(TRACES + REWRITTEN))
    def test_the_certificate_finds_it(self, path, text, edit):
        with opened(path) as connection:
            edit(connection)
        found = Certificate.from_json(text).verify(path)
        assert not found.ok
        with pytest.raises(CertificateError, match="NOT verified"):
            found.require()

    @pytest.mark.parametrize("edit", named(TRACES))
    def test_opening_finds_it(self, path, edit):
        with opened(path) as connection:
            edit(connection)
        with pytest.raises(LedgerError):
            Ledger(path)

    @pytest.mark.parametrize("edit", named(TRACES + REWRITTEN))
    def test_an_open_ledger_finds_it(self, path, edit):
        ledger = Ledger(path)
        ledger.verify()
        with opened(path) as connection:
            edit(connection)
        with pytest.raises(LedgerError):
            ledger.verify()

    @pytest.mark.parametrize(
        "name", ["rows_UPDATE", "rows_DELETE", "header_UPDATE", "header_DELETE"]
    )
    def test_a_dropped_trigger(self, path, text, name):
        ledger = Ledger(path)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"DROP TRIGGER {name}")
            connection.commit()
        with pytest.raises(LedgerError, match="append-only"):
            Ledger(path)
        with pytest.raises(LedgerError, match="append-only"):
            ledger.verify()
        assert not Certificate.from_json(text).verify(path).ok

    def test_another_ledger_with_the_same_charges(self, tmp_path, text):
        other = Ledger(tmp_path / "other", cap=ApproxDP(9.0, 1e-6), filter="basic")
        charge(other)
        found = Certificate.from_json(text).verify(other)
        assert "another ledger" in found.findings[0]

    def test_a_missing_ledger_is_not_created(self, tmp_path, text):
        found = Certificate.from_json(text).verify(tmp_path / "none")
        assert "no ledger" in found.findings[0]
        assert not (tmp_path / "none").exists()


# Edits of a certificate, after which a careful forger writes a new digest.

EDITS = {
    "epsilon": lambda s: s["epsilons"].__setitem__(0, [s["epsilons"][0][0], 0.01]),
    "epsilon a little": lambda s: s["epsilons"][0].__setitem__(
        1, s["epsilons"][0][1] * (1 - 1e-5)
    ),
    "epsilon upwards": lambda s: s["epsilons"][0].__setitem__(1, 100.0),
    "delta": lambda s: s["epsilons"][0].__setitem__(0, 1e-30),
    "no epsilons": lambda s: s.update(epsilons=[]),
    "guarantee": lambda s: s.update(guarantee={"type": "GDP", "mu": 0.01}),
    "pure epsilon": lambda s: s.update(pure_epsilon=0.1),
    "rho": lambda s: s.update(rho=1e-6),
    "Renyi curve": lambda s: s.update(renyi=[[2.0, 1e-6]]),
    "guess": lambda s: s.update(guess=0.5),
    "number of releases": lambda s: s.update(num_releases=1),
    "unit": lambda s: s.update(unit="agent"),
    "adjacency": lambda s: s.update(adjacency="zero_out"),
    "noise": lambda s: s.update(noise=["secure"]),
    "cap": lambda s: s["cap"].update(epsilon=1.0),
    "no cap": lambda s: s.update(cap=None),
    "spent": lambda s: s["counted"].update(amount=0.1),
    "unit of spending": lambda s: s["counted"].update(unit="mu"),
    "no spending": lambda s: s.update(counted=None),
    "conditions": lambda s: s.update(assumptions=["none"]),
    "worst case": lambda s: s["assumptions"].append(
        "worst case over all neighbouring data sets, no assumption on the data"
    ),
    "not private": lambda s: s.update(private=False),
    "ledger": lambda s: s["head"].update(ledger="0" * 32),
    "number of rows": lambda s: s["head"].update(num_rows=2),
    "too many rows": lambda s: s["head"].update(num_rows=99),
    "no rows": lambda s: s["head"].update(num_rows=0),
    "rows from the end": lambda s: s["head"].update(num_rows=-3),
    "a delta of 0": lambda s: s["epsilons"].append([0, 0.1]),
    "a negative delta": lambda s: s["epsilons"].append([-1.0, 0.1]),
    "a delta of 1": lambda s: s["epsilons"].append([1, 0.0]),
    "a delta of 2": lambda s: s.update(epsilons=[[2, 0.0]]),
    "head": lambda s: s["head"].update(digest="0" * 64),
    "no head": lambda s: s.update(head=None),
}
GAUSSIAN = {
    "guarantee": lambda s: s["guarantee"].update(mu=0.4999),
    "rho": lambda s: s.update(rho=0.1249),
    "renyi": lambda s: s["renyi"].pop(),
    "pure_epsilon": lambda s: s.update(pure_epsilon=1.0),
    "counted": lambda s: s.update(
        counted={"amount": 0.1, "unit": "mu", "method": "none"}
    ),
}
WORDS = {
    "owner": lambda s: s["declaration"].update(owner="Ward 4"),
    "records per person": lambda s: s["declaration"].update(records_per_person=1),
    "parameter": lambda s: s["parameters"].update(clip_norm=2.0),
    "date": lambda s: s.update(created="2020-01-01"),
    "versions": lambda s: s["versions"].update(torch="1.0"),
    "accounting": lambda s: s.update(accountant="magic"),
    "audit": lambda s: s["audits"].append(
        {
            "lower_bound": 0.0,
            "unit": "mu",
            "confidence": 0.99,
            "num_samples": 9,
            "delta": 0.0,
        }
    ),
    "assumption": lambda s: s["assumptions"].append("nobody looked"),
}


def edited(text, edit):
    state = json.loads(text)
    edit(state)
    return json.dumps(state)


def forged(text, edit):
    """Return an edited certificate with the digest that belongs to it."""
    certificate = Certificate.from_json(edited(text, edit), check_digest=False)
    return certificate.to_json()


class TestCertificate:
    @pytest.mark.parametrize("name", [*EDITS, *WORDS])
    def test_reading_finds_an_edit(self, text, name):
        altered = edited(text, {**EDITS, **WORDS}[name])
        with pytest.raises(BotorchDPError):
            Certificate.from_json(altered)

    @pytest.mark.parametrize("digest", [None, 3, "", "0" * 63, "G" * 64, [], "none"])
    @pytest.mark.parametrize("check", [True, False])
    def test_there_is_no_certificate_without_a_digest(self, text, digest, check):
        altered = edited(text, WORDS["owner"])
        without = edited(altered, lambda s: s.update(digest=digest))
        if digest == "none":
            without = edited(altered, lambda s: s.pop("digest"))
        with pytest.raises(CertificateError, match="not 64 hexadecimal digits"):
            Certificate.from_json(without, check_digest=check)

    @pytest.mark.parametrize("name", [*EDITS, *WORDS])
    def test_verify_finds_what_was_read_nevertheless(self, path, text, name):
        altered = edited(text, {**EDITS, **WORDS}[name])
        found = Certificate.from_json(altered, check_digest=False).verify(path)
        assert "altered after it was written" in found.findings[0]

    @pytest.mark.parametrize("name", EDITS)
    def test_the_ledger_contradicts_a_new_digest(self, path, text, name):
        found = Certificate.from_json(forged(text, EDITS[name])).verify(path)
        assert not found.ok
        assert found.findings

    @pytest.mark.parametrize("name", [*EDITS, *WORDS])
    def test_a_signature_contradicts_everything(self, tmp_path, path, text, name):
        public = create_key(tmp_path / "key")
        signed = Certificate.from_json(text).signed(tmp_path / "key")
        assert signed.verify(path, public_key=public).ok
        altered = forged(signed.to_json(), {**EDITS, **WORDS}[name])
        found = Certificate.from_json(altered).verify(path, public_key=public)
        assert any("signature" in finding for finding in found.findings)

    @pytest.mark.parametrize("name", GAUSSIAN)
    def test_native_parameters(self, name):
        ledger = Ledger()
        ledger.charge(GaussianEvent(2.0))
        text = Certificate.from_ledger(ledger).to_json()
        assert Certificate.from_json(text).verify(ledger).ok
        found = Certificate.from_json(forged(text, GAUSSIAN[name])).verify(ledger)
        assert len(found.findings) == 1
        assert name in found.findings[0]

    def test_one_that_was_rewritten_to_an_earlier_row(self, path, text):
        """All its numbers are true of that row, so only later charges show it."""
        past = Ledger(path).verify(2)
        read = Certificate.from_json(text)
        facts = vars(Facts.of(past, read.epsilons))
        facts.pop("conditions")
        assert facts["epsilons"][1e-6] < read.epsilons[1e-6]
        earlier = Certificate.from_json(replace(read, **facts).to_json())
        found = earlier.verify(path)
        assert found.ok
        assert any("2 more charge(s) since" in note for note in found.notes)
        found = earlier.verify(path, current=True)
        assert not found.ok
        assert "2 more charge(s) since" in found.findings[0]
        assert read.verify(path, current=True).ok
        back = replace(earlier, head=replace(earlier.head, num_rows=-2))
        assert "counts -2 rows" in back.verify(path).findings[-1]

    def test_words_need_a_signature(self, path, text):
        """The docs say so: without a signature, words are as good as their file."""
        found = Certificate.from_json(forged(text, WORDS["owner"])).verify(path)
        assert found.ok
        assert any("not signed" in note for note in found.notes)

    def test_rounding_of_another_machine_is_allowed(self, path, text):
        def round_last_bits(state):
            state["epsilons"] = [[d, e * (1 + 1e-9)] for d, e in state["epsilons"]]
            state["guess"] *= 1 - 1e-9

        assert Certificate.from_json(forged(text, round_last_bits)).verify(path).ok
