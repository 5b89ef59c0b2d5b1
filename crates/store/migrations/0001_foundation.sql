-- Postrider's schema. Small tables are edited by people; hot tables are written only by set-based statements.
-- Constraints are named as sentences: the name is what an operator reads when one is broken.

CREATE SCHEMA IF NOT EXISTS postrider;

-- Small tables ----------------------------------------------------------------------------------------------------

CREATE TABLE postrider.tenants (
    tenant_id    uuid PRIMARY KEY,
    name         text NOT NULL CONSTRAINT tenant_names_are_unique UNIQUE,
    display_name text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- What every process of this installation must agree on. One row, written by the first process.
CREATE TABLE postrider.installation (
    is_the_only_row    boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_one_installation CHECK (is_the_only_row),
    -- Which pepper tokens are hashed with, and enough of it to tell another one: a process with a wrong pepper would
    -- refuse every token.
    pepper_generation  integer NOT NULL CONSTRAINT pepper_generations_count_from_one CHECK (pepper_generation >= 1),
    pepper_fingerprint bytea NOT NULL CONSTRAINT a_pepper_fingerprint_has_8_bytes
        CHECK (octet_length(pepper_fingerprint) = 8),
    created_at         timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE postrider.management_keys (
    tenant_id         uuid NOT NULL REFERENCES postrider.tenants,
    management_key_id uuid NOT NULL,
    name              text NOT NULL,
    role              text NOT NULL CONSTRAINT role_is_known CHECK (role IN ('owner', 'developer', 'viewer')),
    token_hash        bytea NOT NULL CONSTRAINT management_tokens_are_unique UNIQUE,
    created_at        timestamptz NOT NULL DEFAULT now(),
    revoked_at        timestamptz,
    PRIMARY KEY (tenant_id, management_key_id),
    CONSTRAINT management_key_names_are_unique_in_a_tenant UNIQUE (tenant_id, name)
);

CREATE TABLE postrider.applications (
    tenant_id       uuid NOT NULL REFERENCES postrider.tenants,
    application_id  uuid NOT NULL CONSTRAINT application_ids_are_unique UNIQUE,
    name            text NOT NULL,
    -- `system` is the tenant's own sender of test events: it has no token and no subscriptions.
    kind            text NOT NULL CONSTRAINT application_kind_is_known CHECK (kind IN ('publisher', 'system')),
    enabled         boolean NOT NULL DEFAULT true,
    token_hash      bytea CONSTRAINT publish_tokens_are_unique UNIQUE,
    -- Rises with every change that affects who gets this application's events or who may publish them: ingest
    -- refuses a plan that was made under an older version.
    routing_version bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, application_id),
    CONSTRAINT application_names_are_unique_in_a_tenant UNIQUE (tenant_id, name),
    CONSTRAINT only_publishers_have_a_token CHECK ((kind = 'publisher') = (token_hash IS NOT NULL))
);

-- What those lock who make or use an application's plan.
CREATE FUNCTION postrider.plan_lock_key(application uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(application::text, 7) $$;

-- The version of an enabled application's plan, NULL if it has none, locked until the end of the transaction: editors of the
-- plan take the same lock exclusively. A function, because each statement of a volatile one has a snapshot of its own
-- ("Function Volatility Categories" of PostgreSQL's manual): one statement alone would lock, and then read the
-- version of before.
CREATE FUNCTION postrider.locked_routing_version(tenant uuid, application uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(postrider.plan_lock_key(application));
    RETURN (SELECT routing_version FROM postrider.applications
             WHERE tenant_id = tenant AND application_id = application AND enabled);
END
$$;

CREATE TABLE postrider.endpoints (
    tenant_id               uuid NOT NULL REFERENCES postrider.tenants,
    endpoint_id             uuid NOT NULL CONSTRAINT endpoint_ids_are_unique UNIQUE,
    name                    text NOT NULL,
    url                     text NOT NULL,
    enabled                 boolean NOT NULL DEFAULT true,
    -- Why it is disabled: by a person, or because the receiver answered 410 Gone.
    disabled_reason         text CONSTRAINT disabled_reason_is_known CHECK (disabled_reason IN ('requested', 'gone')),
    -- Rises with every change of this row, so that a cached copy can be told from the newest one.
    version                 bigint NOT NULL DEFAULT 1,
    signing_key_id          uuid NOT NULL,
    -- While `overlap_until` lies ahead, requests also carry a signature under the previous key.
    previous_signing_key_id uuid,
    overlap_until           timestamptz,
    -- Custom request headers, sealed: they may carry a receiver's credential. NULL = none.
    sealed_headers          bytea,
    timeout_ms              integer NOT NULL,
    max_in_flight           integer NOT NULL,
    -- Requests per second and burst; NULL = no limit.
    rate_per_second         double precision,
    rate_burst              integer,
    max_attempts            integer NOT NULL,
    max_age_seconds         integer NOT NULL,
    initial_delay_ms        integer NOT NULL,
    max_delay_ms            integer NOT NULL,
    created_at              timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, endpoint_id),
    CONSTRAINT endpoint_names_are_unique_in_a_tenant UNIQUE (tenant_id, name),
    CONSTRAINT only_disabled_endpoints_have_a_reason CHECK (enabled = (disabled_reason IS NULL)),
    CONSTRAINT rate_and_burst_come_together CHECK ((rate_per_second IS NULL) = (rate_burst IS NULL)),
    CONSTRAINT an_overlap_names_the_previous_key
        CHECK ((previous_signing_key_id IS NULL) = (overlap_until IS NULL))
);

-- Immutable: a delivery points at the key it was accepted under, so a rotation does not touch queued work.
CREATE TABLE postrider.signing_keys (
    tenant_id      uuid NOT NULL,
    signing_key_id uuid NOT NULL CONSTRAINT signing_key_ids_are_unique UNIQUE,
    endpoint_id    uuid NOT NULL,
    algorithm      text NOT NULL CONSTRAINT signing_algorithm_is_known CHECK (algorithm IN ('hmac-sha256', 'ed25519')),
    sealed_secret  bytea NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, signing_key_id)
);

-- Deferred: an endpoint and its first key are born in one transaction and each names the other.
ALTER TABLE postrider.signing_keys ADD CONSTRAINT a_signing_key_belongs_to_an_endpoint
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES postrider.endpoints DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE postrider.endpoints ADD CONSTRAINT an_endpoint_signs_with_a_known_key
    FOREIGN KEY (tenant_id, signing_key_id) REFERENCES postrider.signing_keys DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE postrider.subscriptions (
    tenant_id       uuid NOT NULL REFERENCES postrider.tenants,
    subscription_id uuid NOT NULL,
    name            text NOT NULL,
    application_id  uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    event_types     text[] NOT NULL CONSTRAINT a_subscription_names_event_types CHECK (cardinality(event_types) > 0),
    enabled         boolean NOT NULL DEFAULT true,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, subscription_id),
    CONSTRAINT subscription_names_are_unique_in_a_tenant UNIQUE (tenant_id, name),
    CONSTRAINT a_subscription_has_an_application
        FOREIGN KEY (tenant_id, application_id) REFERENCES postrider.applications,
    CONSTRAINT a_subscription_has_an_endpoint
        FOREIGN KEY (tenant_id, endpoint_id) REFERENCES postrider.endpoints
);
-- Serves the fan-out plan: all subscriptions of one application.
CREATE INDEX subscriptions_by_application ON postrider.subscriptions (application_id);
-- Serves endpoint changes: which applications' plans does this endpoint touch?
CREATE INDEX subscriptions_by_endpoint ON postrider.subscriptions (endpoint_id);

-- Hot tables. No foreign keys: one costs a query per row (the rate falls to 0.72). The plan check inside the ingest
-- transaction proves that the parents exist. ------------------------------------------------------------------------

CREATE TABLE postrider.events (
    tenant_id      uuid NOT NULL,
    -- UUIDv7 whose last 16 bits are zero: the deliveries of an event take the numbers that follow.
    event_id       uuid NOT NULL,
    application_id uuid NOT NULL,
    event_type     text NOT NULL,
    content_type   text NOT NULL,
    -- Exactly the bytes received. Never jsonb: it drops keys, rewrites numbers and refuses \u0000.
    body           bytea NOT NULL,
    -- W3C trace context: the caller's trace id where one came, else ours; stable over retries.
    trace_id       bytea NOT NULL CONSTRAINT a_trace_id_has_16_bytes CHECK (octet_length(trace_id) = 16),
    delivery_count integer NOT NULL,
    accepted_at    timestamptz NOT NULL,
    -- Serves `take` (the body of a claimed delivery) and, walked backwards, the list of a tenant's events.
    PRIMARY KEY (tenant_id, event_id)
);

CREATE TABLE postrider.idempotency_keys (
    application_id  uuid NOT NULL,
    -- Events, notifications and each provider have key spaces of their own.
    key_space       smallint NOT NULL,
    idempotency_key text NOT NULL CONSTRAINT an_idempotency_key_fits_the_index
        CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
    fingerprint     bytea NOT NULL,
    event_id        uuid NOT NULL,
    delivery_count  integer NOT NULL,
    accepted_at     timestamptz NOT NULL,
    -- Serves ingest: the uniqueness that idempotency rests on.
    PRIMARY KEY (application_id, key_space, idempotency_key)
);

-- One row per open delivery, and the only place it lives while it is open. Deleted when the delivery ends, so its
-- size follows the backlog and not the history.
CREATE TABLE postrider.delivery_queue (
    tenant_id      uuid NOT NULL,
    -- The event's id plus the delivery's place in the fan-out plan, counted from 1.
    delivery_id    uuid NOT NULL,
    event_id       uuid NOT NULL,
    application_id uuid NOT NULL,
    endpoint_id    uuid NOT NULL,
    -- The snapshot of the key under which the delivery was accepted.
    signing_key_id uuid NOT NULL,
    accepted_at    timestamptz NOT NULL,
    deadline_at    timestamptz NOT NULL,
    state          text NOT NULL CONSTRAINT queue_state_is_known
        CHECK (state IN ('scheduled', 'pending', 'in_flight', 'held')),
    due_at         timestamptz,
    pending_since  timestamptz,
    -- Number of the newest attempt; 0 before the first. Never restarts.
    attempt_number integer NOT NULL,
    -- Attempts in this run, which the retry policy counts; restarts on replay; interrupted ones count.
    tries          integer NOT NULL,
    lease_owner    uuid,
    lease_token    uuid,
    leased_at      timestamptz,
    lease_until    timestamptz,
    -- Serves settle, retry and recovery by id; the delivery list (walked backwards); the deliveries of one event.
    PRIMARY KEY (tenant_id, delivery_id),
    CONSTRAINT only_scheduled_deliveries_have_a_due_time CHECK ((state = 'scheduled') = (due_at IS NOT NULL)),
    CONSTRAINT only_pending_deliveries_wait_since_a_time CHECK ((state = 'pending') = (pending_since IS NOT NULL)),
    CONSTRAINT only_in_flight_deliveries_are_leased CHECK (
        (state = 'in_flight') = (lease_owner IS NOT NULL)
        AND (state = 'in_flight') = (lease_token IS NOT NULL)
        AND (state = 'in_flight') = (leased_at IS NOT NULL)
        AND (state = 'in_flight') = (lease_until IS NOT NULL)),
    CONSTRAINT attempts_are_counted_from_zero CHECK (attempt_number >= tries AND tries >= 0)
) WITH (
    -- Rows live for milliseconds: clean up early and often, and keep room for updates on the page.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 5000
);
-- Serves `take` (the oldest pending rows of one endpoint) and the skip scan over endpoints with pending work.
CREATE INDEX delivery_queue_pending ON postrider.delivery_queue (endpoint_id, pending_since)
    WHERE state = 'pending';
-- Serves `promote`: scheduled rows that have come due. Partial, or it lures the planner of `take`.
CREATE INDEX delivery_queue_due ON postrider.delivery_queue (due_at) WHERE state = 'scheduled';
-- Serves `release`: rows held back while their endpoint was disabled.
CREATE INDEX delivery_queue_held ON postrider.delivery_queue (endpoint_id) WHERE state = 'held';

-- History: one row per ended delivery, written once. A retry by hand moves a dead letter back into the queue.
CREATE TABLE postrider.deliveries (
    tenant_id      uuid NOT NULL,
    delivery_id    uuid NOT NULL,
    event_id       uuid NOT NULL,
    application_id uuid NOT NULL,
    endpoint_id    uuid NOT NULL,
    signing_key_id uuid NOT NULL,
    accepted_at    timestamptz NOT NULL,
    ended_at       timestamptz NOT NULL,
    outcome        text NOT NULL CONSTRAINT delivery_outcome_is_known CHECK (outcome IN ('delivered', 'dead_lettered')),
    dead_reason    text CONSTRAINT dead_reason_is_known CHECK (dead_reason IN
        ('rejected', 'attempts_exhausted', 'deadline_passed', 'endpoint_gone', 'endpoint_deleted', 'body_gone')),
    attempt_number integer NOT NULL,
    -- Serves reads by id, the delivery list (walked backwards) and the deliveries of one event.
    PRIMARY KEY (tenant_id, delivery_id),
    CONSTRAINT only_dead_letters_have_a_reason CHECK ((outcome = 'dead_lettered') = (dead_reason IS NOT NULL))
);
-- Serves the list of dead letters, which a healthy history hides among millions.
CREATE INDEX deliveries_dead ON postrider.deliveries (tenant_id, delivery_id) WHERE outcome = 'dead_lettered';

CREATE TABLE postrider.attempts (
    tenant_id      uuid NOT NULL,
    delivery_id    uuid NOT NULL,
    attempt_number integer NOT NULL CONSTRAINT attempts_are_numbered_from_one CHECK (attempt_number >= 1),
    outcome        text NOT NULL CONSTRAINT attempt_outcome_is_known
        CHECK (outcome IN ('delivered', 'scheduled', 'dead_lettered', 'interrupted')),
    started_at     timestamptz NOT NULL,
    ended_at       timestamptz NOT NULL,
    -- NULL where it is not known how long the request took: an interrupted attempt is no latency sample.
    latency_ms     integer,
    status_code    smallint,
    -- The kind of failure (`timeout`, `connect_refused`, …), and the same in plain words for a person.
    failure        text,
    detail         text,
    -- Serves the attempts of one delivery, in order, and keeps their numbers unique.
    PRIMARY KEY (tenant_id, delivery_id, attempt_number),
    CONSTRAINT interrupted_attempts_have_no_latency CHECK (outcome <> 'interrupted' OR latency_ms IS NULL)
);

-- One row per running process. Its leases live as long as its heart beats.
CREATE TABLE postrider.instances (
    instance_id      uuid PRIMARY KEY,
    role             text NOT NULL CONSTRAINT instance_role_is_known CHECK (role IN ('api', 'worker', 'all')),
    host             text NOT NULL,
    -- A counter, not a clock: others judge by seeing it stand still.
    beats            bigint NOT NULL DEFAULT 0,
    started_at       timestamptz NOT NULL DEFAULT now(),
    beat_at          timestamptz NOT NULL DEFAULT now(),
    -- Death is final: the heartbeat then updates no row and the process registers anew.
    declared_dead_at timestamptz
);
