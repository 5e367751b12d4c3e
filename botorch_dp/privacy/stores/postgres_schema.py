"""The tables of ledgers in a PostgreSQL database, and who may do what with them.

Nobody may change or remove a row: triggers refuse it, also for the owner of the tables.
A new row must continue the chain of digests; the server checks that, too, so a role
that may charge cannot change what was charged. It can stop a ledger with SQL of its
own: a row that no ledger writes is refused by everybody who reads it. A charge locks
the row of the ledger's header. PostgreSQL asks for the right to UPDATE before it locks
a row, so a function of the owner takes the lock, and nobody else gets that right.

The number of the last row is kept once more, in a table of its own, so that rows which
a superuser removes from the end are missed. Whoever opens a ledger compares the
functions behind the triggers with those here. A superuser can still rewrite everything,
these tables and the catalog included.
"""

SCHEMA = "botorch_dp"
CHARGE_ROLE = "botorch_dp_charge"
READ_ROLE = "botorch_dp_read"

_DIGEST = "encode(sha256(convert_to({}, 'UTF8')), 'hex')"

#: The bodies of the functions that triggers call, as the server keeps them.
FUNCTIONS = {
    "refuse_change": """
BEGIN
    RAISE EXCEPTION 'a ledger is append-only';
END """,
    "check_row": f"""
DECLARE
    last bigint;
    before text;
BEGIN
    SELECT r.number, r.digest INTO last, before FROM {SCHEMA}.rows r
    WHERE r.ledger = NEW.ledger ORDER BY r.number DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT 0, {_DIGEST.format("h.text")} INTO last, before
        FROM {SCHEMA}.headers h WHERE h.name = NEW.ledger;
    END IF;
    IF NEW.number IS DISTINCT FROM last + 1
    OR NEW.digest IS DISTINCT FROM {_DIGEST.format("before || chr(10) || NEW.text")}
    THEN
        RAISE EXCEPTION 'this row does not continue the ledger';
    END IF;
    INSERT INTO {SCHEMA}.ends VALUES (NEW.ledger, NEW.number)
    ON CONFLICT (ledger) DO UPDATE SET number = NEW.number;
    RETURN NEW;
END """,
    "check_end": """
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.ledger = OLD.ledger AND NEW.number = OLD.number + 1 THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'a ledger is append-only';
END """,
}
#: The function that each trigger calls; its table is the first word of its name.
TRIGGERS = {
    "headers_append_only": "refuse_change",
    "rows_append_only": "refuse_change",
    "rows_continue": "check_row",
    "ends_kept": "refuse_change",
    "ends_grow": "check_end",
}
_WHEN = {
    "headers_append_only": "UPDATE OR DELETE OR TRUNCATE ON {} FOR EACH STATEMENT",
    "rows_append_only": "UPDATE OR DELETE OR TRUNCATE ON {} FOR EACH STATEMENT",
    "rows_continue": "INSERT ON {} FOR EACH ROW",
    "ends_kept": "TRUNCATE ON {} FOR EACH STATEMENT",
    "ends_grow": "UPDATE OR DELETE ON {} FOR EACH ROW",
}


def table_of(trigger: str) -> str:
    """Return the table that a trigger protects."""
    return f"{SCHEMA}.{trigger.partition('_')[0]}"


def _create_function(name: str) -> str:
    # Only a row of the ledger itself writes to the table of ends.
    rights = "SECURITY DEFINER " if name == "check_row" else ""
    return f"""
CREATE FUNCTION {SCHEMA}.{name}() RETURNS trigger LANGUAGE plpgsql
{rights}SET search_path = pg_catalog, pg_temp AS $${FUNCTIONS[name]}$$;
"""


def _create_trigger(name: str) -> str:
    table = table_of(name)
    # ALWAYS also in a session that replicates, which skips ordinary triggers.
    return f"""
CREATE TRIGGER {name} BEFORE {_WHEN[name].format(table)}
EXECUTE FUNCTION {SCHEMA}.{TRIGGERS[name]}();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};
"""


CREATE_TABLES = f"""
CREATE SCHEMA {SCHEMA};

CREATE TABLE {SCHEMA}.headers (name text PRIMARY KEY, text text NOT NULL);

CREATE TABLE {SCHEMA}.rows (
    ledger text NOT NULL REFERENCES {SCHEMA}.headers,
    number bigint NOT NULL,
    text text NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (ledger, number)
);

CREATE TABLE {SCHEMA}.ends (
    ledger text PRIMARY KEY REFERENCES {SCHEMA}.headers,
    number bigint NOT NULL
);
{"".join(map(_create_function, FUNCTIONS))}
CREATE FUNCTION {SCHEMA}.lock_ledger(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM {SCHEMA}.headers h WHERE h.name = wanted FOR UPDATE;
    RETURN FOUND;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC;
{"".join(map(_create_trigger, TRIGGERS))}"""

# Roles belong to the whole server, so they may exist already.
GRANT_ROLES = (
    "\n".join(
        f"""DO $$ BEGIN
    CREATE ROLE {role} NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;"""
        for role in (CHARGE_ROLE, READ_ROLE)
    )
    + f"""
GRANT USAGE ON SCHEMA {SCHEMA} TO {CHARGE_ROLE}, {READ_ROLE};
GRANT SELECT ON {SCHEMA}.headers, {SCHEMA}.rows, {SCHEMA}.ends
TO {CHARGE_ROLE}, {READ_ROLE};
GRANT INSERT ON {SCHEMA}.rows TO {CHARGE_ROLE};
GRANT EXECUTE ON FUNCTION {SCHEMA}.lock_ledger(text) TO {CHARGE_ROLE};
"""
)
