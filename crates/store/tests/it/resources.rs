//! Resources: names, scoping, and the rule that every edit makes the plans it touches stale.

use std::collections::BTreeMap;

use postrider_core::{
    id::{ApplicationId, EndpointId, SigningKeyId, TenantId},
    name::Name,
    pepper::Hashes,
    signature::Algorithm,
    token::{Kind, Token},
};
use postrider_store::{
    applications::{self, NewApplication},
    edit::{self, Error},
    endpoints::{self, DisabledReason, Endpoint},
    signing_keys::{self, NewSigningKey},
    subscriptions::{self, NewSubscription},
    tenants,
};
use postrider_testkit::{postgres::Database, scenario};
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use crate::resources_edits::Edit;

/// A tenant with applications `orders` and `billing`, and an endpoint `warehouse` that only `orders` sends to.
pub(crate) struct World {
    database: Database,
    pub(crate) tenant: scenario::Tenant,
    pub(crate) orders: scenario::Application,
    pub(crate) billing: scenario::Application,
    pub(crate) warehouse: scenario::Endpoint,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = Database::fresh().await;
        let tenant = scenario::Scenario::new(database.pool().clone()).tenant("acme").await;
        let orders = tenant.application("orders").await;
        let billing = tenant.application("billing").await;
        let warehouse = tenant.endpoint("warehouse", "https://example.com/hooks").create().await;
        orders.sends(&["order.*"], &warehouse).await;
        Self { database, tenant, orders, billing, warehouse }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    pub(crate) async fn begin(&self) -> PgTransaction<'static> {
        edit::begin(self.pool()).await.expect("a transaction begins")
    }

    async fn endpoint(&self) -> Endpoint {
        let found = endpoints::get_by_name(self.pool(), self.tenant.id, &self.warehouse.name).await;
        found.expect("the endpoint can be read").expect("the endpoint exists")
    }

    pub(crate) async fn subscription(&self) -> subscriptions::Subscription {
        let all = subscriptions::list(self.pool(), self.tenant.id, EVERYTHING).await.expect("list");
        all.into_iter().next().expect("a subscription")
    }

    /// The applications whose plans became stale since `before`, by name.
    pub(crate) async fn stale_since(&self, before: &BTreeMap<String, i64>) -> Vec<String> {
        let after = self.versions().await;
        let is_stale = |(name, version): &(String, i64)| before.get(name) != Some(version);
        after.into_iter().filter(is_stale).map(|(name, _)| name).collect()
    }

    pub(crate) async fn versions(&self) -> BTreeMap<String, i64> {
        let query = sqlx::query_as("SELECT name, routing_version FROM postrider.applications");
        query.fetch_all(self.pool()).await.expect("versions").into_iter().collect()
    }
}

const EVERYTHING: postrider_store::page::Slice = postrider_store::page::Slice { before: None, rows: 1000 };

fn name(text: &str) -> Name {
    text.parse().expect("name")
}

fn is(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|found| found == code)
}

pub(crate) fn key() -> NewSigningKey<'static> {
    NewSigningKey {
        id: SigningKeyId::from_uuid(Uuid::now_v7()),
        algorithm: Algorithm::Ed25519,
        sealed_secret: b"sealed",
    }
}

pub(crate) async fn create_endpoint(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    text: &str,
) -> Result<(), Error> {
    let new = endpoints::NewEndpoint {
        id: EndpointId::from_uuid(Uuid::now_v7()),
        name: &name(text),
        settings: &endpoints::Settings::new("https://example.com/".to_owned()),
        approval: None,
        key: key(),
    };
    endpoints::create(transaction, tenant_id, new).await.map(drop)
}

pub(crate) async fn subscribe(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    application_id: ApplicationId,
    endpoint_id: EndpointId,
) -> Result<(), Error> {
    let new = NewSubscription {
        id: Uuid::now_v7().into(),
        name: &name("another"),
        application_id,
        endpoint_id,
        event_types: &["*".parse().expect("pattern")],
    };
    subscriptions::create(transaction, tenant_id, new).await.map(drop)
}

/// What some token is stored as.
pub(crate) fn hashes() -> Hashes {
    scenario::peppers().hashes(&Token::mint(Kind::Publish, [1; 32]))
}

