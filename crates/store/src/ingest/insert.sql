WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bigint[], $6::smallint[], $7::text[],
                         $8::bytea[], $9::text[], $10::text[], $11::bytea[], $12::bytea[], $13::int[])
        AS item (place, tenant_id, application_id, event_id, version, key_space, idempotency_key,
                 fingerprint, event_type, content_type, body, trace_id, delivery_count)
), application AS MATERIALIZED (
    -- Sorted, as editors lock them.
    SELECT application_id, postrider.locked_routing_version(tenant_id, application_id) AS version
      FROM (SELECT DISTINCT tenant_id, application_id FROM item ORDER BY application_id) AS named
), planned AS MATERIALIZED (
    -- The plan check: it also proves that application, endpoints and signing keys exist.
    SELECT item.* FROM item JOIN application USING (application_id, version)
), claimed AS (
    -- Sorted, so that two instances with the same keys wait for each other in one order only.
    INSERT INTO postrider.idempotency_keys
           (application_id, key_space, idempotency_key, fingerprint, event_id, delivery_count, accepted_at)
    SELECT application_id, key_space, idempotency_key, fingerprint, event_id, delivery_count, now()
      FROM planned WHERE idempotency_key IS NOT NULL
     ORDER BY application_id, key_space, idempotency_key, place
        ON CONFLICT DO NOTHING
    RETURNING event_id
), accepted AS MATERIALIZED (
    -- A flag, since a join of two lists without statistics compares each row with each.
    SELECT planned.*, idempotency_key IS NULL OR event_id IN (SELECT event_id FROM claimed) AS is_new
      FROM planned
), stored AS (
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body,
                                  trace_id, delivery_count, accepted_at)
    SELECT tenant_id, event_id, application_id, event_type, content_type, body,
           trace_id, delivery_count, now()
      FROM accepted WHERE is_new
), queued AS (
    INSERT INTO postrider.delivery_queue
           (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at,
            deadline_at, state, pending_since, attempt_number, tries, lease_owner, lease_token, leased_at,
            lease_until)
    SELECT accepted.tenant_id, d.delivery_id, accepted.event_id, accepted.application_id, d.endpoint_id,
           d.signing_key_id, now(), now() + make_interval(secs => d.max_age_seconds),
           CASE WHEN d.lease_token IS NULL THEN 'pending' ELSE 'in_flight' END,
           CASE WHEN d.lease_token IS NULL THEN now() END,
           CASE WHEN d.lease_token IS NULL THEN 0 ELSE 1 END,
           CASE WHEN d.lease_token IS NULL THEN 0 ELSE 1 END,
           CASE WHEN d.lease_token IS NOT NULL THEN $19::uuid END,
           d.lease_token,
           CASE WHEN d.lease_token IS NOT NULL THEN now() END,
           CASE WHEN d.lease_token IS NOT NULL THEN now() + make_interval(secs => $20) END
      FROM unnest($14::int[], $15::uuid[], $16::uuid[], $17::uuid[], $18::uuid[], $21::float8[])
               AS d (place, delivery_id, endpoint_id, signing_key_id, lease_token, max_age_seconds)
      JOIN accepted USING (place)
     WHERE accepted.is_new
)
SELECT place AS "place!", now() AS "accepted_at!", is_new AS "is_new!" FROM accepted
