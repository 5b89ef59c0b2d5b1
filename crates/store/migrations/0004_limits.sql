-- What a tenant may do: how fast it may publish, how much in an hour, and how much of it may be open. NULL: as the
-- installation has it; 0: without a limit.

ALTER TABLE postrider.tenants
    -- Events per second, and events at once after a pause.
    ADD COLUMN ingest_rate double precision CONSTRAINT an_ingest_rate_is_finite_and_not_negative
        CHECK (ingest_rate >= 0 AND ingest_rate < 'infinity'),
    ADD COLUMN ingest_burst integer CONSTRAINT an_ingest_burst_is_not_negative CHECK (ingest_burst >= 0),
    ADD COLUMN hourly_events bigint CONSTRAINT a_quota_of_events_is_not_negative CHECK (hourly_events >= 0),
    ADD COLUMN hourly_bytes bigint CONSTRAINT a_quota_of_bytes_is_not_negative CHECK (hourly_bytes >= 0),
    ADD COLUMN open_deliveries bigint CONSTRAINT a_quota_of_deliveries_is_not_negative CHECK (open_deliveries >= 0),
    -- Its endpoints come from the operator's registry alone.
    ADD COLUMN approved_only boolean NOT NULL DEFAULT false;

-- What a tenant with quotas has used. One row each, which ingest locks before anything else: whoever stores events of the
-- tenant does so alone, in all processes.
CREATE TABLE postrider.tenant_usage (
    tenant_id     uuid PRIMARY KEY REFERENCES postrider.tenants,
    -- What was accepted in each minute (counted from 1970) of the last hour in which something was. In the row and not
    -- in rows of their own, since a locked row is read as it is then, by the statement that locks it.
    minutes       integer[] NOT NULL DEFAULT '{}',
    events        bigint[] NOT NULL DEFAULT '{}',
    bytes         bigint[] NOT NULL DEFAULT '{}',
    -- No more deliveries of it are open than this. Lowered only by counting them; NULL: to be counted before it is used.
    open_at_most  bigint,
    -- When they were counted, and how long that took.
    counted_at    timestamptz,
    count_seconds double precision,
    CONSTRAINT minutes_have_their_events_and_bytes
        CHECK (cardinality(events) = cardinality(minutes) AND cardinality(bytes) = cardinality(minutes)),
    CONSTRAINT a_count_took_its_time CHECK ((counted_at IS NULL) = (count_seconds IS NULL))
    -- Changed with every batch of the tenant: the next version shall lie on the same page.
) WITH (fillfactor = 25, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);
-- A tenant's requests send its dead letters again, which raises what is open.
CALL postrider.wall('postrider.tenant_usage', 'SELECT, UPDATE (open_at_most)');
