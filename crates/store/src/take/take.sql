WITH asked AS MATERIALIZED (
    SELECT a.endpoint_id, a.row_limit, coalesce(a.low_water, '-infinity') AS low_water, e.version
      FROM unnest($1::uuid[], $2::int[], $3::timestamptz[]) AS a (endpoint_id, row_limit, low_water)
      JOIN postrider.endpoints e USING (endpoint_id)
     WHERE e.enabled
), picked AS MATERIALIZED (
    SELECT row.location, row.pending_since, asked.version
      FROM asked CROSS JOIN LATERAL (
           SELECT ctid AS location, pending_since
             FROM postrider.delivery_queue
            WHERE endpoint_id = asked.endpoint_id AND state = 'pending'
              AND pending_since >= asked.low_water
              -- Past its deadline a delivery waits for the deadline sweep.
              AND deadline_at > now()
            ORDER BY pending_since
            LIMIT asked.row_limit
              FOR UPDATE SKIP LOCKED) AS row
), claimed AS (
    UPDATE postrider.delivery_queue q
       SET state = 'in_flight', pending_since = NULL, attempt_number = q.attempt_number + 1,
           tries = q.tries + 1, lease_owner = $4, lease_token = $5, leased_at = now(),
           lease_until = now() + make_interval(secs => $6)
      FROM picked
     WHERE q.ctid = picked.location
    RETURNING q.tenant_id, q.delivery_id, q.event_id, q.endpoint_id, q.signing_key_id,
              q.accepted_at, q.deadline_at, q.attempt_number, q.tries, picked.pending_since, picked.version
)
SELECT c.tenant_id AS "tenant_id!", c.delivery_id AS "delivery_id!",
       c.endpoint_id AS "endpoint_id!", c.version AS "version!", c.signing_key_id AS "signing_key_id!",
       c.accepted_at AS "accepted_at!", c.deadline_at AS "deadline_at!",
       c.attempt_number AS "attempt_number!", c.tries AS "tries!", c.pending_since AS "pending_since!",
       now() AS "claimed_at!", e.event_type AS "event_type?", e.content_type AS "content_type?",
       e.trace_id AS "trace_id?", e.body AS "body?"
  FROM claimed c
  LEFT JOIN postrider.events e ON e.tenant_id = c.tenant_id AND e.event_id = c.event_id
