"""PostgreSQL: never an unrecorded draw, never an overspend."""

import contextlib
import os
import pickle
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from botorch_dp import GDP, ApproxDP, GaussianMechanism, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
    MissingExtraError,
)
from botorch_dp.privacy import GaussianEvent, PureEvent
from botorch_dp.privacy import ledger as ledger_module
from botorch_dp.privacy.stores import postgres as postgres_store
from botorch_dp.privacy.stores.chain import start
from botorch_dp.privacy.stores.postgres import grant_roles
from tests.devices import DEVICE, seeded
from tests.privacy.cases import FORK, kill_while_drawing, race

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")


@contextlib.contextmanager
def connected(server, *, user="postgres", database="postgres"):
    with contextlib.closing(
        psycopg.connect(
            host=str(server.folder), user=user, dbname=database, autocommit=True
        )
    ) as connection:
        yield connection


@pytest.fixture
def sql(postgres):
    """Run statements as the superuser."""
    with connected(postgres) as connection:
        yield connection.execute


@pytest.fixture
def database(postgres, sql):
    """The name of an empty database."""
    name = f"d{time.time_ns()}"
    sql(f"CREATE DATABASE {name}")
    yield name
    sql(f"DROP DATABASE {name} WITH (FORCE)")


def name_of(url):
    return url.rpartition("=")[2]


class TestLedger:
    def test_reopened_it_remembers_everything(self, url):
        ledger = Ledger(url, cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0), mechanism="first", run="Ünï\0\ud800")
        again = Ledger(url)
        assert again.cap == GDP(1.0)
        assert (again.entries, again.id) == (ledger.entries, ledger.id)
        assert again.digest == ledger.digest
        again.charge(GaussianEvent(2.0))
        assert len(ledger) == 2
        assert ledger.path == url

    def test_a_misspelled_name_is_no_new_ledger(self, url):
        with pytest.raises(LedgerError, match=r"There is no ledger .* check its name"):
            Ledger(url)
        assert not postgres_store.PostgresStore.exists(url)
        ledger = Ledger(url, create=True)
        assert ledger.cap is None
        assert Ledger(url).id == ledger.id

    def test_another_cap_or_filter_is_refused(self, url):
        Ledger(url, cap=GDP(1.0))
        with pytest.raises(LedgerError, match=r"GDP\(mu=1\).*GDP\(mu=2\)"):
            Ledger(url, cap=GDP(2.0))
        with pytest.raises(LedgerError, match="filter"):
            Ledger(url, filter="gdp")

    def test_ledgers_and_databases_are_apart(self, postgres, url, database):
        first = Ledger(url, PureDP(1.0))
        first.charge(PureEvent(1.0))
        others = [Ledger(url + "-b", PureDP(2.0))]
        elsewhere = postgres.url(name_of(url), database=database)
        others.append(Ledger(elsewhere, PureDP(3.0)))
        for number, other in enumerate(others, 2):
            assert (len(other), other.cap) == (0, PureDP(float(number)))
            other.charge(PureEvent(1.5))
        assert len(first) == 1
        with pytest.raises(BudgetExceededError):
            first.charge(PureEvent(0.1))

    def test_a_pickle_is_a_handle_on_the_same_ledger_or_none(self, url, sql):
        ledger = Ledger(url, cap=GDP(1.0))
        pickled = pickle.dumps(ledger)
        pickle.loads(pickled).charge(GaussianEvent(2.0))
        assert len(ledger) == 1
        cut(sql, url, 0)
        with unprotected(sql):
            sql("DELETE FROM botorch_dp.headers WHERE name = %s", [name_of(url)])
        with pytest.raises(LedgerError, match="not there any more"):
            pickle.loads(pickled)
        assert not postgres_store.PostgresStore.exists(url)
        Ledger(url, cap=GDP(1.0))
        with pytest.raises(LedgerError, match="replaced"):
            pickle.loads(pickled)

    def test_clocks_decide_nothing(self, url, monkeypatch):
        # The machines of a company disagree about the time; rows have numbers.
        ledger = Ledger(url, PureDP(1.0))
        for hour in (5, 3, 4):
            monkeypatch.setattr(ledger_module, "_now", lambda h=hour: f"0{h}:00")
            ledger.charge(PureEvent(0.1 * hour - 0.1))
        assert [entry.time for entry in Ledger(url).entries] == [
            "05:00",
            "03:00",
            "04:00",
        ]
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.2))


