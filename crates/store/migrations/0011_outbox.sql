-- Messages about deliveries that are ready, for installations with a broker. A message is written in the transaction that
-- makes its deliveries ready, and goes when the broker has confirmed it. Without a broker this stays empty.

CREATE TABLE postrider.outbox (
    -- Serves publishing, oldest first.
    outbox_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The broker's queue.
    route         text NOT NULL CONSTRAINT outbox_route_is_short CHECK (length(route) <= 64),
    payload       bytea NOT NULL CONSTRAINT outbox_payload_is_small CHECK (octet_length(payload) <= 131072),
    -- How many deliveries the message names.
    deliveries    integer NOT NULL CONSTRAINT outbox_deliveries_are_counted CHECK (deliveries >= 0),
    -- Why they ended, or why nobody could read the message: only for people.
    reason        text CONSTRAINT outbox_reason_is_short CHECK (length(reason) <= 400),
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- A publisher has it in hand until then; if it is still here afterwards, that one is gone.
    claimed_until timestamptz
) WITH (
    -- Rows live for milliseconds, and each is changed once.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);
CALL postrider.service_only('postrider.outbox');

-- What is known of the broker. Its queues may vanish, and with them every message: that begins a new epoch, in which each
-- open delivery is announced once more.
CREATE TABLE postrider.broker (
    only_row       boolean PRIMARY KEY DEFAULT true CONSTRAINT broker_is_one CHECK (only_row),
    -- Also the name of a mark at the broker: where the mark is missing, the broker is not the one of this epoch.
    epoch          uuid NOT NULL,
    begun_at       timestamptz NOT NULL DEFAULT now(),
    -- How far the deliveries have been announced again, by the key of the queue; NULL before the first.
    swept_tenant   uuid,
    swept_delivery uuid,
    swept_at       timestamptz,
    CONSTRAINT broker_sweep_is_at_a_delivery CHECK ((swept_tenant IS NULL) = (swept_delivery IS NULL))
);
CALL postrider.service_only('postrider.broker');
