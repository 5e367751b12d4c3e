"""SQLite files: append-only, locked, and refused when damaged or replaced."""

import contextlib
import os
import pickle
import random
import shutil
import sqlite3

import pytest

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import LedgerError, LedgerUnavailableError
from botorch_dp.privacy import GaussianEvent, PureEvent
from botorch_dp.privacy.stores import sqlite as sqlite_store
from botorch_dp.privacy.stores.chain import start
from tests.privacy.cases import FORK, race


class TestFile:
    def test_the_copied_main_file_is_complete(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        ledger.charge(GaussianEvent(2.0))
        copy = tmp_path / "copy.db"
        copy.write_bytes((tmp_path / "l.db").read_bytes())
        assert len(Ledger(copy)) == 1

    def test_journal_whose_locks_belong_to_the_file_and_extra_sync(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        with ledger._store._connection() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (3,)

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM rows",
            "UPDATE rows SET text = '{}'",
            "DELETE FROM header",
            "UPDATE header SET text = '{}'",
        ],
    )
    def test_append_only(self, tmp_path, statement):
        ledger = Ledger(tmp_path / "l.db", cap=GDP(5.0))
        ledger.charge(GaussianEvent(1.0))
        with (
            contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as connection,
            pytest.raises(sqlite3.IntegrityError, match="append-only"),
        ):
            connection.execute(statement)

    def test_no_folder(self, tmp_path):
        with pytest.raises(LedgerError, match="no folder"):
            Ledger(tmp_path / "missing" / "l.db")

    def test_a_charge_holds_the_only_write_lock(self, tmp_path):
        # From before it reads: who else has read then cannot charge what is left.
        ledger = Ledger(tmp_path / "l.db")
        with (
            ledger._store.transaction(),
            contextlib.closing(
                sqlite3.connect(tmp_path / "l.db", timeout=0.0)
            ) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    def test_one_connection_and_one_transaction_for_a_charge(
        self, tmp_path, monkeypatch
    ):
        # Counted, not timed: opening the file takes most of the time of a charge that
        # the disk does not take.
        ledger, opened = Ledger(tmp_path / "l.db", ApproxDP(9.0, 1e-5)), []
        ledger.charge(GaussianEvent(100.0))
        connect = sqlite3.connect

        def counting(*args, **kwargs):
            opened.append(args)
            return connect(*args, **kwargs)

        monkeypatch.setattr(sqlite_store.sqlite3, "connect", counting)
        ledger.charge(GaussianEvent(100.0))
        assert len(opened) == 1
        ledger.charge_many([(GaussianEvent(100.0 + n), 1) for n in range(50)])
        assert len(opened) == 2
        assert len(ledger) == 52

    def test_locked_for_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sqlite_store, "_LOCK_TIMEOUT_SECONDS", 0.05)
        ledger = Ledger(tmp_path / "l.db")
        with contextlib.closing(
            sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked"):
                ledger.charge(GaussianEvent(1.0))
        ledger.charge(GaussianEvent(1.0))
        assert len(ledger) == 1

    def test_others_wait_from_the_first_read_of_a_charge(self, tmp_path):
        # Not only from its write: two that have read the same would both fit.
        ledger = Ledger(tmp_path / "l.db")
        with contextlib.closing(
            sqlite3.connect(tmp_path / "l.db", isolation_level=None, timeout=0)
        ) as other:
            with ledger._store.transaction() as transaction:
                head = ledger._book.head
                assert transaction.read_after(head) == ([], head)
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    other.execute("BEGIN IMMEDIATE")
            other.execute("BEGIN IMMEDIATE")


def append_text(connection, text):
    """Append a row with the right digest, as whoever knows the format could."""
    (header,) = connection.execute("SELECT text FROM header").fetchone()
    head = start(header)
    for (row,) in connection.execute("SELECT text FROM rows ORDER BY id").fetchall():
        head = head.then(row)
    head = head.then(text)
    row = (head.number, text, head.digest)
    connection.execute("INSERT INTO rows VALUES (?, ?, ?)", row)
    connection.commit()


class TestReplacedFiles:
    """A live process notices that its file is not what it was."""

    @pytest.fixture
    def ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(10.0))
        for _ in range(5):
            ledger.charge(PureEvent(1.0))
        return ledger

    def check_refused(self, ledger, match="replaced"):
        with pytest.raises(LedgerError, match=match):
            ledger.charge(PureEvent(1.0))
        with pytest.raises(LedgerError, match=match):
            ledger.entries  # noqa: B018
        with pytest.raises(LedgerError, match=match):
            ledger.reserve([(PureEvent(1.0), 1)])

    def test_by_an_older_copy(self, ledger, tmp_path):
        older = (tmp_path / "l.db").read_bytes()
        ledger.charge(PureEvent(1.0))
        (tmp_path / "l.db").write_bytes(older)
        self.check_refused(ledger)

    def test_by_an_older_copy_that_went_on(self, ledger, tmp_path):
        shutil.copy(tmp_path / "l.db", tmp_path / "copy.db")
        ledger.charge(PureEvent(0.5))
        copy = Ledger(tmp_path / "copy.db")
        for _ in range(3):
            copy.charge(PureEvent(0.6))
        os.replace(tmp_path / "copy.db", tmp_path / "l.db")
        self.check_refused(ledger)

    @pytest.mark.parametrize("num_charges", [0, 5, 6])
    def test_by_another_ledger(self, ledger, tmp_path, num_charges):
        other = Ledger(tmp_path / "other.db", PureDP(10.0))
        for _ in range(num_charges):
            other.charge(PureEvent(1.0))
        os.replace(tmp_path / "other.db", tmp_path / "l.db")
        self.check_refused(ledger)
        with pytest.raises(LedgerError, match="replaced"):
            pickle.loads(pickle.dumps(ledger))

    def test_an_empty_ledger_by_another(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        Ledger(tmp_path / "other.db", PureDP(10.0))
        os.replace(tmp_path / "other.db", tmp_path / "l.db")
        self.check_refused(ledger)

    def test_by_nothing(self, ledger, tmp_path):
        (tmp_path / "l.db").unlink()
        self.check_refused(ledger, match="not there any more")

    def test_a_changed_row(self, ledger, tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as connection:
            connection.execute("DROP TRIGGER rows_UPDATE")
            connection.execute(
                "UPDATE rows SET text = replace(text, '1.0', '0.1') WHERE id = 2"
            )
            connection.execute(sqlite_store._TRIGGERS["rows_UPDATE"])
            connection.commit()
        with pytest.raises(LedgerError, match=r"Row 2 .* digest"):
            Ledger(tmp_path / "l.db")

    def test_a_later_copy_of_the_same_ledger_is_taken(self, ledger, tmp_path):
        shutil.copy(tmp_path / "l.db", tmp_path / "copy.db")
        Ledger(tmp_path / "copy.db").charge(PureEvent(1.0))
        os.replace(tmp_path / "copy.db", tmp_path / "l.db")
        assert len(ledger) == 6

    def test_the_digest_names_the_whole_history(self, ledger):
        before = ledger.digest
        assert Ledger(ledger.path).digest == before
        ledger.charge(PureEvent(1.0))
        assert ledger.digest != before
        assert len(ledger.id) == 32


def opened(path):
    """Return what a ledger says when it is opened, or None if it is refused."""
    try:
        ledger = Ledger(path)
    except LedgerError:
        return None
    return ledger.id, ledger.cap, ledger.plan, ledger.entries, ledger.digest


NUM_ROWS = 12


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Return the bytes of a ledger with a plan and charges."""
    path = tmp_path_factory.mktemp("ledger") / "l.db"
    ledger = Ledger(path, ApproxDP(10.0, 1e-5))
    ledger.charge_many([(GaussianEvent(100.0 + n), 1) for n in range(5)])
    for number in range(NUM_ROWS - 6):
        ledger.charge(GaussianEvent(200.0), run=f"run {number}")
    assert ledger._book.head.number == NUM_ROWS
    return path.read_bytes()


class TestTampering:
    """Nothing that opens says something else than before."""

    @pytest.fixture
    def path(self, tmp_path, content):
        (tmp_path / "l.db").write_bytes(content)
        return tmp_path / "l.db"

    def change(self, path, *statements):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for name in ("rows_UPDATE", "rows_DELETE", "header_UPDATE"):
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    @pytest.mark.parametrize("number", range(1, NUM_ROWS + 1))
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE rows SET text = replace(text, '.0', '.5') WHERE id = {0}",
            "UPDATE rows SET text = text || ' ' WHERE id = {0}",
            "UPDATE rows SET digest = upper(digest) WHERE id = {0}",
            "UPDATE rows SET text = CAST(text AS BLOB) WHERE id = {0}",
            "UPDATE rows SET id = id + 100 WHERE id = {0}",
            "INSERT INTO rows SELECT 13, text, digest FROM rows WHERE id = {0}",
        ],
    )
    def test_with_any_row(self, path, number, statement):
        self.change(path, statement.format(number))
        assert opened(path) is None

    @pytest.mark.parametrize("number", range(1, NUM_ROWS))
    def test_with_the_order(self, path, number):
        self.change(
            path,
            f"UPDATE rows SET id = -1 WHERE id = {number}",
            f"UPDATE rows SET id = {number} WHERE id = {number + 1}",
            f"UPDATE rows SET id = {number + 1} WHERE id = -1",
        )
        assert opened(path) is None

    @pytest.mark.parametrize("number", range(1, NUM_ROWS))
    def test_with_a_row_taken_out(self, path, number):
        self.change(
            path,
            f"DELETE FROM rows WHERE id = {number}",
            f"UPDATE rows SET id = -id WHERE id > {number}",
            "UPDATE rows SET id = -id - 1 WHERE id < 0",
        )
        assert opened(path) is None

    def test_with_the_cap(self, path):
        self.change(path, "UPDATE header SET text = replace(text, '10.0', '99.0')")
        assert opened(path) is None

    def test_with_any_byte(self, path, content):
        before = opened(path)
        assert before is not None
        positions = random.Random(0)
        refused = 0
        for _ in range(300):
            changed = bytearray(content)
            position = positions.randrange(len(changed))
            changed[position] ^= 1 << positions.randrange(8)
            path.write_bytes(changed)
            after = opened(path)
            assert after in (None, before)  # some bytes are not used
            refused += after is None
        assert refused > 30


class TestLinks:
    def test_two_names_for_one_ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / "other.db")
        with pytest.raises(LedgerError, match="2 hard links"):
            ledger.charge(PureEvent(0.1))
        with pytest.raises(LedgerError, match="2 hard links"):
            Ledger(tmp_path / "other.db")
        (tmp_path / "other.db").unlink()
        assert ledger.charge(PureEvent(0.1)).number == 1

    def test_a_symbolic_link_is_the_same_ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        (tmp_path / "link.db").symlink_to(tmp_path / "l.db")
        Ledger(tmp_path / "link.db").charge(PureEvent(0.1))
        assert len(ledger) == 1

    def test_the_rest_of_an_interrupted_creation(self, tmp_path):
        Ledger(tmp_path / "l.db", PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / ".l.db.abcdef")
        Ledger(tmp_path / "l.db").charge(PureEvent(0.1))
        assert [path.name for path in tmp_path.iterdir()] == ["l.db"]

    def test_processes_with_two_names_never_overspend(self, tmp_path, monkeypatch):
        # With the check of links off, as on a file system that does not count them.
        monkeypatch.setattr(sqlite_store.SQLiteStore, "_check_links", lambda self: None)
        Ledger(tmp_path / "l.db", cap=PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / "other.db")
        barrier, results = FORK.Barrier(4), FORK.Queue()
        processes = [
            FORK.Process(target=race, args=(tmp_path / name, barrier, results))
            for name in ("l.db", "other.db") * 2
        ]
        for process in processes:
            process.start()
        counts = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        assert sum(counts) == 100


class TestDamage:
    @pytest.fixture
    def ledger_file(self, tmp_path):
        path = tmp_path / "l.db"
        Ledger(path).charge_many([(GaussianEvent(100.0), 1)] * 100)
        return path

    @pytest.mark.parametrize("keep", [0, 10, 99, 100, 4096, 10_000, -1, -4096])
    def test_truncated(self, ledger_file, keep):
        whole = ledger_file.read_bytes()
        cut = whole[:keep]
        assert len(cut) < len(whole)
        ledger_file.write_bytes(cut)
        with pytest.raises(LedgerError, match=r"not a ledger|damaged"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == cut

    def test_overwritten_page(self, ledger_file):
        content = bytearray(ledger_file.read_bytes())
        content[8192:8292] = b"\xff" * 100
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == bytes(content)

    def test_a_page_that_does_not_add_up(self, ledger_file):
        # All rows can be read, and the next one might overwrite some of them.
        content = bytearray(ledger_file.read_bytes())
        assert content[-4096] == 0x0D  # a leaf of a table
        content[-4096 + 7] += 50  # unused bytes between rows
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="so what was spent is not known"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == bytes(content)

    def test_unreadable_row(self, ledger_file):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            append_text(connection, "{")
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    @pytest.mark.parametrize("row", ["{}", "[]", '{"event": {"type": "Nothing"}}'])
    def test_row_of_something_else(self, ledger_file, row):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            append_text(connection, row)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    def test_lost_row(self, ledger_file):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            connection.execute("DROP TRIGGER rows_DELETE")
            connection.execute("DELETE FROM rows WHERE id = 50")
            connection.execute(sqlite_store._TRIGGERS["rows_DELETE"])
            connection.commit()
        with pytest.raises(LedgerError, match="Row 50 of the ledger is lost"):
            Ledger(ledger_file)

    def test_page_size_of_zero(self, ledger_file):
        content = bytearray(ledger_file.read_bytes())
        content[16:18] = b"\x00\x00"
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    def test_foreign_text(self, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("not a ledger at all\n" * 100)
        with pytest.raises(LedgerError, match=r"not a ledger.*left as it is"):
            Ledger(path)
        assert path.read_text() == "not a ledger at all\n" * 100

    def test_foreign_sqlite(self, tmp_path):
        path = tmp_path / "other.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE charges (id, charge)")
        before = path.read_bytes()
        with pytest.raises(LedgerError, match="another program"):
            Ledger(path)
        assert path.read_bytes() == before

    def test_a_folder(self, tmp_path):
        with pytest.raises(LedgerUnavailableError, match="not a ledger but a folder"):
            Ledger(tmp_path)
