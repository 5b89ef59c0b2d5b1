-- Events $1 to $2 of the past: the first was accepted at $3, in milliseconds, and each $4 later than the one before.
WITH sender AS MATERIALIZED (
    -- The measured tenant is number 0.
    SELECT s.tenant_id, s.application_id, s.endpoint_id, e.signing_key_id,
           row_number() OVER (ORDER BY t.name <> 'acme', t.name) - 1 AS place, count(*) OVER () AS senders
      FROM postrider.subscriptions s
      JOIN postrider.endpoints e USING (tenant_id, endpoint_id)
      JOIN postrider.tenants t USING (tenant_id)
), number AS (
    SELECT n, $3 + n * $4 AS accepted_ms, md5(n::text) AS hash
      FROM generate_series($1, $2) AS n
), past AS MATERIALIZED (
    SELECT sender.tenant_id, sender.application_id, sender.endpoint_id, sender.signing_key_id, n, hash,
           to_timestamp(accepted_ms / 1000.0) AS accepted_at,
           -- Version 7: 48 bits of time, 12 and 46 of chance; the last 16 are the delivery's place, 0 in the event's.
           lpad(to_hex(accepted_ms), 12, '0') || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 11) AS id,
           CASE WHEN n % 51 = 7 THEN 2 ELSE 1 END AS attempts,
           CASE WHEN n % 1001 = 3 THEN 'dead_lettered' ELSE 'delivered' END AS outcome
      FROM number
      JOIN sender ON sender.place = CASE WHEN n % 2 = 0 THEN 0 ELSE 1 + n / 2 % greatest(senders - 1, 1) END
     ORDER BY n
), keys AS (
    INSERT INTO postrider.idempotency_keys
           (application_id, key_space, idempotency_key, fingerprint, event_id, delivery_count, accepted_at)
    SELECT application_id, 1, substr(hash, 17), sha256(convert_to(hash, 'UTF8')), (id || '0000')::uuid, 1, accepted_at
      FROM past
), stored AS (
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
                                  delivery_count, accepted_at)
    SELECT tenant_id, (id || '0000')::uuid, application_id, 'order.created', 'application/json',
           convert_to('{"event":"' || lpad(to_hex(n), 16, '0') || '","padding":"' || repeat('x', 259) || '"}', 'UTF8'),
           decode(hash, 'hex'), 1, accepted_at
      FROM past
), history AS (
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
                                      accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, (id || '0001')::uuid, (id || '0000')::uuid, application_id, endpoint_id, signing_key_id,
           accepted_at, accepted_at + attempts * interval '2 seconds', outcome,
           CASE WHEN outcome = 'dead_lettered' THEN 'rejected' END, attempts
      FROM past
)
INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at, latency_ms,
                                status_code)
SELECT tenant_id, (id || '0001')::uuid, attempt,
       CASE WHEN attempt < attempts THEN 'scheduled' ELSE outcome END,
       accepted_at + (attempt - 1) * interval '2 seconds', accepted_at + (attempt - 1) * interval '2 seconds',
       1, CASE WHEN attempt < attempts THEN 503 WHEN outcome = 'delivered' THEN 200 ELSE 400 END
  FROM past CROSS JOIN LATERAL generate_series(1, past.attempts) AS attempt
