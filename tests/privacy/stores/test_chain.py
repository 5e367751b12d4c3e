"""The chain of digests over the rows of a ledger."""

from botorch_dp.privacy.stores.chain import start


class TestHead:
    def test_a_digest_is_of_all_rows_before(self):
        first, other = start("header").then("a"), start("header").then("b")
        assert first.then("c").digest != other.then("c").digest
        assert start("header").then("a").digest != start("other").then("a").digest

    def test_numbers_count_rows(self):
        assert start("header").number == 0
        assert start("header").then("a").then("b").number == 2
