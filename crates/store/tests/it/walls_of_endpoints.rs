//! The second wall around endpoints: where deliveries go is settled by the database, too.

use postrider_core::id::TenantId;
use postrider_store::{
    audit::{Actor, By},
    edit::Edit,
};
use sqlx::AssertSqlSafe;

use crate::queries_history::History;

/// Whatever a query says, and whichever check before it was forgotten.
#[tokio::test]
async fn no_request_of_a_tenant_leads_deliveries_where_it_should_not() {
    let history = History::with_every_state().await;
    let other = history.scenario().tenant("globex").await.id;
    let foreign = history.scenario().tenant("initech").await;
    let foreign = foreign.endpoint("theirs", "https://theirs.example/hook").create().await;
    let refused = async |tenant_id: TenantId, statement: String| {
        let by = By { actor: Actor::Process, address: None };
        let mut edit = Edit::of_tenant(history.pool(), tenant_id, by).await.expect("an edit begins");
        let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut **edit).await;
        let code = done
            .as_ref()
            .err()
            .and_then(sqlx::Error::as_database_error)
            .and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {done:?}");
    };
    // The queue names endpoints and keys by their ids alone.
    for (endpoint, key) in [
        (foreign.id.as_uuid().to_string(), "signing_key_id".to_owned()),
        ("endpoint_id".to_owned(), foreign.signing_key_id.as_uuid().to_string()),
    ] {
        let quoted = |id: &str| if id.contains('-') { format!("'{id}'::uuid") } else { id.to_owned() };
        let statement = format!(
            "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
                    accepted_at, deadline_at, state, pending_since, attempt_number, tries)
             SELECT tenant_id, gen_random_uuid(), event_id, application_id, {}, {}, now(), now(), 'pending', now(), 0, 0
               FROM postrider.deliveries LIMIT 1",
            quoted(&endpoint),
            quoted(&key)
        );
        refused(history.tenant.id, statement).await;
    }
    for statement in [
        "INSERT INTO postrider.registry_versions (tenant_id, version, document, document_hash, applied_by)
         VALUES ($1, 1, '{}', decode(repeat('00', 32), 'hex'), 'test')",
        "UPDATE postrider.endpoints SET approved = true, registry_version = 1 WHERE tenant_id = $1",
        "UPDATE postrider.tenants SET approved_only = true WHERE tenant_id = $1",
    ] {
        let done = sqlx::query(statement).bind(history.tenant.id.as_uuid()).execute(history.pool()).await;
        assert!(done.expect(statement).rows_affected() > 0, "{statement}");
    }
    for change in
        ["url = 'https://elsewhere.example/'", "credential_id = NULL", "deleted_at = now()", "method = 'PUT'"]
    {
        refused(history.tenant.id, format!("UPDATE postrider.endpoints SET {change}")).await;
    }
    let insert = "INSERT INTO postrider.endpoints (tenant_id, endpoint_id, name, signing_key_id, url, timeout_ms, max_in_flight,
                         max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms)
                  VALUES (postrider.current_tenant(), gen_random_uuid(), 'new', gen_random_uuid(), 'https://new.example/', 1000,
                          10, 5, 3600, 1000, 2000)";
    refused(history.tenant.id, insert.to_owned()).await;

    // Switching them is the tenant's affair, and so is every endpoint of a tenant that is held to none.
    let by = || By { actor: Actor::Process, address: None };
    let mut edit = Edit::of_tenant(history.pool(), history.tenant.id, by()).await.expect("an edit begins");
    let disable =
        "UPDATE postrider.endpoints SET enabled = false, disabled_reason = 'requested', updated_at = now()";
    assert!(sqlx::query(disable).execute(&mut **edit).await.expect("it is allowed").rows_affected() > 0);
    let mut edit = Edit::of_tenant(history.pool(), other, by()).await.expect("an edit begins");
    sqlx::query(insert).execute(&mut **edit).await.expect("it is allowed");
}
