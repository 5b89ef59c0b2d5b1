//! The second wall between tenants, and the log that nobody changes.

use postrider_core::id::TenantId;
use postrider_store::{
    audit::{self, Action, Actor, By, Change, Filter, People, Target},
    edit::{self, Edit},
    endpoints,
    page::{Slice, begin_read},
};
use sqlx::{AssertSqlSafe, PgPool, PgTransaction};

use crate::queries_history::History;

/// Every table of the schema that has a tenant's rows.
async fn tables(pool: &PgPool) -> Vec<String> {
    let tables = sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = 'postrider' AND c.relkind IN ('r', 'p')
            AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')
          ORDER BY 1",
    );
    let tables: Vec<String> = tables.fetch_all(pool).await.expect("the catalogue can be read");
    assert!(tables.len() >= 10, "{tables:?}");
    tables
}

/// A tenant of whom every kind of row exists.
async fn inhabited() -> (History, TenantId) {
    let history = History::with_every_state().await;
    let other = history.scenario().tenant("globex").await;
    (history, other.id)
}

async fn count(transaction: &mut PgTransaction<'_>, table: &str) -> i64 {
    let statement = AssertSqlSafe(format!("SELECT count(*) FROM postrider.{table}"));
    sqlx::query_scalar(statement).fetch_one(&mut **transaction).await.expect("it may be read")
}

#[tokio::test]
async fn every_table_with_a_tenants_rows_is_walled() {
    let (history, _) = inhabited().await;
    for table in tables(history.pool()).await {
        let policies: Vec<String> = sqlx::query_scalar(
            "SELECT p.policyname::text FROM pg_policies p JOIN pg_class c ON c.relname = p.tablename
              WHERE p.schemaname = 'postrider' AND p.tablename = $1 AND c.relrowsecurity AND p.permissive = 'PERMISSIVE'
                AND c.relnamespace = 'postrider'::regnamespace ORDER BY 1",
        )
        .bind(&table)
        .fetch_all(history.pool())
        .await
        .expect("the catalogue can be read");
        assert_eq!(policies, ["a_tenant_sees_its_own_rows", "the_service_sees_all_rows"], "{table}");
    }
}

#[tokio::test]
async fn a_query_that_forgets_the_tenant_sees_nothing_of_others() {
    let (history, other) = inhabited().await;
    let mut seen = 0;
    for table in tables(history.pool()).await {
        let mut everything = history.pool().begin().await.expect("a transaction begins");
        let may_read =
            sqlx::query_scalar("SELECT has_any_column_privilege('postrider_tenant', $1, 'SELECT')");
        let may_read: Result<bool, sqlx::Error> =
            may_read.bind(format!("postrider.{table}")).fetch_one(&mut *everything).await;
        if !may_read.expect("the catalogue can be read") {
            continue;
        }
        for tenant_id in [history.tenant.id, other] {
            let own = format!("{table} WHERE tenant_id = '{}'", tenant_id.as_uuid());
            let own = count(&mut everything, &own).await;
            let mut reader = begin_read(history.pool(), tenant_id).await.expect("a transaction begins");
            assert_eq!(count(&mut reader, &table).await, own, "{table}");
            seen += own;
        }
    }
    assert!(seen > 10, "there is something to see: {seen}");
}

#[tokio::test]
async fn without_a_tenant_there_is_nothing_to_see() {
    let (history, _) = inhabited().await;
    for tenant in ["", "; SET LOCAL postrider.tenant_id = ''"] {
        let begin = AssertSqlSafe(format!("BEGIN; SET LOCAL ROLE postrider_tenant{tenant}"));
        let mut transaction = history.pool().begin_with(begin).await.expect("a transaction begins");
        assert_eq!(count(&mut transaction, "endpoints").await, 0);
        assert_eq!(count(&mut transaction, "events").await, 0);
    }
}

