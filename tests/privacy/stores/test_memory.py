"""Rows in memory."""

import pytest

from botorch_dp import Ledger
from botorch_dp.exceptions import LedgerError
from botorch_dp.privacy import GaussianEvent
from botorch_dp.privacy.stores.chain import start
from botorch_dp.privacy.stores.memory import MemoryStore
from tests.privacy.cases import FORK


class TestTransaction:
    def test_all_rows_or_none(self):
        store, head = MemoryStore("header"), start("header")
        with store.transaction() as transaction:
            assert transaction.append(["a"], head) == head.then("a")

        def fail():
            with store.transaction() as lost:
                lost.append(["b", "c"], head.then("a"))
                raise RuntimeError("disk full")

        with pytest.raises(RuntimeError, match="full"):
            fail()
        assert store.read_after(head) == (["a"], head.then("a"))
        assert store.read_after(head.then("a")) == ([], head.then("a"))


class TestProcesses:
    def test_a_ledger_in_memory_refuses_a_fork(self):
        ledger = Ledger()
        answer = FORK.Queue()

        def child():
            try:
                ledger.charge(GaussianEvent(1.0))
                answer.put("charged")
            except LedgerError as error:
                answer.put(str(error))

        process = FORK.Process(target=child)
        process.start()
        assert "give it a path" in answer.get(timeout=60)
        process.join()
        assert len(ledger) == 0
