-- The replay of many dead letters: what a preview saw, and how far its execution is.

CREATE TABLE postrider.replays (
    tenant_id         uuid NOT NULL REFERENCES postrider.tenants,
    replay_id         uuid NOT NULL,
    state             text NOT NULL CONSTRAINT replay_state_is_known
        CHECK (state IN ('previewed', 'running', 'finished', 'cancelled', 'expired')),
    -- What was asked for: JSON, as the API spells it.
    filter            text NOT NULL,
    matches           integer NOT NULL CONSTRAINT matches_are_counted CHECK (matches >= 0),
    -- As many were found as one replay holds: there may be more.
    is_full           boolean NOT NULL,
    created_at        timestamptz NOT NULL,
    expires_at        timestamptz NOT NULL,
    started_at        timestamptz,
    ended_at          timestamptz,
    -- The totals, once it has ended; until then each endpoint's row counts for itself.
    replayed          integer NOT NULL DEFAULT 0,
    not_dead_lettered integer NOT NULL DEFAULT 0,
    died_again        integer NOT NULL DEFAULT 0,
    endpoint_deleted  integer NOT NULL DEFAULT 0,
    body_gone         integer NOT NULL DEFAULT 0,
    -- What it kept of its preview was removed.
    is_tidy           boolean NOT NULL DEFAULT false,
    -- Serves a tenant's replays, by id and as a list (walked backwards).
    PRIMARY KEY (tenant_id, replay_id),
    CONSTRAINT only_a_replay_that_was_executed_has_started
        CHECK (CASE state WHEN 'previewed' THEN started_at IS NULL WHEN 'expired' THEN started_at IS NULL
                          WHEN 'cancelled' THEN true ELSE started_at IS NOT NULL END),
    CONSTRAINT a_replay_that_is_over_has_an_end
        CHECK ((state IN ('finished', 'cancelled', 'expired')) = (ended_at IS NOT NULL))
);
-- Serves the bound on a tenant's open replays, the end of those with nothing left, and their count.
CREATE INDEX replays_open ON postrider.replays (tenant_id, replay_id) WHERE ended_at IS NULL;
-- Serves the removal of what is over.
CREATE INDEX replays_over ON postrider.replays (ended_at) WHERE ended_at IS NOT NULL AND NOT is_tidy;
-- Serves the bound on what of a tenant's is still to be removed.
CREATE INDEX replays_untidy ON postrider.replays (tenant_id) WHERE ended_at IS NOT NULL AND NOT is_tidy;
CALL postrider.wall('postrider.replays', 'SELECT, INSERT, UPDATE');

-- What those lock who make a tenant's previews: how many replays there are is looked at under it.
CREATE FUNCTION postrider.preview_lock_key(tenant uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(tenant::text, 13) $$;

-- The letters that a preview saw, each as it was then. Written once, read in order, removed when the replay is over.
CREATE TABLE postrider.replay_items (
    tenant_id      uuid NOT NULL,
    replay_id      uuid NOT NULL,
    endpoint_id    uuid NOT NULL,
    delivery_id    uuid NOT NULL,
    -- Its last attempt and its end: a letter that was sent and died again has others.
    attempt_number integer NOT NULL,
    ended_at       timestamptz NOT NULL,
    -- Serves the execution, endpoint by endpoint and in order, and the removal.
    PRIMARY KEY (replay_id, endpoint_id, delivery_id)
);
CALL postrider.wall('postrider.replay_items', 'SELECT, INSERT');

-- How far a replay is at each of its endpoints. Whoever works on one has its row locked.
CREATE TABLE postrider.replay_endpoints (
    tenant_id         uuid NOT NULL,
    replay_id         uuid NOT NULL,
    endpoint_id       uuid NOT NULL,
    -- Letters that are not done yet, and the last one that is; the all-zero id before the first.
    items_left        integer NOT NULL CONSTRAINT items_left_are_counted CHECK (items_left >= 0),
    done_to           uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    -- When it is this endpoint's turn again; NULL while the replay does not run, and when nothing is left.
    due_at            timestamptz,
    replayed          integer NOT NULL DEFAULT 0,
    not_dead_lettered integer NOT NULL DEFAULT 0,
    died_again        integer NOT NULL DEFAULT 0,
    endpoint_deleted  integer NOT NULL DEFAULT 0,
    body_gone         integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, replay_id, endpoint_id)
);
-- Serves the turns: from one tenant with due work to the next, and each tenant's endpoints in order.
CREATE INDEX replay_endpoints_due ON postrider.replay_endpoints (tenant_id, due_at) WHERE due_at IS NOT NULL;
CALL postrider.wall('postrider.replay_endpoints', 'SELECT, INSERT, UPDATE');

-- Which replay brought a delivery back; NULL for all others, which the index below does not hold.
ALTER TABLE postrider.delivery_queue ADD COLUMN replay_id uuid;
-- Serves the pace of replays: how many deliveries that came back are open at one endpoint?
CREATE INDEX delivery_queue_replayed ON postrider.delivery_queue (endpoint_id) WHERE replay_id IS NOT NULL;
