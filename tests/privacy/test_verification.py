"""Certificates of parts of a ledger: they verify, and edits of them are found."""

import contextlib
import json

import pytest
import torch

from botorch_dp import DPGIBO, GDP, Certificate, Ledger, PureDP
from botorch_dp.privacy import GaussianEvent, PureEvent
from botorch_dp.privacy.certificate import WORST_CASE
from botorch_dp.privacy.partitions import DISJOINT
from botorch_dp.privacy.stores.postgres_schema import TRIGGERS, table_of
from tests.devices import DEVICE
from tests.privacy.test_tampering import forged

KEY = b"a secret of 16 bytes or more"


@pytest.fixture
def ledger(make_ledger):
    """A ledger with common charges, two partitions, and a team in one of them."""
    ledger = make_ledger(PureDP(2.0))
    ledger.charge(PureEvent(0.25), mechanism="common")
    ledger.partition("north").charge(PureEvent(0.5), mechanism="north")
    team = ledger.partition("south").budget("ads", PureDP(1.0))
    team.charge(PureEvent(0.75), mechanism="south")
    return ledger


@pytest.fixture
def north(ledger):
    return Certificate.from_ledger(ledger.partition("north"))


class TestPartitions:
    def test_the_whole_ledger_composes_all_of_them(self, ledger):
        certificate = Certificate.from_ledger(ledger)
        assert certificate.partition == ""
        assert certificate.has_partitions
        assert certificate.num_releases == 3
        assert certificate.pure_epsilon == pytest.approx(1.5)
        assert certificate.counted.amount == pytest.approx(1.0)  # of a record in south
        assert certificate.assumptions == (WORST_CASE,)
        found = certificate.verify(ledger)
        assert found.ok
        assert any("whether or not they are disjoint" in note for note in found.notes)

    def test_a_partition_counts_its_own_and_the_common_ones(self, ledger, north):
        assert north.partition == "north"
        assert north.pure_epsilon == pytest.approx(0.75)
        assert north.num_releases == 2
        assert [text for text in north.assumptions if DISJOINT in text]
        assert WORST_CASE not in north.assumptions
        assert north.sentences[0].startswith("Every record of the partition 'north'")
        assert north.sentences[1].startswith("If the assumptions below are true")

    def test_it_verifies_with_the_ledger_and_with_the_partition(self, ledger, north):
        read = Certificate.from_json(north.to_json())
        assert read == north
        for place in (ledger, ledger.partition("north"), ledger.budget("ads")):
            found = read.verify(place)
            assert found.ok, found
            assert any("'north'" in note for note in found.notes)

    def test_but_not_with_another_partition(self, ledger, north):
        found = north.verify(ledger.partition("south"))
        assert not found.ok
        assert "'north', and the ledger that was given" in found.findings[0]

    def test_that_of_the_whole_is_valid_for_each(self, ledger):
        assert Certificate.from_ledger(ledger).verify(ledger.partition("south")).ok

    def test_a_team_has_the_certificate_of_its_records(self, ledger):
        team = ledger.budget("ads")
        assert Certificate.from_ledger(team) == Certificate.from_ledger(ledger)
        assert Certificate.from_ledger(team).verify(team).ok
        south = ledger.partition("south")
        certificate = Certificate.from_ledger(south.budget("ads"))
        assert certificate == Certificate.from_ledger(south)
        assert certificate.verify(ledger).ok

    def test_later_charges_to_others_are_not_its_own(self, ledger, north):
        ledger.partition("south").charge(PureEvent(0.125))
        assert not any("since" in note for note in north.verify(ledger).notes)
        ledger.charge(PureEvent(0.125))
        assert any("1 more charge(s)" in note for note in north.verify(ledger).notes)

    def test_of_common_charges_alone(self):
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0))
        certificate = Certificate.from_ledger(ledger.partition("none yet"))
        assert not certificate.has_partitions
        assert certificate.verify(ledger).ok
        assert certificate.guarantee == GDP(0.5)


def test_a_run_certifies_its_partition():
    ledger = Ledger(cap=GDP(1.0))
    ledger.partition("south").charge(GaussianEvent(2.0))
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=DEVICE)
    optimizer = DPGIBO(
        bounds,
        50,
        GDP(0.5),
        num_steps=2,
        clip_norm=1.0,
        ledger=ledger.partition("north"),
    )
    result = optimizer.run(lambda X: X.T.expand(50, -1) ** 2, progress=False)
    certificate = result.certificate
    assert certificate.partition == "north"
    assert certificate.guarantee.mu == pytest.approx(0.5)
    assert certificate.verify(ledger).ok
    assert "of the partition &#x27;north&#x27;" in result._repr_html_()


