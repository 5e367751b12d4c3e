"""The chain of digests over the rows of a ledger."""

import hashlib

from botorch_dp.privacy.stores.chain import start


class TestHead:
    def test_a_digest_is_of_all_rows_before(self):
        first, other = start("header").then("a"), start("header").then("b")
        assert first.then("c").digest != other.then("c").digest
        assert start("header").then("a").digest != start("other").then("a").digest

    def test_numbers_count_rows(self):
        assert start("header").number == 0
        assert start("header").then("a").then("b").number == 2

    def test_several_rows_at_once(self):
        head = start("header").then("a")
        one_by_one = head.then("b").then("c")
        assert head.then("b", "c") == one_by_one
        assert head.digests(["b", "c"]) == [head.then("b").digest, one_by_one.digest]
        assert head.moved(head.digests(["b", "c"])) == one_by_one
        assert head.then() == head

    def test_the_format_of_files_stays(self):
        # sha256("header"), and sha256 of that in hexadecimal, a line feed and "a".
        first = hashlib.sha256(b"header").hexdigest()
        second = hashlib.sha256(first.encode() + b"\na").hexdigest()
        assert start("header").then("a") == (1, second)
