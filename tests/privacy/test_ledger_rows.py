"""Reading rows: the fast way reads what the plain way reads."""

import json
import random

import pytest

from botorch_dp.privacy import ApproxEvent, GaussianEvent, LaplaceEvent, PrivacyEvent
from botorch_dp.privacy.entries import LedgerEntry, LedgerPlan
from botorch_dp.privacy.ledger_rows import read_row
from tests.privacy.cases import EVENTS

GAUSSIAN = GaussianEvent(2.0)
LABELS = {"count": 3, "mechanism": "m", "adjacency": "zero_out", "noise": "seeded"}


def plainly(row):
    """Read a charge with the JSON of the whole row."""
    state = json.loads(row)
    event = PrivacyEvent.from_dict(state["event"])
    return LedgerEntry(number=7, **{**state, "event": event})


def entry(event=GAUSSIAN, **changes):
    labels = {**LABELS, "adjacency": event.adjacencies[0], **changes}
    return LedgerEntry(number=7, time="now", event=event, **labels)


class TestReading:
    @pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
    def test_every_event(self, event):
        charge = entry(event)
        assert read_row(charge.to_row(), number=7) == charge

    @pytest.mark.parametrize(
        "text",
        ["", "é\n\t", '"', "\\", "}", '}, "count": 1', '", "event": {}, "', "\ud800"],
    )
    @pytest.mark.parametrize("name", ["time", "mechanism", "run", "condition"])
    def test_any_text(self, name, text):
        charge = LedgerEntry(
            **{"number": 7, "time": "", "event": ApproxEvent(1.0, 0.1), **LABELS}
            | {name: text}
        )
        assert read_row(charge.to_row(), number=7) == charge

    def test_a_plan(self):
        releases = ((GaussianEvent(2.0), 3), (LaplaceEvent(2.0), 1))
        plan = LedgerPlan("now", releases, "replace_one", "record", "a", "renyi", True)
        assert read_row(plan.to_row(), number=7) == plan

    def test_the_format_of_files_stays(self):
        row = (
            '{"time": "2026-01-01", "event": {"type": "GaussianEvent", '
            '"noise_multiplier": 2.0}, "count": 3, "mechanism": "m", "adjacency": '
            '"replace_one", "noise": "seeded", "unit": "record", "run": "", '
            '"condition": null}'
        )
        charge = read_row(row, number=7)
        assert charge == plainly(row)
        assert charge.to_row() == row
        spaced = json.dumps(json.loads(row), indent=1, sort_keys=True)
        assert read_row(spaced, number=7) == charge

    def test_rows_without_later_fields(self):
        row = entry().to_row().replace(', "unit": "record", "run": ""', "")
        assert read_row(row, number=7) == entry()

    def test_charges_do_not_share_what_is_their_own(self):
        first = read_row(entry().to_row(), number=1)
        second = read_row(entry(GaussianEvent(3.0)).to_row(), number=2)
        assert (first.number, first.event) == (1, GaussianEvent(2.0))
        assert (second.number, second.event) == (2, GaussianEvent(3.0))


class TestRefusing:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"count": 3', '"count": 0'),
            ('"count": 3', '"count": true'),
            ('"count": 3', '"count": 3.0'),
            ('"count": 3', f'"count": {2**53 + 1}'),
            ('"seeded"', '"numpy"'),
            ('"record"', '"row"'),
            ('"m"', "3"),
            ("null", "3"),
            ("null}", "null"),
            ("null}", "null} {}"),
            ("null}", 'null, "more": 1}'),
            ("null}", 'null, "time": "then"}'),
            ("null}", 'null, "event": {}}'),
            ('"zero_out"', '"swap"'),
            ('"zero_out"', '["zero_out"]'),
            ('"time": "now"', '"time": "\n"'),
            ('"time": "now"', '"time": 3'),
            ("2.0", "NaN"),
            ("2.0", "-2.0"),
            ("2.0", "1e400"),
            ("2.0", '2.0, "more": 1'),
            ("GaussianEvent", "PrivacyEvent"),
            ("GaussianEvent", "Ledger"),
            ('{"type": "GaussianEvent", "noise_multiplier": 2.0}', "[]"),
        ],
    )
    def test_what_no_ledger_writes(self, old, new):
        row = entry(adjacency="zero_out").to_row()
        assert row.count(old) == 1
        with pytest.raises((KeyError, TypeError, ValueError)):
            read_row(row.replace(old, new), number=7)

    def test_an_event_for_another_adjacency(self):
        # The other fields and the event are valid, each for itself.
        sampled = next(event for event in EVENTS if len(event.adjacencies) == 1)
        row = entry(sampled).to_row().replace('"replace_one"', '"zero_out"')
        read_row(entry(adjacency="zero_out").to_row(), number=7)
        with pytest.raises(ValueError, match="adjacency"):
            read_row(row, number=7)

    def test_random_edits_are_read_as_plainly_or_refused(self):
        choices, read = random.Random(1), 0
        alphabet = '{}[]",: \\\n0123456789.eE+-atrunl'
        for _ in range(3000):
            row = entry(choices.choice(EVENTS[:6])).to_row()
            place = choices.randrange(len(row))
            length = choices.choice([0, 1, 1, 4])
            row = row[:place] + choices.choice(alphabet) + row[place + length :]
            try:
                expected = plainly(row)
            except (KeyError, TypeError, ValueError):
                with pytest.raises((KeyError, TypeError, ValueError)):
                    read_row(row, number=7)
            else:
                assert read_row(row, number=7) == expected
                read += 1
        assert read > 100
