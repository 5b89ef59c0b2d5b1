//! Everything that is sealed is sealed anew, and nothing else changes.

use std::collections::BTreeSet;

use postrider_core::{
    credential::{Bearer, Credential},
    header::CustomHeaders,
    seal::{Context, Keyring, Purpose},
};
use postrider_store::rotation::{
    encryption::{BATCH_ROWS, Error, Progress, Rotation},
    sealed::{self, Column},
};
use postrider_testkit::{
    postgres::Database,
    scenario::{self, Scenario, Tenant},
};
use sqlx::PgPool;
use uuid::Uuid;

use super::by;

const NEW: [u8; 32] = [9; 32];

/// Both keys, the new one sealing.
fn during() -> Keyring {
    Keyring::new(NEW, Some(scenario::ENCRYPTION_KEY)).expect("keyring")
}

fn after() -> Keyring {
    Keyring::new(NEW, None).expect("keyring")
}

fn nonce() -> [u8; 12] {
    let [nonce @ .., _, _, _, _] = Uuid::new_v4().into_bytes();
    nonce
}

async fn rotate(pool: &PgPool, keyring: &Keyring) -> Result<Progress, Error> {
    Rotation { pool, keyring, nonce: || Ok(nonce()) }.run(by(), |_| ()).await
}

/// A tenant with a value in each sealed column, and enough signing keys for several batches.
async fn filled(pool: &PgPool) -> (Tenant, u64) {
    let acme = Scenario::new(pool.clone()).tenant("acme").await;
    let endpoint = acme.endpoint("warehouse", "https://example.com/").create().await;
    let bearer = Bearer::new("a-token-of-the-vendors".into()).expect("a token");
    acme.credential("vendor", &Credential::Bearer(bearer)).await;
    let seal = |purpose, row, plaintext: &[u8]| {
        let context = Context { purpose, tenant: acme.id, row };
        scenario::keyring().seal(nonce(), &context, plaintext)
    };
    let row = endpoint.id.as_uuid();
    let headers = CustomHeaders::from_pairs([("x-vendor", "secret")]).expect("headers");
    sqlx::query(
        "UPDATE postrider.endpoints SET sealed_headers = $2, sealed_query = $3, allows_query = true, approved = true,
                registry_version = 1 WHERE endpoint_id = $1",
    )
    .bind(row)
    .bind(seal(Purpose::EndpointHeaders, row, &headers.to_stored()))
    .bind(seal(Purpose::EndpointQuery, row, b"key=secret"))
    .execute(pool)
    .await
    .expect("the endpoint's values are set");
    let keys: Vec<Uuid> = (0..BATCH_ROWS * 2).map(|_| Uuid::now_v7()).collect();
    let envelopes: Vec<Vec<u8>> =
        keys.iter().map(|key| seal(Purpose::SigningSecret, *key, key.as_bytes())).collect();
    sqlx::query(
        "INSERT INTO postrider.signing_keys (tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret)
         SELECT $1, key.id, $2, 'hmac-sha256', key.envelope FROM unnest($3::uuid[], $4::bytea[]) AS key (id, envelope)",
    )
    .bind(acme.id.as_uuid())
    .bind(row)
    .bind(&keys)
    .bind(&envelopes)
    .execute(pool)
    .await
    .expect("the keys are stored");
    // The endpoint's first key, and one value in each other column.
    (acme, u64::from(BATCH_ROWS) * 2 + 1 + 3)
}

/// Everything but the sealed values: what caches and people go by.
async fn versions(pool: &PgPool) -> Vec<(String, i64)> {
    let versions = "SELECT name || updated_at, version FROM postrider.endpoints
                    UNION ALL SELECT name || updated_at, version FROM postrider.credentials ORDER BY 1";
    sqlx::query_as(versions).fetch_all(pool).await.expect("the versions")
}

#[tokio::test]
async fn every_column_that_holds_sealed_values_is_listed() {
    let database = Database::fresh().await;
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT table_name || '.' || column_name FROM information_schema.columns
          WHERE table_schema = 'postrider' AND data_type = 'bytea' AND column_name LIKE 'sealed\\_%'",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    let listed: BTreeSet<&str> = Column::ALL.iter().map(|column| column.as_str()).collect();
    assert_eq!(columns.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);

    filled(database.pool()).await;
    let counts = sealed::count(database.pool()).await.unwrap();
    let counted: BTreeSet<&str> = counts.iter().map(|count| count.column.as_str()).collect();
    assert_eq!(counted, listed, "each is counted under its own name");
    let many = counts.iter().find(|count| count.values > 1).expect("many values");
    assert_eq!(many.column, Column::SigningSecret);
}