#[tokio::test]
async fn a_change_that_forgets_the_tenant_reaches_its_own_rows_only() {
    let (history, other) = inhabited().await;
    let by = || By { actor: Actor::Process, address: None };
    let mut edit = Edit::of_tenant(history.pool(), other, by()).await.expect("an edit begins");
    for statement in [
        "UPDATE postrider.endpoints SET enabled = enabled",
        "DELETE FROM postrider.subscriptions",
        "UPDATE postrider.deliveries SET delivery_id = delivery_id",
        "DELETE FROM postrider.deliveries",
    ] {
        let done = sqlx::query(statement).execute(&mut **edit).await.expect("it is allowed");
        assert_eq!(done.rows_affected(), 0, "{statement}");
    }
    drop(edit);
    for statement in [
        "INSERT INTO postrider.applications (tenant_id, application_id, name, kind, token_hash)
              SELECT $1, gen_random_uuid(), 'planted', 'publisher', decode(repeat('00', 32), 'hex')",
        "INSERT INTO postrider.audit_log (tenant_id, actor_kind, action, target_kind, outcome)
              VALUES ($1, 'process', 'planted', 'planted', 'done')",
    ] {
        let mut edit = Edit::of_tenant(history.pool(), other, by()).await.expect("an edit begins");
        let refused = sqlx::query(statement).bind(history.tenant.id.as_uuid()).execute(&mut **edit).await;
        let refused = refused.expect_err("a row of another tenant is refused");
        let code = refused.as_database_error().and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {refused}");
    }
}

/// What no statement of a tenant's request does, its own rows or not.
const FORBIDDEN: &[&str] = &[
    // Secrets that are compared or opened elsewhere.
    "SELECT token_hash FROM postrider.management_keys",
    "SELECT token_hash FROM postrider.applications",
    "SELECT password_hash FROM postrider.users",
    "SELECT sealed_secret FROM postrider.signing_keys",
    "SELECT * FROM postrider.installation",
    "SELECT * FROM postrider.idempotency_keys",
    // What the operator and its registry say.
    "UPDATE postrider.tenants SET approved_only = false",
    "UPDATE postrider.endpoints SET approved = true, registry_version = 1",
    "UPDATE postrider.endpoints SET allows_query = true",
    "UPDATE postrider.endpoints SET sealed_query = NULL",
    "INSERT INTO postrider.endpoints (tenant_id, approved) VALUES (postrider.current_tenant(), true)",
    "INSERT INTO postrider.endpoint_applications SELECT tenant_id, endpoint_id, application_id
       FROM postrider.endpoints JOIN postrider.applications USING (tenant_id)",
    "INSERT INTO postrider.registry_versions (tenant_id, version) VALUES (postrider.current_tenant(), 1)",
    "UPDATE postrider.tenant_usage SET events = '{}'",
    // What stays as it was made.
    "UPDATE postrider.management_keys SET role = 'owner'",
    "UPDATE postrider.management_keys SET token_hash = '\\x00'",
    "UPDATE postrider.users SET email = 'other@example.com'",
    "UPDATE postrider.applications SET kind = 'system'",
    "UPDATE postrider.signing_keys SET sealed_secret = NULL",
    "UPDATE postrider.subscriptions SET endpoint_id = gen_random_uuid()",
    "UPDATE postrider.replays SET filter = '{}'",
    // What deliveries and maintenance do.
    "UPDATE postrider.endpoints SET drained_at = now()",
    "UPDATE postrider.delivery_queue SET deadline_at = now()",
    "DELETE FROM postrider.delivery_queue",
    "INSERT INTO postrider.delivery_queue (tenant_id, lease_token)
     VALUES (postrider.current_tenant(), gen_random_uuid())",
    "UPDATE postrider.replays SET is_tidy = true",
    "UPDATE postrider.replay_endpoints SET replayed = 0",
    "DELETE FROM postrider.replay_items",
    // What has happened.
    "UPDATE postrider.events SET event_id = event_id",
    "UPDATE postrider.events SET body = ''",
    "DELETE FROM postrider.events",
    "UPDATE postrider.deliveries SET delivery_id = delivery_id",
    "UPDATE postrider.deliveries SET outcome = 'delivered', dead_reason = NULL",
    "INSERT INTO postrider.deliveries SELECT * FROM postrider.deliveries",
    "INSERT INTO postrider.attempts SELECT * FROM postrider.attempts",
    "DELETE FROM postrider.attempts",
    "INSERT INTO postrider.audit_log (tenant_id, actor_kind, action, target_kind, outcome, at)
     VALUES (postrider.current_tenant(), 'process', 'planted', 'planted', 'done', now() - interval '1 day')",
];

