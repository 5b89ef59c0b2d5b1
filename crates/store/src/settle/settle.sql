WITH item AS MATERIALIZED (
    SELECT item.*, held.location
      FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::float8[], $7::text[],
                  $8::float8[], $9::int[], $10::smallint[], $11::text[], $12::text[], $13::bigint[])
               AS item (place, tenant_id, delivery_id, token, verdict, delay_seconds, dead_reason,
                        started_seconds_ago, latency_ms, status_code, failure, detail, registry_version)
     CROSS JOIN LATERAL (
           SELECT ctid AS location FROM postrider.delivery_queue
            WHERE tenant_id = item.tenant_id AND delivery_id = item.delivery_id
              AND state = 'in_flight' AND lease_token = item.token
            LIMIT 1) AS held
), ended AS (
    -- State and token again: the row may have changed after the look. Nothing changes a leased row and leaves its token.
    DELETE FROM postrider.delivery_queue q USING item
     WHERE q.ctid = item.location AND q.state = 'in_flight' AND q.lease_token = item.token
       AND item.verdict IN ('delivered', 'dead_lettered')
    RETURNING q.tenant_id, q.delivery_id, q.event_id, q.application_id, q.endpoint_id, q.signing_key_id,
              q.accepted_at, q.attempt_number, item.place, item.verdict, item.dead_reason,
              item.started_seconds_ago, item.latency_ms, item.status_code, item.failure, item.detail,
              item.registry_version
), rescheduled AS (
    UPDATE postrider.delivery_queue q
       SET state = 'scheduled', due_at = now() + make_interval(secs => item.delay_seconds),
           lease_owner = NULL, lease_token = NULL, leased_at = NULL, lease_until = NULL
      FROM item
     WHERE q.ctid = item.location AND q.state = 'in_flight' AND q.lease_token = item.token
       AND item.verdict = 'scheduled'
    RETURNING q.tenant_id, q.delivery_id, q.attempt_number, item.place, item.verdict,
              item.started_seconds_ago, item.latency_ms, item.status_code, item.failure, item.detail,
              item.registry_version
), released AS (
    UPDATE postrider.delivery_queue q
       SET state = 'pending', pending_since = now(),
           attempt_number = q.attempt_number - 1, tries = q.tries - 1,
           lease_owner = NULL, lease_token = NULL, leased_at = NULL, lease_until = NULL
      FROM item
     WHERE q.ctid = item.location AND q.state = 'in_flight' AND q.lease_token = item.token
       AND item.verdict = 'released'
    RETURNING item.place
), history AS (
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, now(), verdict, dead_reason, attempt_number
      FROM ended
), evidence AS (
    INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at,
           latency_ms, status_code, failure, detail, registry_version)
    SELECT tenant_id, delivery_id, attempt_number, verdict,
           now() - make_interval(secs => started_seconds_ago),
           now() - make_interval(secs => started_seconds_ago) + make_interval(secs => latency_ms / 1000.0),
           latency_ms, status_code, failure, detail, registry_version
      FROM (SELECT tenant_id, delivery_id, attempt_number, verdict, started_seconds_ago, latency_ms,
                   status_code, failure, detail, registry_version FROM ended
            UNION ALL
            SELECT tenant_id, delivery_id, attempt_number, verdict, started_seconds_ago, latency_ms,
                   status_code, failure, detail, registry_version FROM rescheduled) AS attempted
)
SELECT place AS "place!" FROM ended
UNION ALL SELECT place FROM rescheduled
UNION ALL SELECT place FROM released
