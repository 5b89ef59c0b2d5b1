WITH found AS MATERIALIZED (
    SELECT row.location, row.state, row.pending_since, row.due_at, named.place, e.version
      FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::int[])
               AS named (place, tenant_id, delivery_id, attempt_number)
     CROSS JOIN LATERAL (
           SELECT ctid AS location, state, pending_since, due_at, endpoint_id
             FROM postrider.delivery_queue
            WHERE tenant_id = named.tenant_id AND delivery_id = named.delivery_id
              -- Another number: the message is out of date.
              AND attempt_number = named.attempt_number
              AND state IN ('pending', 'scheduled')
              -- Past its deadline a delivery waits for the deadline sweep.
              AND deadline_at > now()
            LIMIT 1
              FOR UPDATE SKIP LOCKED) AS row
      JOIN postrider.endpoints e ON e.endpoint_id = row.endpoint_id
     -- What is scheduled for a disabled endpoint is held when it is due.
     WHERE e.enabled
), claimed AS (
    UPDATE postrider.delivery_queue q
       SET state = 'in_flight', pending_since = NULL, due_at = NULL, attempt_number = q.attempt_number + 1,
           tries = q.tries + 1, lease_owner = $5, lease_token = $6, leased_at = now(),
           lease_until = now() + make_interval(secs => $7)
      FROM found
     WHERE q.ctid = found.location AND (found.state = 'pending' OR found.due_at <= now())
    RETURNING found.place, q.tenant_id, q.delivery_id, q.event_id, q.endpoint_id, q.signing_key_id,
              q.accepted_at, q.deadline_at, q.attempt_number, q.tries,
              coalesce(found.pending_since, found.due_at) AS pending_since, found.version
)
SELECT c.place AS "place!", NULL::float8 AS wait_seconds, c.tenant_id AS "tenant_id?", c.delivery_id AS "delivery_id?",
       c.endpoint_id AS "endpoint_id?", c.version AS "version?", c.signing_key_id AS "signing_key_id?",
       c.accepted_at AS "accepted_at?", c.deadline_at AS "deadline_at?", c.attempt_number AS "attempt_number?",
       c.tries AS "tries?", c.pending_since AS "pending_since?", now() AS "claimed_at!",
       e.event_type AS "event_type?", e.content_type AS "content_type?", e.trace_id AS "trace_id?", e.body AS "body?"
  FROM claimed c
  LEFT JOIN postrider.events e ON e.tenant_id = c.tenant_id AND e.event_id = c.event_id
UNION ALL
SELECT place, extract(epoch FROM due_at - now())::float8, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       now(), NULL, NULL, NULL, NULL
  FROM found WHERE state = 'scheduled' AND due_at > now()