#[tokio::test]
async fn a_tenants_request_reads_no_token_and_writes_nothing_of_the_operators() {
    let (history, _) = inhabited().await;
    let by = || By { actor: Actor::Process, address: None };
    for statement in FORBIDDEN {
        let mut edit =
            Edit::of_tenant(history.pool(), history.tenant.id, by()).await.expect("an edit begins");
        let refused = sqlx::query(*statement).execute(&mut **edit).await;
        let refused = refused.expect_err(statement);
        let code = refused.as_database_error().and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {refused}");
    }
    // The service is a member of that role, and takes on nothing of what it may not.
    for statement in
        ["UPDATE postrider.events SET body = body", "UPDATE postrider.deliveries SET outcome = outcome"]
    {
        let begin = "BEGIN; SET LOCAL ROLE postrider_service";
        let mut transaction = history.pool().begin_with(begin).await.expect("a transaction begins");
        let done = sqlx::query(statement).execute(&mut *transaction).await.expect("it is allowed");
        assert!(done.rows_affected() > 0, "{statement}");
    }
    // What a tenant's request may not change it may lock, to send a dead letter again.
    let mut edit = Edit::of_tenant(history.pool(), history.tenant.id, by()).await.expect("an edit begins");
    for statement in [
        "SELECT event_id FROM postrider.events FOR KEY SHARE",
        "SELECT delivery_id FROM postrider.deliveries FOR UPDATE",
    ] {
        let locked = sqlx::query(statement).fetch_all(&mut **edit).await.expect("it is allowed");
        assert!(!locked.is_empty(), "{statement}");
    }
}

/// All that a tenant's request may write.
const WRITTEN: &[&str] = &[
    "applications: INSERT tenant_id, application_id, name, kind, token_hash, pepper_generation",
    "applications: UPDATE enabled, token_hash, routing_version, updated_at, pepper_generation",
    "audit_log: INSERT tenant_id, actor_kind, actor_id, actor_name, action, target_kind, target_id, target_name, fields, \
     outcome, address",
    "credentials: INSERT tenant_id, credential_id, name, kind, sealed_value",
    "credentials: UPDATE kind, sealed_value, version, updated_at",
    "deliveries: UPDATE delivery_id",
    "delivery_queue: INSERT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, \
     deadline_at, state, pending_since, attempt_number, tries, replay_id",
    "endpoints: INSERT tenant_id, endpoint_id, name, url, signing_key_id, sealed_headers, timeout_ms, max_in_flight, \
     rate_per_second, rate_burst, max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms, method, success_codes, \
     credential_id",
    "endpoints: UPDATE url, enabled, disabled_reason, version, signing_key_id, previous_signing_key_id, overlap_until, \
     sealed_headers, timeout_ms, max_in_flight, rate_per_second, rate_burst, max_attempts, max_age_seconds, \
     initial_delay_ms, max_delay_ms, updated_at, method, success_codes, credential_id, deleted_at",
    "events: UPDATE event_id",
    "management_keys: INSERT tenant_id, management_key_id, name, role, token_hash, pepper_generation",
    "management_keys: UPDATE revoked_at",
    "replay_endpoints: INSERT tenant_id, replay_id, endpoint_id, items_left",
    "replay_endpoints: UPDATE due_at",
    "replay_items: INSERT tenant_id, replay_id, endpoint_id, delivery_id, attempt_number, ended_at",
    "replays: INSERT tenant_id, replay_id, state, filter, matches, is_full, created_at, expires_at",
    "replays: UPDATE state, started_at, ended_at, replayed, not_dead_lettered, died_again, endpoint_deleted, body_gone, \
     not_listed",
    "signing_keys: INSERT tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret",
    "subscriptions: INSERT tenant_id, subscription_id, name, application_id, endpoint_id, event_types",
    "subscriptions: UPDATE event_types, enabled, updated_at",
    "tenant_usage: UPDATE open_at_most, opened",
    "users: INSERT tenant_id, user_id, email, role, password_hash",
    "users: UPDATE role, enabled, password_hash, credential_version, updated_at",
];