class TestAddress:
    @pytest.mark.parametrize(
        "bad",
        [
            "postgresql://host/db",
            "postgresql://host/db?ledger=",
            "postgresql://host/db?ledger=a&ledger=b",
            "postgres://host/db?sslmode=require",
        ],
    )
    def test_without_the_name_of_a_ledger(self, bad):
        with pytest.raises(InvalidArgumentError, match="must name one ledger"):
            Ledger(bad)

    @pytest.mark.parametrize(
        "bad",
        [
            "postgresql://user:sEcret@host/db?ledger=a",
            "postgresql://user@host/db?password=sEcret&ledger=a",
            "postgresql://host/db?ledger=a&sslpassword=sEcret",
            "postgresql://user:sEcret/x@host/db?ledger=a",
            "postgresql://sEcret:1234/x@host/db?ledger=a",
            "postgresql://user:sEcret?x@host/db?ledger=a",
            "postgresql://host/db?sEcret&ledger=a",
        ],
    )
    def test_a_password_is_refused_and_not_repeated(self, bad):
        with pytest.raises(InvalidArgumentError) as caught:
            Ledger(bad)
        error = caught.value
        while error is not None:
            assert "sEcret" not in str(error)
            error = error.__cause__ or error.__context__

    def test_a_password_of_the_environment_is_used_and_not_shown(
        self, postgres, sql, url, monkeypatch
    ):
        sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'sEcret'")
        rules = postgres.data / "pg_hba.conf"
        before = rules.read_text()
        guarded = url.replace("postgres@", "guarded@")
        try:
            rules.write_text("local all guarded scram-sha-256\n" + before)
            sql("SELECT pg_reload_conf()")
            time.sleep(0.2)
            monkeypatch.setenv("PGPASSWORD", "wrOng")
            with pytest.raises(LedgerError, match="password") as caught:
                Ledger(guarded)
            assert "wrOng" not in str(caught.value)
            monkeypatch.setenv("PGPASSWORD", "sEcret")
            ledger = Ledger(guarded, PureDP(1.0))
            ledger.charge(PureEvent(0.1))
            assert "sEcret" not in f"{ledger.path}{ledger}{vars(ledger._store)}"
            assert b"sEcret" not in pickle.dumps(ledger)
        finally:
            rules.write_text(before)
            sql("SELECT pg_reload_conf()")
            sql("DROP ROLE guarded")

    def test_without_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(MissingExtraError, match=r"botorch-dp\[postgres\]"):
            Ledger("postgresql://host/db?ledger=a")

    def test_no_server(self, tmp_path):
        with pytest.raises(LedgerError, match="cannot be used: connection"):
            Ledger(f"postgresql://u@/db?host={tmp_path}&ledger=a")

    def test_both_names_of_the_protocol(self, url):
        Ledger(url, PureDP(1.0)).charge(PureEvent(0.1))
        assert len(Ledger(url.replace("postgresql:", "postgres:"))) == 1