class TestPersons:
    def test_a_person_has_a_pseudonym(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        for name, epsilon in (("Ada", 0.25), ("Bob", 0.5)):
            person = ledger.person(name, key=KEY)
            person.charge(PureEvent(epsilon), unit="person")
        certificate = Certificate.from_ledger(ledger.person("Ada", key=KEY))
        assert certificate.pure_epsilon == pytest.approx(0.25)
        assert "Ada" not in certificate.to_json()
        assert "Every person with all their records of the partition" in str(
            certificate
        )
        assert certificate.verify(ledger).ok
        assert not certificate.verify(ledger.person("Bob", key=KEY)).ok

    def test_the_words(self):
        ledger = Ledger()
        ledger.charge(PureEvent(0.25), unit="person")
        certificate = Certificate.from_ledger(ledger, parameters={"num_records": 5000})
        rows = dict(certificate.rows())
        assert rows["protects"] == "every person with all their records"
        assert rows["neighbours"].endswith("one person is replaced by any other")
        assert "contribution" not in rows
        assert "knows all other people" in certificate.sentences[0]
        assert "which of two possible sets of records" in certificate.sentences[1]
        assert set(certificate.epsilons) == {1e-5, 1e-7}  # below one over 5,000 rows
        entry = certificate.to_registry()["deployment"]["privacy_loss"]
        assert entry["privacy_unit"] == "Person-level"

    @pytest.mark.parametrize("name", ["num_persons", "num_records"])
    def test_deltas_are_below_one_over_their_number(self, name):
        ledger = Ledger()
        ledger.charge(GaussianEvent(4.0), unit="person")
        parameters = {"num_persons": 50, "num_records": 10**6} | {name: 10**6}
        parameters = parameters if name == "num_persons" else {name: 10**6}
        certificate = Certificate.from_ledger(ledger, parameters=parameters)
        assert set(certificate.epsilons) == {1e-7}


def drop_the_assumption(state):
    state["assumptions"] = ["none"]


def claim_the_worst_case(state):
    state["assumptions"] = [WORST_CASE]


def claim_both(state):
    state["assumptions"].append(WORST_CASE)


# Of the certificate of a partition. A careful forger then writes a new digest.
EDITS = {
    "another partition": lambda s: s.update(partition="south"),
    "the whole ledger": lambda s: s.update(partition=""),
    "a partition without charges": lambda s: s.update(partition="east"),
    "a longer name": lambda s: s.update(partition="north" * 50),
    "no partitions": lambda s: s.update(has_partitions=False),
    "the assumption": drop_the_assumption,
    "the worst case": claim_the_worst_case,
    "the worst case as well": claim_both,
    "less spending": lambda s: s["counted"].update(amount=0.5),
    "fewer releases": lambda s: s.update(num_releases=1),
    "another epsilon": lambda s: s.update(pure_epsilon=0.5),
}
OF_THE_WHOLE = {
    "a partition": lambda s: s.update(partition="north"),
    "a partition that is as large": lambda s: s.update(partition="only"),
    "no partitions": lambda s: s.update(has_partitions=False),
}


class TestTampering:
    @pytest.fixture
    def make_ledger(self):
        return lambda cap: Ledger(cap=cap)

    @pytest.mark.parametrize("name", EDITS)
    def test_the_ledger_contradicts_a_new_digest(self, ledger, north, name):
        found = Certificate.from_json(forged(north.to_json(), EDITS[name]))
        assert not found.verify(ledger).ok

    @pytest.mark.parametrize("name", OF_THE_WHOLE)
    def test_also_that_of_the_whole(self, name):
        ledger = Ledger(cap=PureDP(1.0))
        ledger.partition("only").charge(PureEvent(0.5))
        text = Certificate.from_ledger(ledger).to_json()
        assert Certificate.from_json(text).verify(ledger).ok
        found = Certificate.from_json(forged(text, OF_THE_WHOLE[name])).verify(ledger)
        assert not found.ok

    def test_no_partition_is_not_a_text(self, north):
        for value in (None, 0, ["north"]):
            state = {**json.loads(north.to_json()), "partition": value}
            with pytest.raises(ValueError, match="partition must be a string"):
                Certificate.from_json(json.dumps(state), check_digest=False)


# Edits of the rows on a server by a superuser, who writes digests that fit.


def row(number, old, new):
    return (
        f"UPDATE botorch_dp.rows SET text = replace(text, '{old}', '{new}') "
        f"WHERE ledger = %(name)s AND number = {number}"
    )


ON_A_SERVER = {
    "a cost": row(1, "0.25", "0.05"),
    "a partition": row(2, "north", "south"),
    "a common charge to a partition": row(1, '"count"', '"partition": "x", "count"'),
    "a charge of a team": row(4, '"budget": "ads"', '"budget": ""'),
    "the cap of a team": row(3, '"epsilon": 1.0', '"epsilon": 9.0'),
    "the last charge": "DELETE FROM botorch_dp.rows WHERE ledger = %(name)s "
    "AND number = 4",
    "a charge in the middle": "DELETE FROM botorch_dp.rows WHERE ledger = %(name)s "
    "AND number = 2; UPDATE botorch_dp.rows SET number = number - 1 "
    "WHERE ledger = %(name)s AND number > 2",
    "all charges": "DELETE FROM botorch_dp.rows WHERE ledger = %(name)s",
    "the order": "UPDATE botorch_dp.rows SET number = number + 10 "
    "WHERE ledger = %(name)s AND number IN (1, 2); "
    "UPDATE botorch_dp.rows SET number = 13 - number "
    "WHERE ledger = %(name)s AND number IN (11, 12)",
    "the cap": "UPDATE botorch_dp.headers SET text = replace(text, '2.0', '8.0') "
    "WHERE name = %(name)s",
}
# Digests of all rows from the first on, as those of an honest ledger.
NEW_DIGESTS = """
DO $$
DECLARE before text; r record;
BEGIN
  SELECT encode(sha256(convert_to(h.text, 'UTF8')), 'hex') INTO before
  FROM botorch_dp.headers h WHERE h.name = '{name}';
  FOR r IN SELECT * FROM botorch_dp.rows WHERE ledger = '{name}' ORDER BY number LOOP
    before := encode(sha256(convert_to(before || chr(10) || r.text, 'UTF8')), 'hex');
    UPDATE botorch_dp.rows SET digest = before
    WHERE ledger = '{name}' AND number = r.number;
  END LOOP;
END $$
"""


NEW_END = (
    "DELETE FROM botorch_dp.ends WHERE ledger = %(name)s",
    "INSERT INTO botorch_dp.ends SELECT ledger, max(number) FROM botorch_dp.rows "
    "WHERE ledger = %(name)s GROUP BY ledger",
)


class TestServer:
    @pytest.fixture
    def make_ledger(self, url):
        return lambda cap: Ledger(url, cap)

    @pytest.fixture
    def edit(self, postgres, url):
        psycopg = pytest.importorskip("psycopg")
        name = url.partition("ledger=")[2]

        def edit(statements):
            with contextlib.closing(
                psycopg.connect(
                    host=str(postgres.folder), user="postgres", dbname="postgres"
                )
            ) as connection:
                for table in ("rows", "headers", "ends"):
                    connection.execute(
                        f"ALTER TABLE botorch_dp.{table} DISABLE TRIGGER USER"
                    )
                for statement in statements.split(";"):
                    connection.execute(statement, {"name": name})
                connection.execute(NEW_DIGESTS.format(name=name))
                for statement in NEW_END:
                    connection.execute(statement, {"name": name})
                for trigger in TRIGGERS:
                    connection.execute(
                        f"ALTER TABLE {table_of(trigger)} ENABLE ALWAYS TRIGGER "
                        f"{trigger}"
                    )
                connection.commit()

        return edit

    def test_verifies_by_url(self, ledger, north, url):
        assert north.verify(url).ok
        assert Certificate.from_ledger(ledger).verify(url).ok
        found = north.verify(f"{url}-other")
        assert "There is no ledger" in found.findings[0]

    @pytest.mark.parametrize("name", ON_A_SERVER)
    def test_new_digests_are_found(self, ledger, north, url, edit, name):
        whole = Certificate.from_ledger(ledger)
        edit(ON_A_SERVER[name])
        Ledger(url)  # the rows fit each other
        for certificate in (north, whole):
            found = certificate.verify(url)
            assert not found.ok, name
        assert not whole.verify(ledger).ok
