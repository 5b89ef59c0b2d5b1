-- Remembers the dead letters that match and can be sent again, oldest first, and how many each endpoint has. One
-- statement: what dies while it runs is not seen. Two arms, of which the first condition rules one out before it is run:
-- named letters are looked up one by one, all others found by walking the index of dead letters.
--
-- $1 tenant, $2 replay, $3 application and $4 endpoint by name, $5 and $6 first and last id that the time range leaves,
-- $7 since, $8 until, $9 event type, $10 beginning of event types, $11 reasons, $12 ids, $13 limit.
WITH wanted AS MATERIALIZED (
    SELECT (SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND name = $3) AS application_id,
           (SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND name = $4 AND deleted_at IS NULL) AS endpoint_id
), letters AS (
    (SELECT endpoint_id, delivery_id, attempt_number, ended_at
       FROM postrider.deliveries AS d
      WHERE $12::uuid[] IS NULL AND tenant_id = $1 AND delivery_id >= $5 AND delivery_id <= $6
        AND outcome = 'dead_lettered' AND dead_reason = ANY($11)
        AND endpoint_id IN (SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND deleted_at IS NULL)
        AND ($3::text IS NULL OR application_id = (SELECT application_id FROM wanted))
        AND ($4::text IS NULL OR endpoint_id = (SELECT endpoint_id FROM wanted))
        AND ($7::timestamptz IS NULL OR accepted_at >= $7)
        AND ($8::timestamptz IS NULL OR accepted_at < $8)
        AND (($9::text IS NULL AND $10::text IS NULL) OR EXISTS (SELECT FROM postrider.events AS e
              WHERE e.tenant_id = d.tenant_id AND e.event_id = d.event_id
                AND (e.event_type = $9 OR starts_with(e.event_type, $10))))
      ORDER BY delivery_id LIMIT $13)
    UNION ALL
    (SELECT endpoint_id, delivery_id, attempt_number, ended_at
       FROM postrider.deliveries AS d
      WHERE $12::uuid[] IS NOT NULL AND tenant_id = $1 AND delivery_id = ANY($12)
        AND outcome = 'dead_lettered' AND dead_reason = ANY($11)
        AND endpoint_id IN (SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND deleted_at IS NULL)
        AND ($3::text IS NULL OR application_id = (SELECT application_id FROM wanted))
        AND ($4::text IS NULL OR endpoint_id = (SELECT endpoint_id FROM wanted))
        AND ($7::timestamptz IS NULL OR accepted_at >= $7)
        AND ($8::timestamptz IS NULL OR accepted_at < $8)
        AND (($9::text IS NULL AND $10::text IS NULL) OR EXISTS (SELECT FROM postrider.events AS e
              WHERE e.tenant_id = d.tenant_id AND e.event_id = d.event_id
                AND (e.event_type = $9 OR starts_with(e.event_type, $10))))
      ORDER BY delivery_id LIMIT $13)
), kept AS (
    INSERT INTO postrider.replay_items (tenant_id, replay_id, endpoint_id, delivery_id, attempt_number, ended_at)
    SELECT $1, $2, endpoint_id, delivery_id, attempt_number, ended_at FROM letters
    RETURNING endpoint_id
)
INSERT INTO postrider.replay_endpoints (tenant_id, replay_id, endpoint_id, items_left)
SELECT $1, $2, endpoint_id, count(*) FROM kept GROUP BY endpoint_id
RETURNING items_left
