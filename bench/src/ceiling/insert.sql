WITH item AS (
    SELECT * FROM unnest($5::uuid[], $6::text[], $7::bytea[], $8::bytea[], $9::bytea[], $10::uuid[], $11::uuid[])
        AS item (event_id, idempotency_key, fingerprint, body, trace_id, delivery_id, lease_token)
), keys AS (
    INSERT INTO postrider.idempotency_keys
           (application_id, key_space, idempotency_key, fingerprint, event_id, delivery_count, accepted_at)
    SELECT $2, 0, idempotency_key, fingerprint, event_id, 1, now() FROM item
), stored AS (
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
                                  delivery_count, accepted_at)
    SELECT $1, event_id, $2, 'order.created', 'application/json', body, trace_id, 1, now() FROM item
)
INSERT INTO postrider.delivery_queue
       (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, deadline_at,
        state, attempt_number, tries, lease_owner, lease_token, leased_at, lease_until)
SELECT $1, delivery_id, event_id, $2, $3, $4, now(), now() + interval '1 day',
       'in_flight', 1, 1, $4, lease_token, now(), now() + interval '2 minutes'
  FROM item