/// And where it may delete rows.
const DELETED: &[&str] =
    &["credentials", "deliveries", "endpoint_applications", "management_keys", "subscriptions", "users"];

/// A table that is added says which columns a tenant's request may write, and opens no secret by the way.
#[tokio::test]
async fn a_tenants_request_writes_columns_and_no_whole_tables() {
    let history = History::empty().await;
    let list = async |query: &'static str| -> Vec<String> {
        sqlx::query_scalar(query).fetch_all(history.pool()).await.expect("the catalogue can be read")
    };
    let whole = list(
        "SELECT privilege || ' ' || relname FROM pg_class,
                unnest(ARRAY['INSERT', 'UPDATE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege
          WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p')
            AND has_table_privilege('postrider_tenant', oid, privilege) ORDER BY 1",
    );
    // Its rows are what a preview finds, every column of them.
    assert_eq!(whole.await, ["INSERT replay_items"]);
    let deleted = list(
        "SELECT relname::text FROM pg_class
          WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p')
            AND has_table_privilege('postrider_tenant', oid, 'DELETE') ORDER BY 1",
    );
    assert_eq!(deleted.await, DELETED);
    let written = list(
        "SELECT relname || ': ' || privilege || ' ' || string_agg(attname, ', ' ORDER BY attnum)
           FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid, unnest(ARRAY['INSERT', 'UPDATE']) AS privilege
          WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
            AND has_column_privilege('postrider_tenant', attrelid, attnum, privilege)
          GROUP BY relname, privilege ORDER BY 1",
    );
    assert_eq!(written.await, WRITTEN);
    let secrets = list(
        "SELECT relname || '.' || attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
          WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
            AND (attname LIKE '%hash' OR attname LIKE 'sealed%')
            AND has_column_privilege('postrider_tenant', attrelid, attnum, 'SELECT') ORDER BY 1",
    );
    // The first two are opened to be compared with each other and changed; of a registry's version nothing is secret.
    let read = [
        "credentials.sealed_value",
        "endpoints.sealed_headers",
        "endpoints.sealed_query",
        "registry_versions.document_hash",
    ];
    assert_eq!(secrets.await, read);
}

#[tokio::test]
async fn the_role_ends_with_its_transaction() {
    let (history, _) = inhabited().await;
    for _ in 0..20 {
        let mut reader = begin_read(history.pool(), history.tenant.id).await.expect("a transaction begins");
        assert_eq!(count(&mut reader, "tenants").await, 1);
        drop(reader);
        let mut everything = history.pool().begin().await.expect("a transaction begins");
        assert_eq!(count(&mut everything, "tenants").await, 2, "the pool's own role is back");
    }
}

#[tokio::test]
async fn a_change_is_committed_with_its_entry_or_not_at_all() {
    let history = History::empty().await;
    let tenant_id = history.tenant.id;
    let by = By { actor: Actor::CommandLine, address: Some([192, 0, 2, 1].into()) };
    let disable = async |edit: &mut Edit| {
        let id = history.warehouse.id;
        endpoints::set_disabled(edit, tenant_id, id, Some(endpoints::DisabledReason::Requested)).await
    };
    let change = || Change {
        action: Action::EndpointChanged,
        target: Target::new("endpoint", history.warehouse.id, "warehouse"),
        fields: &["enabled"],
    };

    let mut dropped = Edit::of_tenant(history.pool(), tenant_id, by.clone()).await.expect("an edit begins");
    disable(&mut dropped).await.expect("it is changed");
    dropped.record(&change()).await.expect("it is recorded");
    drop(dropped);
    let mut silent = Edit::of_tenant(history.pool(), tenant_id, by.clone()).await.expect("an edit begins");
    disable(&mut silent).await.expect("it is changed");
    silent.commit_recorded().await.expect("nothing was recorded, so nothing changes");
    assert!(is_enabled(&history).await);
    assert!(entries(&history, &Filter::default()).await.is_empty());

    let mut edit = Edit::of_tenant(history.pool(), tenant_id, by).await.expect("an edit begins");
    disable(&mut edit).await.expect("it is changed");
    edit.commit(change()).await.expect("it is committed");
    assert!(!is_enabled(&history).await);
    let entries = entries(&history, &Filter { people: People::Shown, ..Filter::default() }).await;
    let [entry] = entries.as_slice() else { panic!("one entry: {entries:?}") };
    assert_eq!((entry.action.as_str(), entry.outcome.as_str()), ("endpoint.changed", "done"));
    assert_eq!(entry.address.as_deref(), Some("192.0.2.1"));
    assert_eq!(entry.fields, ["enabled"]);
}

async fn is_enabled(history: &History) -> bool {
    let enabled = sqlx::query_scalar("SELECT enabled FROM postrider.endpoints WHERE name = 'warehouse'");
    enabled.fetch_one(history.pool()).await.expect("the endpoint")
}

async fn entries(history: &History, filter: &Filter) -> Vec<audit::Entry> {
    let mut reader = begin_read(history.pool(), history.tenant.id).await.expect("a transaction begins");
    let slice = Slice { before: None, rows: 100 };
    audit::list(&mut reader, history.tenant.id, filter, slice).await.expect("the log is read")
}

#[tokio::test]
async fn nobody_changes_the_log() {
    let history = History::empty().await;
    let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
    sqlx::query(
        "INSERT INTO postrider.audit_log (tenant_id, actor_kind, action, target_kind, outcome)
         VALUES ($1, 'process', 'endpoint.gone', 'endpoint', 'done')",
    )
    .bind(history.tenant.id.as_uuid())
    .execute(&mut *transaction)
    .await
    .expect("an entry");
    transaction.commit().await.expect("commit");
    for statement in [
        "UPDATE postrider.audit_log SET action = 'nothing'",
        "DELETE FROM postrider.audit_log",
        "TRUNCATE postrider.audit_log",
    ] {
        let refused = sqlx::query(statement).execute(history.pool()).await.expect_err("it is refused");
        assert!(refused.to_string().contains("append only"), "{statement}: {refused}");
    }
    assert_eq!(entries(&history, &Filter::default()).await.len(), 1);
    let filter = Filter { action: Some(Action::EndpointCreated), ..Filter::default() };
    assert_eq!(entries(&history, &filter).await.len(), 0);
}

#[tokio::test]
async fn entries_of_one_moment_keep_their_order_of_milliseconds() {
    let history = History::empty().await;
    let made: bool = sqlx::query_scalar(
        "SELECT bool_and(id >= previous) FROM (
             SELECT id, lag(id, 1, '00000000-0000-0000-0000-000000000000') OVER (ORDER BY round) AS previous
               FROM (SELECT round, postrider.fresh_id() AS id, pg_sleep(0.002)
                       FROM generate_series(1, 20) AS round) AS made) AS ordered",
    )
    .fetch_one(history.pool())
    .await
    .expect("ids");
    assert!(made, "ids sort by their millisecond");
    let id: uuid::Uuid =
        sqlx::query_scalar("SELECT postrider.fresh_id()").fetch_one(history.pool()).await.expect("an id");
    assert_eq!(id.get_version_num(), 7);
}