#[tokio::test]
async fn each_edit_makes_exactly_the_plans_it_touches_stale() {
    for edit in Edit::ALL {
        let world = World::new().await;
        let before = world.versions().await;
        edit.make(&world, world.tenant.id).await.expect("the edit is made");
        let expected: &[&str] = match edit {
            Edit::DisableApplication
            | Edit::RotateToken
            | Edit::UpdateSubscription
            | Edit::DeleteSubscription => &["orders"],
            Edit::CreateEndpoint => &[tenants::SYSTEM_APPLICATION],
            Edit::UpdateEndpoint | Edit::DisableEndpoint | Edit::RotateSecret => {
                &["orders", tenants::SYSTEM_APPLICATION]
            }
            Edit::CreateSubscription => &["billing"],
        };
        assert_eq!(world.stale_since(&before).await, expected, "{edit:?}");
    }
}

#[tokio::test]
async fn an_edit_that_is_not_committed_keeps_ingest_of_its_applications_out() {
    let world = World::new().await;
    let is_free = async |id: ApplicationId| -> bool {
        let mut ingest = world.pool().begin().await.expect("transaction");
        sqlx::query_scalar("SELECT pg_try_advisory_xact_lock_shared(postrider.plan_lock_key($1))")
            .bind(id.as_uuid())
            .fetch_one(&mut *ingest)
            .await
            .expect("lock")
    };
    let mut edit = world.begin().await;
    endpoints::set_disabled(&mut edit, world.tenant.id, world.warehouse.id, Some(DisabledReason::Requested))
        .await
        .expect("edit");
    assert!(!is_free(world.orders.id).await, "a subscriber waits");
    assert!(is_free(world.billing.id).await, "others do not");
    edit.commit().await.expect("commit");
    assert!(is_free(world.orders.id).await);
}

/// A subscription that slipped in beside an endpoint edit would keep the plan of before that edit.
#[tokio::test]
async fn a_new_subscription_waits_for_a_running_edit_of_its_endpoint() {
    let world = World::new().await;
    let (tenant_id, warehouse, billing) = (world.tenant.id, world.warehouse.id, world.billing.id);
    let mut edit = world.begin().await;
    endpoints::set_disabled(&mut edit, tenant_id, warehouse, Some(DisabledReason::Requested))
        .await
        .expect("edit");

    let mut impatient = world.begin().await;
    sqlx::query("SET LOCAL lock_timeout = '20ms'").execute(&mut *impatient).await.expect("set");
    let waited = subscribe(&mut impatient, tenant_id, billing, warehouse).await.expect_err("it would wait");
    // SQLSTATE `lock_not_available`.
    assert!(matches!(&waited, Error::Database(error) if is(error, "55P03")), "{waited:?}");
    drop(impatient);

    edit.commit().await.expect("commit");
    let mut later = world.begin().await;
    subscribe(&mut later, tenant_id, billing, warehouse).await.expect("subscribed");
}

#[tokio::test]
async fn another_tenant_can_edit_nothing() {
    let world = World::new().await;
    let rival = scenario::Scenario::new(world.pool().clone()).tenant("rival").await;
    let before = world.versions().await;
    // A new endpoint would be the rival's own.
    for edit in Edit::ALL.into_iter().filter(|edit| !matches!(edit, Edit::CreateEndpoint)) {
        let refused = edit.make(&world, rival.id).await.expect_err("it is not the rival's");
        assert!(matches!(refused, Error::NotFound), "{edit:?}: {refused:?}");
    }
    assert_eq!(world.stale_since(&before).await, Vec::<String>::new());
    for found in [
        applications::get_by_name(world.pool(), rival.id, &world.orders.name).await.expect("read").is_some(),
        endpoints::get_by_name(world.pool(), rival.id, &world.warehouse.name).await.expect("read").is_some(),
        subscriptions::get_by_name(world.pool(), rival.id, &world.subscription().await.name)
            .await
            .expect("read")
            .is_some(),
        signing_keys::get(world.pool(), rival.id, world.warehouse.signing_key_id)
            .await
            .expect("read")
            .is_some(),
    ] {
        assert!(!found);
    }
}

#[tokio::test]
async fn a_name_is_free_in_every_tenant_but_its_own() {
    let world = World::new().await;
    let mut transaction = world.begin().await;
    let taken = create_endpoint(&mut transaction, world.tenant.id, "warehouse").await.expect_err("taken");
    assert!(matches!(taken, Error::NameTaken), "{taken:?}");
    drop(transaction);
    for text in ["orders", tenants::SYSTEM_APPLICATION] {
        let new = NewApplication {
            id: ApplicationId::from_uuid(Uuid::now_v7()),
            name: &name(text),
            token_hash: &hashes(),
        };
        let mut transaction = world.begin().await;
        let taken = applications::create(&mut transaction, world.tenant.id, new).await.expect_err("taken");
        assert!(matches!(taken, Error::NameTaken), "{text}: {taken:?}");
    }
    let rival = scenario::Scenario::new(world.pool().clone()).tenant("rival").await;
    rival.application("orders").await;
    rival.endpoint("warehouse", "https://example.com/").create().await;
}