@contextlib.contextmanager
def unprotected(sql):
    """Disable all triggers, as a superuser can."""
    tables = ("rows", "headers", "ends")
    for table in tables:
        sql(f"ALTER TABLE botorch_dp.{table} DISABLE TRIGGER ALL")
    try:
        yield
    finally:
        for table in tables:
            sql(f"ALTER TABLE botorch_dp.{table} ENABLE TRIGGER ALL")
        for name in postgres_store.schema.TRIGGERS:
            table = postgres_store.schema.table_of(name)
            sql(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")


def cut(sql, url, last):
    """Remove all rows after one, and every trace of them, as a superuser can."""
    with unprotected(sql):
        name = name_of(url)
        sql(
            "DELETE FROM botorch_dp.rows WHERE ledger = %s AND number > %s",
            [name, last],
        )
        if last:
            sql(
                "UPDATE botorch_dp.ends SET number = %s WHERE ledger = %s", [last, name]
            )
        else:
            sql("DELETE FROM botorch_dp.ends WHERE ledger = %s", [name])


class TestAppendOnly:
    @pytest.mark.parametrize("replicating", [False, True])
    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM botorch_dp.rows",
            "UPDATE botorch_dp.rows SET text = '{}'",
            "TRUNCATE botorch_dp.rows",
            "DELETE FROM botorch_dp.headers",
            "UPDATE botorch_dp.headers SET text = '{}'",
            "TRUNCATE botorch_dp.headers CASCADE",
            "DELETE FROM botorch_dp.ends",
            "UPDATE botorch_dp.ends SET number = number - 1",
            "UPDATE botorch_dp.ends SET ledger = ledger, number = number",
            "TRUNCATE botorch_dp.ends",
            "INSERT INTO botorch_dp.headers SELECT * FROM botorch_dp.headers "
            "ON CONFLICT (name) DO UPDATE SET text = '{}'",
        ],
    )
    def test_even_for_a_superuser(self, url, sql, statement, replicating):
        ledger = Ledger(url, PureDP(1.0))
        ledger.charge(PureEvent(0.5))
        if replicating:  # ordinary triggers are skipped then
            sql("SET session_replication_role = replica")
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            sql(statement)
        assert len(ledger) == 1

    def test_the_server_accepts_the_next_row_only(self, url, sql):
        ledger = Ledger(url, PureDP(1.0))
        ledger.charge(PureEvent(0.5))
        row = ledger.entries[0].to_row()
        head = ledger._book.head
        insert = "INSERT INTO botorch_dp.rows VALUES (%s, %s, %s, %s)"
        name = name_of(url)
        for number, text, digest in (
            (3, row, head.then(row).digest),
            (1, row, head.digest),
            (2, row, head.digest),
            (2, row + " ", head.then(row).digest),
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="continue"):
                sql(insert, [name, number, text, digest])
        with pytest.raises(psycopg.errors.RaiseException, match="continue"):
            sql(insert, ["nothing", 1, row, start("").then(row).digest])
        sql(insert, [name, 2, row, head.then(row).digest])
        assert len(ledger) == 2

    def test_without_triggers_it_does_not_open(self, url, sql):
        ledger = Ledger(url, PureDP(1.0))
        for name in postgres_store.schema.TRIGGERS:
            table = postgres_store.schema.table_of(name)
            for how in (f"DISABLE TRIGGER {name}", f"ENABLE REPLICA TRIGGER {name}"):
                sql(f"ALTER TABLE {table} {how}")
                with pytest.raises(LedgerError, match="only 4 of the 5 triggers"):
                    Ledger(url)
            sql(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")
        assert Ledger(url).id == ledger.id

    @pytest.mark.parametrize(
        "name", [*postgres_store.schema.FUNCTIONS, "a trigger with a condition"]
    )
    def test_with_other_functions_it_does_not_open(self, url, sql, name):
        ledger = Ledger(url, PureDP(1.0))
        schema = postgres_store.schema
        replace = (
            f"CREATE OR REPLACE FUNCTION botorch_dp.{name}() RETURNS trigger "
            "LANGUAGE plpgsql SECURITY DEFINER "
            "SET search_path = pg_catalog, pg_temp AS $${}$$"
        )
        if name in schema.FUNCTIONS:
            sql(replace.format("BEGIN RETURN NULL; END"))
        else:
            sql("DROP TRIGGER ends_grow ON botorch_dp.ends")
            sql(
                "CREATE TRIGGER ends_grow BEFORE UPDATE ON botorch_dp.ends "
                "FOR EACH ROW WHEN (false) EXECUTE FUNCTION botorch_dp.check_end()"
            )
            sql("ALTER TABLE botorch_dp.ends ENABLE ALWAYS TRIGGER ends_grow")
        try:
            with pytest.raises(LedgerError, match="is not protected"):
                Ledger(url)
        finally:
            if name in schema.FUNCTIONS:
                sql(replace.format(schema.FUNCTIONS[name]))
            else:
                sql("DROP TRIGGER ends_grow ON botorch_dp.ends")
                sql(schema._create_trigger("ends_grow"))
        assert Ledger(url).id == ledger.id

    def test_a_schema_of_another_program(self, postgres, database):
        with connected(postgres, database=database) as connection:
            connection.execute("CREATE SCHEMA botorch_dp")
        with pytest.raises(LedgerError, match="cannot be used"):
            Ledger(postgres.url(database=database), PureDP(1.0))


class TestTampering:
    """A superuser who disables the triggers is found by the chain."""

    @pytest.fixture
    def ledger(self, url):
        ledger = Ledger(url, PureDP(9.0))
        for _ in range(5):
            ledger.charge(PureEvent(1.0))
        return ledger

    @pytest.mark.parametrize(
        ("statement", "match"),
        [
            (
                "UPDATE botorch_dp.rows SET text = replace(text, '1.0', '0.1') "
                "WHERE ledger = %s AND number = 2",
                r"Row 2 .* digest",
            ),
            (
                "UPDATE botorch_dp.rows SET digest = upper(digest) "
                "WHERE ledger = %s AND number = 5",
                r"Row 5 .* digest",
            ),
            (
                "DELETE FROM botorch_dp.rows WHERE ledger = %s AND number = 3",
                "Row 3 of the ledger is lost",
            ),
            (
                "INSERT INTO botorch_dp.rows VALUES (%s, -1, '{}', 'x')",
                "a row with the number -1",
            ),
            (
                "UPDATE botorch_dp.rows SET number = number + 10 "
                "WHERE ledger = %s AND number > 2",
                "lost",
            ),
            (
                "UPDATE botorch_dp.headers SET text = replace(text, '9.0', '99.0') "
                "WHERE name = %s",
                r"Row 1 .* digest",
            ),
            (
                "UPDATE botorch_dp.headers SET name = name || '-old' WHERE name = %s",
                None,
            ),
        ],
    )
    def test_a_new_process_notices(self, ledger, sql, statement, match):
        with unprotected(sql):
            sql(statement, [name_of(ledger.path)])
        if match is not None:
            with pytest.raises(LedgerError, match=match):
                Ledger(ledger.path)
        else:  # renamed: a process that has used it does not go on with another
            with pytest.raises(LedgerError, match="not there any more"):
                ledger.charge(PureEvent(1.0))
            with pytest.raises(LedgerError, match="not there any more"):
                _ = ledger.entries

    @pytest.mark.parametrize("last", [0, 2, 4])
    def test_a_new_process_notices_a_cut(self, ledger, sql, last):
        with unprotected(sql):
            sql(
                "DELETE FROM botorch_dp.rows WHERE ledger = %s AND number > %s",
                [name_of(ledger.path), last],
            )
        with pytest.raises(LedgerError, match="and 5 were written"):
            Ledger(ledger.path)

    @pytest.mark.parametrize("last", [0, 4])
    def test_a_running_process_notices_an_older_copy(self, ledger, sql, last):
        cut(sql, ledger.path, last)
        Ledger(ledger.path).charge_many([(PureEvent(0.5), 1)] * (5 - last))
        for use in (lambda: ledger.charge(PureEvent(0.1)), lambda: ledger.digest):
            with pytest.raises(LedgerError, match="replaced"):
                use()

    def test_an_empty_ledger_replaced_by_another(self, url, sql):
        ledger = Ledger(url, PureDP(1.0))
        with unprotected(sql):
            sql("DELETE FROM botorch_dp.headers WHERE name = %s", [name_of(url)])
        Ledger(url, PureDP(10.0))
        with pytest.raises(LedgerError, match="replaced"):
            ledger.charge(PureEvent(5.0))

    def test_a_row_of_something_else(self, ledger, sql):
        head = ledger._book.head.then("{}")
        sql(
            "INSERT INTO botorch_dp.rows VALUES (%s, %s, '{}', %s)",
            [name_of(ledger.path), head.number, head.digest],
        )
        with pytest.raises(LedgerError, match="damaged"):
            ledger.charge(PureEvent(0.1))


class TestTransactions:
    def test_others_wait_from_before_the_first_read_of_a_charge(self, url, monkeypatch):
        ledger, other = Ledger(url, PureDP(1.0)), Ledger(url)
        short = postgres_store._BEGIN.replace("'120s'", "'50ms'")
        with ledger._store.transaction():
            monkeypatch.setattr(postgres_store, "_BEGIN", short)
            with pytest.raises(LedgerError, match="lock timeout"):
                other.charge(PureEvent(0.1))
            another = Ledger(url + "-other", PureDP(1.0))
            another.charge(PureEvent(0.1))  # has a lock of its own
            assert len(other) == 0  # readers do not wait
        other.charge(PureEvent(0.1))
        assert len(ledger) == 1

    def test_a_charge_sees_what_was_committed_while_it_waited(
        self, postgres, sql, database
    ):
        # With the snapshots of the server's default it would not.
        sql(
            f"ALTER DATABASE {database} SET default_transaction_isolation "
            "TO 'repeatable read'"
        )
        ledger = Ledger(postgres.url(database=database), PureDP(1.0))
        row = Ledger().charge(PureEvent(0.5)).to_row()
        waiting = threading.Thread(
            target=lambda: Ledger(ledger.path).charge(PureEvent(0.5))
        )
        with ledger._store.transaction() as transaction:
            head = ledger._book.head
            waiting.start()
            give_up = time.monotonic() + 30
            with connected(postgres) as connection:
                while not connection.execute(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted"
                ).fetchone()[0]:
                    assert time.monotonic() < give_up
                    time.sleep(0.01)
            transaction.append([row], head)
        waiting.join()
        assert len(ledger) == 2
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.1))

    def test_every_commit_waits_for_the_disk(self, postgres, sql, database):
        sql(f"ALTER DATABASE {database} SET synchronous_commit TO off")
        ledger = Ledger(postgres.url(database=database), PureDP(1.0))
        with ledger._store.transaction() as transaction:
            connection = transaction._connection
            for name, value in (
                ("synchronous_commit", "on"),
                ("transaction_isolation", "read committed"),
                ("lock_timeout", "2min"),
            ):
                assert connection.execute(f"SHOW {name}").fetchone() == (value,)

    def test_a_server_without_fsync_is_refused(self, url, sql):
        ledger = Ledger(url, PureDP(1.0))
        try:
            sql("ALTER SYSTEM SET fsync TO off")
            sql("SELECT pg_reload_conf()")
            time.sleep(0.2)
            with pytest.raises(LedgerError, match="fsync=off"):
                ledger.charge(PureEvent(0.1))
        finally:
            sql("ALTER SYSTEM RESET fsync")
            sql("SELECT pg_reload_conf()")
            time.sleep(0.2)
        ledger.charge(PureEvent(0.1))
        assert len(ledger) == 1

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_a_batch_that_fails_half_way_leaves_no_trace(self, url, monkeypatch, error):
        ledger = Ledger(url, PureDP(1.0))
        append = postgres_store.PostgresTransaction.append

        def failing(self, rows, head):
            append(self, rows[:2], head)
            raise error("stop")

        with monkeypatch.context() as patched:
            patched.setattr(postgres_store.PostgresTransaction, "append", failing)
            with pytest.raises(error):
                ledger.charge_many([(PureEvent(0.25), 1)] * 4)
        assert len(ledger) == 0
        assert len(ledger.charge_many([(PureEvent(0.25), 1)] * 4)) == 4

    def test_a_transaction_that_the_server_rolled_back(self, url):
        ledger = Ledger(url, PureDP(1.0))

        def fail_silently():
            with (
                ledger._store.transaction() as transaction,
                contextlib.suppress(psycopg.Error),
            ):
                transaction._connection.execute("SELECT 1 / 0")

        with pytest.raises(LedgerError, match="did not record the charge: ROLLBACK"):
            fail_silently()


