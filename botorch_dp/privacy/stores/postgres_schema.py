"""The tables of ledgers in a PostgreSQL database, and who may do what with them.

Nobody may change or remove a row: triggers refuse it, also for the owner of the tables.
A new row must continue the chain of digests; the server checks that, too, so a role
that may charge cannot change what was charged. It can stop a ledger with SQL of its
own: a row that no ledger writes is refused by everybody who reads it. A charge locks
the row of the ledger's header. PostgreSQL asks for the right to UPDATE before it locks
a row, so a function of the owner takes the lock, and nobody else gets that right.
"""

SCHEMA = "botorch_dp"
CHARGE_ROLE = "botorch_dp_charge"
READ_ROLE = "botorch_dp_read"
TRIGGERS = ("headers_append_only", "rows_append_only", "rows_continue")

_DIGEST = "encode(sha256(convert_to({}, 'UTF8')), 'hex')"

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

CREATE FUNCTION {SCHEMA}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a ledger is append-only';
END $$;

CREATE FUNCTION {SCHEMA}.check_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    RETURN NEW;
END $$;

CREATE FUNCTION {SCHEMA}.lock_ledger(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM {SCHEMA}.headers h WHERE h.name = wanted FOR UPDATE;
    RETURN FOUND;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC;

CREATE TRIGGER headers_append_only BEFORE UPDATE OR DELETE OR TRUNCATE
ON {SCHEMA}.headers FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.refuse_change();
CREATE TRIGGER rows_append_only BEFORE UPDATE OR DELETE OR TRUNCATE
ON {SCHEMA}.rows FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.refuse_change();
CREATE TRIGGER rows_continue BEFORE INSERT
ON {SCHEMA}.rows FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.check_row();
""" + "\n".join(
    # Also in a session that replicates, which skips ordinary triggers.
    f"ALTER TABLE {SCHEMA}.{name.split('_')[0]} ENABLE ALWAYS TRIGGER {name};"
    for name in TRIGGERS
)

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
GRANT SELECT ON {SCHEMA}.headers, {SCHEMA}.rows TO {CHARGE_ROLE}, {READ_ROLE};
GRANT INSERT ON {SCHEMA}.rows TO {CHARGE_ROLE};
GRANT EXECUTE ON FUNCTION {SCHEMA}.lock_ledger(text) TO {CHARGE_ROLE};
"""
)