#[tokio::test]
async fn a_tenants_own_application_is_never_seen() {
    let world = World::new().await;
    let (pool, tenant_id) = (world.pool(), world.tenant.id);
    let listed = applications::list(pool, tenant_id, EVERYTHING).await.expect("list");
    let names: Vec<&str> = listed.iter().map(|application| application.name.as_str()).collect();
    assert_eq!(names, ["billing", "orders"], "newest first");
    let own = name(tenants::SYSTEM_APPLICATION);
    assert_eq!(applications::get_by_name(pool, tenant_id, &own).await.expect("read"), None);

    let id: Uuid =
        sqlx::query_scalar("SELECT application_id FROM postrider.applications WHERE kind = 'system'")
            .fetch_one(pool)
            .await
            .expect("it exists");
    let mut transaction = world.begin().await;
    let refused = subscribe(&mut transaction, tenant_id, id.into(), world.warehouse.id).await;
    assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
}

#[tokio::test]
async fn a_rotation_keeps_the_old_key_for_as_long_as_it_overlaps() {
    let world = World::new().await;
    let before = world.endpoint().await;
    let rotate = async |overlap_seconds| {
        let (mut transaction, key) = (world.begin().await, key());
        let rotated = endpoints::rotate_secret(
            &mut transaction,
            world.tenant.id,
            world.warehouse.id,
            key,
            overlap_seconds,
        );
        let rotated = rotated.await.expect("rotated");
        transaction.commit().await.expect("commit");
        assert_eq!((rotated.signing_key_id, rotated.algorithm), (key.id, Algorithm::Ed25519));
        rotated
    };
    let overlapping = rotate(60).await;
    assert_eq!(overlapping.previous_key.map(|previous| previous.id), Some(before.signing_key_id));
    assert!(overlapping.version > before.version);
    let sudden = rotate(0).await;
    assert_eq!(sudden.previous_key, None);
    for id in [before.signing_key_id, overlapping.signing_key_id, sudden.signing_key_id] {
        let kept = signing_keys::get(world.pool(), world.tenant.id, id).await.expect("read");
        assert!(kept.is_some(), "queued deliveries may still need it");
    }
}

#[tokio::test]
async fn the_first_reason_to_disable_stays_until_the_endpoint_is_enabled() {
    let world = World::new().await;
    let set = async |reason| {
        let mut transaction = world.begin().await;
        let endpoint =
            endpoints::set_disabled(&mut transaction, world.tenant.id, world.warehouse.id, reason).await;
        transaction.commit().await.expect("commit");
        endpoint.expect("set").disabled
    };
    assert_eq!(set(Some(DisabledReason::Gone)).await, Some(DisabledReason::Gone));
    assert_eq!(set(Some(DisabledReason::Requested)).await, Some(DisabledReason::Gone));
    assert_eq!(set(None).await, None);
    assert_eq!(set(Some(DisabledReason::Requested)).await, Some(DisabledReason::Requested));
}

#[tokio::test]
async fn a_tenant_whose_name_is_taken_leaves_nothing_behind() {
    let world = World::new().await;
    let count = async || -> i64 {
        let counts = "SELECT (SELECT count(*) FROM postrider.tenants)
            + (SELECT count(*) FROM postrider.applications) + (SELECT count(*) FROM postrider.management_keys)";
        sqlx::query_scalar(counts).fetch_one(world.pool()).await.expect("count")
    };
    let before = count().await;
    let new = tenants::NewTenant {
        id: TenantId::from_uuid(Uuid::now_v7()),
        name: &name("acme"),
        display_name: "Acme again",
        owner_key: postrider_store::management_keys::NewManagementKey {
            id: Uuid::now_v7().into(),
            name: &name("owner"),
            role: postrider_core::role::Role::Owner,
            token_hash: &hashes(),
        },
        system_application_id: Uuid::now_v7().into(),
    };
    let mut transaction = world.begin().await;
    let taken = tenants::create(&mut transaction, new).await.expect_err("taken");
    assert!(matches!(taken, Error::NameTaken), "{taken:?}");
    drop(transaction);
    assert_eq!(count().await, before);
}