class Proxy:
    """Passes a connection on to the server, and cuts it at a COMMIT."""

    def __init__(self, server):
        self.folder = Path(tempfile.mkdtemp(prefix="px-"))
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.folder / ".s.PGSQL.5432"))
        self._server.listen()
        self.cut = None  # "before" or "after" the server gets the next COMMIT
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(
                    target=self._serve, args=(client,), daemon=True
                ).start()

    def _serve(self, client):
        with socket.socket(socket.AF_UNIX) as server, client:
            server.connect(self._target)
            replies = threading.Thread(target=self._reply, args=(server, client))
            replies.start()
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    if self.cut and b"COMMIT\0" in data:
                        cut, self.cut = self.cut, None
                        self._quiet = True
                        if cut == "after":
                            server.sendall(data)
                            time.sleep(0.3)
                        break
                    server.sendall(data)
            for one in (server, client):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            replies.join()

    def _reply(self, server, client):
        self._quiet = False
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._quiet:
                    return
                client.sendall(data)

    def close(self):
        self._server.close()


class TestLostConnections:
    @pytest.mark.parametrize("cut", ["before", "after"])
    def test_during_a_commit(self, postgres, url, cut):
        proxy = Proxy(postgres)
        through = url.replace(str(postgres.folder), str(proxy.folder))
        ledger = Ledger(through, PureDP(1.0))
        proxy.cut = cut
        with pytest.raises(LedgerError, match="may have been recorded"):
            ledger.charge(PureEvent(0.6))
        recorded = int(cut == "after")
        assert len(Ledger(url)) == recorded
        # The next operation counts it if it was recorded.
        if recorded:
            with pytest.raises(BudgetExceededError):
                ledger.charge(PureEvent(0.6))
        else:
            ledger.charge(PureEvent(0.6))
        assert len(ledger) == 1
        proxy.close()

    @pytest.mark.parametrize("cut", ["before", "after"])
    def test_nothing_is_drawn(self, postgres, url, cut):
        proxy = Proxy(postgres)
        through = url.replace(str(postgres.folder), str(proxy.folder))
        ledger = Ledger(through, GDP(5.0))
        mechanism = GaussianMechanism(GDP(1.0), sensitivity=1.0, generator=seeded(1))
        value = torch.zeros(2, dtype=torch.float64, device=DEVICE)
        drawn, add_gaussian = [], mechanism.noise_source.add_gaussian
        mechanism.noise_source.add_gaussian = lambda *args: (
            drawn.append(1) or add_gaussian(*args)
        )
        proxy.cut = cut
        with pytest.raises(LedgerError):
            mechanism.release(value, ledger=ledger)
        assert not drawn
        mechanism.release(value, ledger=ledger)
        assert len(drawn) == 1
        assert len(ledger) == 1 + (cut == "after")
        proxy.close()

    def test_in_a_transaction(self, url, sql, monkeypatch):
        ledger = Ledger(url, PureDP(1.0))
        append = postgres_store.PostgresTransaction.append

        def terminated(self, rows, head):
            after = append(self, rows, head)
            sql(
                "SELECT pg_terminate_backend(%s, 5000)",
                [self._connection.info.backend_pid],
            )
            return after

        with monkeypatch.context() as patched:
            patched.setattr(postgres_store.PostgresTransaction, "append", terminated)
            with pytest.raises(LedgerError, match=r"terminat|lost"):
                ledger.charge(PureEvent(0.6))
        assert len(ledger) == 0
        ledger.charge(PureEvent(0.6))
        assert len(ledger) == 1


