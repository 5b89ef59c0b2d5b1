-- A tenant's deliveries, newest first. Three arms, each of which walks one index backwards from the cursor and stops at
-- the limit. An arm that the wanted state rules out is not run: its first condition holds parameters only. Dead letters
-- have an arm of their own because a healthy history hides them among millions. The event's type and the newest
-- attempt are looked up row by row, so that no misjudged number of rows can turn a lookup into a scan of all of them.
--
-- $1 tenant, $2 application and $3 endpoint by name, $5 and $6 first and last id that time range and cursor leave,
-- $7 state, $8 since, $9 until, $10 event type, $11 limit; run open ($4), ended ($12), dead ($13).
WITH wanted AS MATERIALIZED (
    SELECT (SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND name = $2) AS application_id,
           -- Several, where earlier endpoints of that name were deleted.
           ARRAY(SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND name = $3) AS endpoint_ids
), found AS (
    (SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, state,
            due_at, deadline_at, pending_since, leased_at, NULL::timestamptz AS ended_at,
            NULL::text AS dead_reason, attempt_number
       FROM postrider.delivery_queue AS q
      WHERE $4::boolean AND tenant_id = $1 AND delivery_id >= $5 AND delivery_id <= $6
        AND ($7::text IS NULL OR state = $7)
        AND ($2::text IS NULL OR application_id = (SELECT application_id FROM wanted))
        AND ($3::text IS NULL OR endpoint_id = ANY ((SELECT endpoint_ids FROM wanted)::uuid[]))
        AND ($8::timestamptz IS NULL OR accepted_at >= $8)
        AND ($9::timestamptz IS NULL OR accepted_at < $9)
        AND ($10::text IS NULL OR $10 = (SELECT event_type FROM postrider.events AS e
              WHERE e.tenant_id = q.tenant_id AND e.event_id = q.event_id))
      ORDER BY delivery_id DESC LIMIT $11)
    UNION ALL
    (SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, outcome,
            NULL, NULL, NULL, NULL, ended_at, dead_reason, attempt_number
       FROM postrider.deliveries AS d
      WHERE $12::boolean AND tenant_id = $1 AND delivery_id >= $5 AND delivery_id <= $6
        AND ($7::text IS NULL OR outcome = $7)
        AND ($2::text IS NULL OR application_id = (SELECT application_id FROM wanted))
        AND ($3::text IS NULL OR endpoint_id = ANY ((SELECT endpoint_ids FROM wanted)::uuid[]))
        AND ($8::timestamptz IS NULL OR accepted_at >= $8)
        AND ($9::timestamptz IS NULL OR accepted_at < $9)
        AND ($10::text IS NULL OR $10 = (SELECT event_type FROM postrider.events AS e
              WHERE e.tenant_id = d.tenant_id AND e.event_id = d.event_id))
      ORDER BY delivery_id DESC LIMIT $11)
    UNION ALL
    (SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, outcome,
            NULL, NULL, NULL, NULL, ended_at, dead_reason, attempt_number
       FROM postrider.deliveries AS d
      WHERE $13::boolean AND tenant_id = $1 AND delivery_id >= $5 AND delivery_id <= $6
        AND outcome = 'dead_lettered'
        AND ($2::text IS NULL OR application_id = (SELECT application_id FROM wanted))
        AND ($3::text IS NULL OR endpoint_id = ANY ((SELECT endpoint_ids FROM wanted)::uuid[]))
        AND ($8::timestamptz IS NULL OR accepted_at >= $8)
        AND ($9::timestamptz IS NULL OR accepted_at < $9)
        AND ($10::text IS NULL OR $10 = (SELECT event_type FROM postrider.events AS e
              WHERE e.tenant_id = d.tenant_id AND e.event_id = d.event_id))
      ORDER BY delivery_id DESC LIMIT $11)
    ORDER BY delivery_id DESC LIMIT $11
)
SELECT f.delivery_id AS "delivery_id!", f.event_id AS "event_id!", f.signing_key_id AS "signing_key_id!",
       a.name AS application, p.name AS endpoint,
       (SELECT event_type FROM postrider.events AS e WHERE e.tenant_id = $1 AND e.event_id = f.event_id) AS event_type,
       f.accepted_at AS "accepted_at!", f.state AS "state!", f.due_at, f.deadline_at, f.pending_since,
       f.leased_at, f.ended_at, f.dead_reason, f.attempt_number AS "attempt_number!",
       last.status_code AS "last_status?", last.failure AS "last_failure?"
  FROM found AS f
  JOIN postrider.applications AS a ON a.tenant_id = $1 AND a.application_id = f.application_id
  JOIN postrider.endpoints AS p ON p.tenant_id = $1 AND p.endpoint_id = f.endpoint_id
  LEFT JOIN LATERAL (
       SELECT status_code, failure FROM postrider.attempts AS t
        WHERE t.tenant_id = $1 AND t.delivery_id = f.delivery_id ORDER BY attempt_number DESC LIMIT 1
  ) AS last ON true
 ORDER BY f.delivery_id DESC
