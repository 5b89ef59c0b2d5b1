-- What a tenant's request may do, column by column: it reads no secret that it has no use for, and writes what its statements
-- write and nothing else. What is marked as the operator's (who is approved, what has been drained, when an entry was made)
-- stays so whatever a query says.

-- Nobody looks a token up here: whose it is was found before the request became its tenant's.
REVOKE ALL ON postrider.management_keys FROM postrider_tenant;
GRANT SELECT (tenant_id, management_key_id, name, role, created_at, revoked_at),
      INSERT (tenant_id, management_key_id, name, role, token_hash, pepper_generation),
      UPDATE (revoked_at), DELETE
   ON postrider.management_keys TO postrider_tenant;

REVOKE ALL ON postrider.applications FROM postrider_tenant;
GRANT SELECT (tenant_id, application_id, name, kind, enabled, routing_version, created_at, updated_at),
      INSERT (tenant_id, application_id, name, kind, token_hash, pepper_generation),
      UPDATE (enabled, token_hash, pepper_generation, routing_version, updated_at)
   ON postrider.applications TO postrider_tenant;

REVOKE INSERT, UPDATE ON postrider.users FROM postrider_tenant;
GRANT INSERT (tenant_id, user_id, email, role, password_hash),
      UPDATE (role, enabled, password_hash, credential_version, updated_at)
   ON postrider.users TO postrider_tenant;

-- Approval, and the query that comes with it, are the registry's.
REVOKE INSERT, UPDATE ON postrider.endpoints FROM postrider_tenant;
GRANT INSERT (tenant_id, endpoint_id, name, signing_key_id, url, sealed_headers, timeout_ms, max_in_flight, rate_per_second,
              rate_burst, max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms, method, success_codes, credential_id),
      UPDATE (url, sealed_headers, timeout_ms, max_in_flight, rate_per_second, rate_burst, max_attempts, max_age_seconds,
              initial_delay_ms, max_delay_ms, method, success_codes, credential_id, signing_key_id, previous_signing_key_id,
              overlap_until, enabled, disabled_reason, deleted_at, version, updated_at)
   ON postrider.endpoints TO postrider_tenant;

-- Secrets are made here and opened where requests to receivers are.
REVOKE ALL ON postrider.signing_keys FROM postrider_tenant;
GRANT SELECT (tenant_id, signing_key_id, endpoint_id, algorithm, created_at),
      INSERT (tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret)
   ON postrider.signing_keys TO postrider_tenant;

REVOKE INSERT, UPDATE ON postrider.credentials FROM postrider_tenant;
GRANT INSERT (tenant_id, credential_id, name, kind, sealed_value), UPDATE (kind, sealed_value, version, updated_at)
   ON postrider.credentials TO postrider_tenant;

REVOKE INSERT, UPDATE ON postrider.subscriptions FROM postrider_tenant;
GRANT INSERT (tenant_id, subscription_id, name, application_id, endpoint_id, event_types),
      UPDATE (enabled, event_types, updated_at)
   ON postrider.subscriptions TO postrider_tenant;

-- What goes back into the queue waits there: leases are taken by workers.
REVOKE INSERT ON postrider.delivery_queue FROM postrider_tenant;
GRANT INSERT (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, deadline_at, state,
              pending_since, attempt_number, tries, replay_id)
   ON postrider.delivery_queue TO postrider_tenant;

REVOKE INSERT, UPDATE ON postrider.replays FROM postrider_tenant;
GRANT INSERT (tenant_id, replay_id, state, filter, matches, is_full, created_at, expires_at),
      UPDATE (state, started_at, ended_at, replayed, not_dead_lettered, died_again, endpoint_deleted, body_gone)
   ON postrider.replays TO postrider_tenant;

REVOKE INSERT, UPDATE ON postrider.replay_endpoints FROM postrider_tenant;
GRANT INSERT (tenant_id, replay_id, endpoint_id, items_left), UPDATE (due_at)
   ON postrider.replay_endpoints TO postrider_tenant;

-- An entry is of the moment at which it is made.
REVOKE INSERT ON postrider.audit_log FROM postrider_tenant;
GRANT INSERT (tenant_id, actor_kind, actor_id, actor_name, action, target_kind, target_id, target_name, fields, outcome,
              address)
   ON postrider.audit_log TO postrider_tenant;

-- A lock takes the right to change some column; with it goes no right to change anything. The service is a member of the role,
-- so that a policy for the role holds for the service, too: it says whom it means.
CREATE POLICY a_tenant_locks_and_changes_nothing ON postrider.events AS RESTRICTIVE FOR UPDATE TO postrider_tenant
    USING (true) WITH CHECK (current_user <> 'postrider_tenant');
CREATE POLICY a_tenant_locks_and_changes_nothing ON postrider.deliveries AS RESTRICTIVE FOR UPDATE TO postrider_tenant
    USING (true) WITH CHECK (current_user <> 'postrider_tenant');

-- Where an approved endpoint leads, and what goes along, is the registry's to say; a tenant held to approved endpoints makes none.
CREATE FUNCTION postrider.refuse_a_tenants_request() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a tenant''s request may not change this row of %', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER the_registry_says_where_approved_endpoints_lead
    BEFORE UPDATE OF url, sealed_headers, timeout_ms, max_in_flight, rate_per_second, rate_burst, max_attempts, max_age_seconds,
                     initial_delay_ms, max_delay_ms, method, success_codes, credential_id, deleted_at
    ON postrider.endpoints FOR EACH ROW WHEN (OLD.approved AND current_user = 'postrider_tenant')
    EXECUTE FUNCTION postrider.refuse_a_tenants_request();
CREATE POLICY a_tenant_held_to_approved_endpoints_makes_none ON postrider.endpoints AS RESTRICTIVE FOR INSERT TO postrider_tenant
    WITH CHECK (current_user <> 'postrider_tenant' OR NOT EXISTS (
        SELECT FROM postrider.tenants t WHERE t.tenant_id = endpoints.tenant_id AND t.approved_only));

-- Nothing else holds a row of the queue to its tenant's endpoint and key: workers follow its ids.
CREATE POLICY a_tenant_sends_to_its_own_endpoints ON postrider.delivery_queue AS RESTRICTIVE FOR INSERT TO postrider_tenant
    WITH CHECK (current_user <> 'postrider_tenant' OR EXISTS (
        SELECT FROM postrider.signing_keys k JOIN postrider.endpoints e USING (tenant_id, endpoint_id)
         WHERE k.tenant_id = delivery_queue.tenant_id AND k.endpoint_id = delivery_queue.endpoint_id
           AND k.signing_key_id = delivery_queue.signing_key_id));
