WITH ended AS (
    DELETE FROM postrider.delivery_queue q USING unnest($2::uuid[]) AS item (delivery_id)
     WHERE q.tenant_id = $1 AND q.delivery_id = item.delivery_id
    RETURNING q.*
), history AS (
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
                                      accepted_at, ended_at, outcome, attempt_number)
    SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, now(), 'delivered', attempt_number
      FROM ended
)
INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at, latency_ms,
                                status_code)
SELECT tenant_id, delivery_id, attempt_number, 'delivered', leased_at, now(), 1, 200 FROM ended
