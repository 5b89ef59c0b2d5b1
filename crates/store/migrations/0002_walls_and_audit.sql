-- Two roles beside the one that owns the schema, row-level security under every query, and the audit log.
--
-- `postrider_service` is what a process works as that may not alter the schema: grant it to the role of DATABASE_URL.
-- `postrider_tenant` is what a request of a tenant works as: it sees the rows of one tenant, whatever a query asks for.
-- The owner of the tables sees all rows, as PostgreSQL has it; requests leave that role before their first query.

DO $$
BEGIN
    -- Roles belong to the whole cluster: another database may have made them, even at this moment.
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'postrider_tenant') THEN
        CREATE ROLE postrider_tenant NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'postrider_service') THEN
        CREATE ROLE postrider_service NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
DO $$
BEGIN
    IF NOT pg_has_role('postrider_service', 'postrider_tenant', 'MEMBER') THEN
        GRANT postrider_tenant TO postrider_service;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
DO $$
BEGIN
    -- Who migrates may also be who serves. Since PostgreSQL 16 whoever makes a role is a member of it and may not work as it.
    IF NOT pg_has_role(current_user, 'postrider_tenant',
                       CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT postrider_tenant TO %I', current_user);
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;

GRANT USAGE ON SCHEMA postrider TO postrider_service, postrider_tenant;

-- Whose request this transaction serves; NULL where none was set, and then no row is visible.
CREATE FUNCTION postrider.current_tenant() RETURNS uuid
LANGUAGE sql STABLE AS $$ SELECT nullif(current_setting('postrider.tenant_id', true), '')::uuid $$;

-- Walls a table: a tenant's requests may do what `privileges` says, with the rows of that tenant; the service may do
-- everything with all rows. Every table with a tenant's id is walled, and a test looks.
CREATE PROCEDURE postrider.wall(walled regclass, privileges text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', walled);
    EXECUTE format('CREATE POLICY a_tenant_sees_its_own_rows ON %s TO postrider_tenant '
                   'USING (tenant_id = postrider.current_tenant()) WITH CHECK (tenant_id = postrider.current_tenant())', walled);
    EXECUTE format('CREATE POLICY the_service_sees_all_rows ON %s TO postrider_service USING (true) WITH CHECK (true)', walled);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO postrider_service', walled);
    IF privileges <> '' THEN
        EXECUTE format('GRANT %s ON %s TO postrider_tenant', privileges, walled);
    END IF;
END
$$;

-- For a table that is nobody's in particular: tenants' requests have no business there.
CREATE PROCEDURE postrider.service_only(tables_name regclass)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO postrider_service', tables_name);
END
$$;

CALL postrider.wall('postrider.tenants', 'SELECT');
-- Of a key only that it is revoked ever changes.
CALL postrider.wall('postrider.management_keys', 'SELECT, INSERT, UPDATE (revoked_at)');
CALL postrider.wall('postrider.applications', 'SELECT, INSERT, UPDATE');
CALL postrider.wall('postrider.endpoints', 'SELECT, INSERT, UPDATE');
CALL postrider.wall('postrider.signing_keys', 'SELECT, INSERT');
CALL postrider.wall('postrider.subscriptions', 'SELECT, INSERT, UPDATE, DELETE');
-- A retry locks the dead letter that it moves and its event, and a lock takes the right to change some column.
CALL postrider.wall('postrider.events', 'SELECT, UPDATE (event_id)');
CALL postrider.wall('postrider.delivery_queue', 'SELECT, INSERT');
CALL postrider.wall('postrider.deliveries', 'SELECT, UPDATE (delivery_id), DELETE');
CALL postrider.wall('postrider.attempts', 'SELECT');
CALL postrider.service_only('postrider.installation');
CALL postrider.service_only('postrider.idempotency_keys');
CALL postrider.service_only('postrider.instances');

-- The books of the migrations are read at every start.
DO $$
BEGIN
    IF to_regclass('postrider.schema_migrations') IS NOT NULL THEN
        GRANT SELECT ON postrider.schema_migrations TO postrider_service;
    END IF;
END
$$;

-- Audit -----------------------------------------------------------------------------------------------------------

-- A UUIDv7 (RFC 9562) of this moment.
CREATE FUNCTION postrider.fresh_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
                      substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
                  52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TABLE postrider.audit_log (
    -- Serves pruning by hand and keeps entries apart.
    audit_id    uuid PRIMARY KEY DEFAULT postrider.fresh_id(),
    -- Whose resources it is about; NULL where it concerns the installation as a whole or nobody known.
    tenant_id   uuid,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who. The name is that of the moment: keys and users may be gone by the time somebody reads this.
    actor_kind  text NOT NULL CONSTRAINT audit_actor_is_known CHECK (actor_kind IN
        ('bootstrap', 'metrics', 'management_key', 'user', 'application', 'command_line', 'process', 'anonymous')),
    actor_id    uuid,
    actor_name  text,
    action      text NOT NULL,
    target_kind text NOT NULL,
    target_id   text,
    target_name text,
    -- Names of the settings that were given; never their values.
    fields      text[] NOT NULL DEFAULT '{}',
    outcome     text NOT NULL CONSTRAINT audit_outcome_is_known CHECK (outcome IN ('done', 'refused')),
    -- The code of the problem that a refusal was answered with.
    reason      text,
    -- From where, as far as that is known.
    address     text,
    CONSTRAINT only_refusals_have_a_reason CHECK ((outcome = 'refused') = (reason IS NOT NULL))
);
-- Serves the list of a tenant's entries, walked backwards.
CREATE INDEX audit_log_by_tenant ON postrider.audit_log (tenant_id, audit_id);

CREATE FUNCTION postrider.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the table % is append only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER the_audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON postrider.audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.refuse_change();

ALTER TABLE postrider.audit_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY a_tenant_sees_its_own_rows ON postrider.audit_log TO postrider_tenant
    USING (tenant_id = postrider.current_tenant()) WITH CHECK (tenant_id = postrider.current_tenant());
CREATE POLICY the_service_sees_all_rows ON postrider.audit_log TO postrider_service USING (true) WITH CHECK (true);
GRANT SELECT, INSERT ON postrider.audit_log TO postrider_service, postrider_tenant;