def note_draws(url, drawn_path, pause=0.0):
    """Charge, and note every draw in a file after it happened, until refused."""
    drawn = os.open(drawn_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ledger = Ledger(url)
    with contextlib.suppress(BudgetExceededError):
        while True:
            try:
                ledger.charge(PureEvent(0.001))
            except LedgerError:
                time.sleep(0.02)  # the server is away; nothing is drawn
                continue
            time.sleep(pause)
            os.write(drawn, b"x")


class TestProcesses:
    def test_eight_processes_never_overspend(self, postgres, database):
        # All create the tables and the ledger, too.
        url = postgres.url(database=database)
        barrier, results = FORK.Barrier(8), FORK.Queue()
        processes = [
            FORK.Process(target=race, args=(url, barrier, results)) for _ in range(8)
        ]
        for process in processes:
            process.start()
        counts = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        ledger = Ledger(url)
        assert sum(counts) == len(ledger) == 100
        assert [entry.number for entry in ledger.entries] == list(range(1, 101))
        assert min(counts) < 50 < 8 * max(counts)

    def test_a_client_killed_between_charge_and_draw_has_paid(self, url, tmp_path):
        Ledger(url, PureDP(100.0))
        drawn_path = tmp_path / "drawn"
        drawn_path.touch()
        moments = random.Random(5)
        for kills in range(1, 6):
            until = drawn_path.stat().st_size + moments.randrange(12)
            drawn = kill_while_drawing(
                note_draws,
                (url, drawn_path, 0.005),
                drawn_path,
                until,
                moments.uniform(0.0, 0.02),
            )
            # At most the release under way was charged and not drawn.
            assert drawn <= len(Ledger(url)) <= drawn + kills
        assert drawn > 10

    def test_a_killed_server_never_under_reports(self, url, postgres, tmp_path):
        # 300 charges fit. Two clients go on while the server is killed three times.
        Ledger(url, PureDP(0.3))
        paths = [tmp_path / "one", tmp_path / "two"]
        clients = [FORK.Process(target=note_draws, args=(url, path)) for path in paths]
        for client in clients:
            client.start()
        for moment in (40, 110, 180):
            give_up = time.monotonic() + 30
            while sum(p.stat().st_size for p in paths if p.exists()) < moment:
                assert time.monotonic() < give_up
                time.sleep(0.001)
            postgres.kill()
            postgres.start()
        for client in clients:
            client.join(timeout=60)
            assert client.exitcode == 0
        drawn = sum(path.stat().st_size for path in paths)
        # Each kill wastes at most the charge under way of each client.
        assert 300 - 3 * 2 <= drawn <= len(Ledger(url)) == 300

    def test_a_ledger_survives_a_fork(self, url):
        ledger = Ledger(url, create=True)
        ledger.charge(GaussianEvent(1.0))
        process = FORK.Process(target=ledger.charge, args=(GaussianEvent(1.0),))
        process.start()
        process.join()
        assert process.exitcode == 0
        ledger.charge(GaussianEvent(1.0))
        assert len(ledger) == 3


@pytest.fixture
def roles(postgres, url, sql):
    """A ledger, and the names of users that may charge it, read it, or nothing."""
    ledger = Ledger(url, PureDP(1.0))
    ledger.charge(PureEvent(0.1))
    grant_roles(url)
    grant_roles(url)  # nothing happens again
    for user, role in (("teller", "charge"), ("officer", "read"), ("nosy", None)):
        sql(f"CREATE ROLE {user} LOGIN")
        if role:
            sql(f"GRANT botorch_dp_{role} TO {user}")
    yield {
        user: url.replace("postgres@", f"{user}@")
        for user in ("teller", "officer", "nosy")
    }
    for user in ("teller", "officer", "nosy"):
        sql(f"DROP ROLE {user}")


class TestRoles:
    def test_who_may_charge(self, roles):
        ledger = Ledger(roles["teller"])
        ledger.charge(PureEvent(0.2))
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.8))
        assert len(ledger) == 2

    def test_who_may_read(self, roles):
        ledger = Ledger(roles["officer"])
        assert len(ledger) == 1
        with pytest.raises(LedgerError, match="a role needs botorch_dp_charge"):
            ledger.charge(PureEvent(0.1))
        assert len(ledger) == 1

    def test_who_may_do_nothing(self, roles):
        with pytest.raises(LedgerError, match="permission denied"):
            Ledger(roles["nosy"])

    @pytest.mark.parametrize("user", ["teller", "officer"])
    def test_only_the_owner_creates_ledgers(self, roles, user):
        with pytest.raises(LedgerError, match="Only the owner"):
            Ledger(roles[user] + "-new", PureDP(99.0))
        with pytest.raises(LedgerError, match="no ledger"):
            grant_roles(roles[user] + "-new")

    @pytest.mark.parametrize("user", ["teller", "officer"])
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE botorch_dp.rows SET text = '{}'",
            "DELETE FROM botorch_dp.rows",
            "TRUNCATE botorch_dp.rows",
            "UPDATE botorch_dp.headers SET text = '{}'",
            "INSERT INTO botorch_dp.headers VALUES ('a', 'b')",
            "INSERT INTO botorch_dp.ends VALUES ('a', 9)",
            "UPDATE botorch_dp.ends SET number = number + 1",
            "ALTER TABLE botorch_dp.rows DISABLE TRIGGER ALL",
            "DROP TRIGGER rows_append_only ON botorch_dp.rows",
            "DROP TABLE botorch_dp.rows",
            "SET session_replication_role = replica",
            "CREATE TABLE botorch_dp.more (id int)",
            "CREATE OR REPLACE FUNCTION botorch_dp.check_row() RETURNS trigger "
            "LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        ],
    )
    def test_nobody_else_may_change_anything(self, postgres, roles, user, statement):
        with (
            connected(postgres, user=user) as connection,
            pytest.raises(
                psycopg.errors.InsufficientPrivilege,
                match=r"permission denied|must be owner",
            ),
        ):
            connection.execute(statement)

    def test_a_reader_cannot_append_or_lock(self, postgres, roles, url):
        with connected(postgres, user="officer") as connection:
            for statement in (
                "INSERT INTO botorch_dp.rows VALUES ('a', 1, 'b', 'c')",
                "SELECT botorch_dp.lock_ledger('a')",
                "SELECT * FROM botorch_dp.headers FOR UPDATE",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)


def test_plans_and_filters(url):
    ledger = Ledger(url, ApproxDP(1.0, 1e-5))
    ledger.reserve([(GaussianEvent(6.0), 1), (PureEvent(0.3), 1)])
    again = Ledger(url)
    assert (again.plan, again.filter) == (ledger.plan, ledger.filter)
    assert again.plan is not None