#[tokio::test]
async fn everything_comes_under_the_new_key_and_no_version_rises() {
    let database = Database::fresh().await;
    let pool = database.pool();
    let (acme, values) = filled(pool).await;
    let before = versions(pool).await;
    let mut told = Vec::new();
    let keyring = during();
    let rotation = Rotation { pool, keyring: &keyring, nonce: || Ok(nonce()) };
    let done = rotation.run(by(), |progress| told.push(progress.resealed)).await.expect("all is sealed anew");
    assert_eq!(done, Progress { resealed: values, to_do: values });
    assert!(told.is_sorted() && told.len() >= 6, "a batch at a time: {told:?}");
    assert_eq!(versions(pool).await, before);

    let counts = sealed::count(pool).await.unwrap();
    assert!(counts.iter().all(|count| count.key == Some(after().current_id())), "{counts:?}");
    let keys: Vec<(Uuid, Vec<u8>)> =
        sqlx::query_as("SELECT signing_key_id, sealed_secret FROM postrider.signing_keys")
            .fetch_all(pool)
            .await
            .unwrap();
    for (row, envelope) in &keys {
        let context = Context { purpose: Purpose::SigningSecret, tenant: acme.id, row: *row };
        assert!(after().open(&context, envelope).is_ok(), "{row}");
    }
    assert_eq!(rotate(pool, &keyring).await.unwrap(), Progress::default(), "a second run finds nothing");
    let actions: Vec<String> = sqlx::query_scalar("SELECT action FROM postrider.audit_log ORDER BY audit_id")
        .fetch_all(pool)
        .await
        .unwrap();
    assert_eq!(actions, ["encryption_key.rotation_begun", "encryption_key.rotated"]);
}

#[tokio::test]
async fn without_the_key_of_something_stored_nothing_is_changed() {
    let database = Database::fresh().await;
    let (_, values) = filled(database.pool()).await;
    let refused = rotate(database.pool(), &after()).await.unwrap_err();
    assert!(refused.to_string().contains("POSTRIDER_ENCRYPTION_KEY_PREVIOUS"), "{refused}");
    let counts = sealed::count(database.pool()).await.unwrap();
    let old = scenario::keyring().current_id();
    assert!(counts.iter().all(|count| count.key == Some(old)), "{counts:?}");
    assert_eq!(counts.iter().map(|count| count.values).sum::<u64>(), values);
}

#[tokio::test]
async fn what_somebody_else_changes_is_waited_for_by_nobody_and_stays_as_changed() {
    let database = Database::fresh().await;
    let pool = database.pool();
    let (acme, values) = filled(pool).await;
    let row: Uuid =
        sqlx::query_scalar("SELECT endpoint_id FROM postrider.endpoints").fetch_one(pool).await.unwrap();
    let context = Context { purpose: Purpose::EndpointHeaders, tenant: acme.id, row };
    let changed = during().seal(nonce(), &context, b"x-vendor:other\n");
    let mut edit = pool.begin().await.unwrap();
    sqlx::query("UPDATE postrider.endpoints SET sealed_headers = $1")
        .bind(&changed)
        .execute(&mut *edit)
        .await
        .unwrap();

    // The row is locked: its headers and its query are left alone.
    let left = rotate(pool, &during()).await.unwrap_err();
    assert!(matches!(left, Error::StillUnderAnother { values: 2 }), "{left}");
    edit.commit().await.unwrap();
    let done = rotate(pool, &during()).await.expect("the rest is sealed anew");
    assert_eq!(done.resealed, 1, "of {values} only the query was left");
    let stored: Vec<u8> =
        sqlx::query_scalar("SELECT sealed_headers FROM postrider.endpoints").fetch_one(pool).await.unwrap();
    assert_eq!(stored, changed);
}

#[tokio::test]
async fn a_damaged_value_is_named_and_keeps_nothing_else_from_being_sealed_anew() {
    let database = Database::fresh().await;
    let pool = database.pool();
    let (_, values) = filled(pool).await;
    sqlx::query("UPDATE postrider.credentials SET sealed_value = set_byte(sealed_value, 20, 0) || '\\x00'")
        .execute(pool)
        .await
        .unwrap();
    let damaged = rotate(pool, &during()).await.unwrap_err();
    assert!(matches!(damaged, Error::Damaged { values: 1, .. }), "{damaged}");
    assert!(damaged.to_string().contains("credentials.sealed_value of "), "{damaged}");
    let counts = sealed::count(pool).await.unwrap();
    let anew = counts.iter().filter(|count| count.key == Some(after().current_id()));
    assert_eq!(anew.map(|count| count.values).sum::<u64>(), values - 1);
}
