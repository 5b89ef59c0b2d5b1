//! How many resources there may be.

use postrider_core::{
    id::EndpointId, name::Name, plan::MAX_SUBSCRIPTIONS_PER_APPLICATION, signature::Algorithm,
};
use postrider_store::{
    edit::{self, Error},
    endpoints::{self, NewEndpoint},
    signing_keys::NewSigningKey,
    subscriptions::{self, NewSubscription},
};
use postrider_testkit::{postgres::Database, scenario::Scenario};
use uuid::Uuid;

fn name(text: &str) -> Name {
    text.parse().expect("name")
}

#[tokio::test]
async fn an_application_has_a_bounded_number_of_subscriptions() {
    let database = Database::fresh().await;
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let orders = tenant.application("orders").await;
    let billing = tenant.application("billing").await;
    let warehouse = tenant.endpoint("warehouse", "https://example.com/").create().await;
    fill(
        &database,
        "INSERT INTO postrider.subscriptions
                (tenant_id, subscription_id, name, application_id, endpoint_id, event_types)
         SELECT $1, gen_random_uuid(), 's' || n, $2, $3, '{*}' FROM generate_series(1, $4) AS n",
        [tenant.id.as_uuid(), orders.id.as_uuid(), warehouse.id.as_uuid()],
        MAX_SUBSCRIPTIONS_PER_APPLICATION - 1,
    )
    .await;
    let subscribe = async |application_id, text: &str| {
        let new = NewSubscription {
            id: Uuid::now_v7().into(),
            name: &name(text),
            application_id,
            endpoint_id: warehouse.id,
            event_types: &["*".parse().expect("pattern")],
        };
        let mut transaction = edit::begin(database.pool()).await?;
        subscriptions::create(&mut transaction, tenant.id, new).await?;
        transaction.commit().await.map_err(Error::from)
    };
    subscribe(orders.id, "last").await.expect("there is room for one");
    let refused = subscribe(orders.id, "one-too-many").await.expect_err("there is no room");
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
    subscribe(billing.id, "another").await.expect("each application has its own");
}

#[tokio::test]
async fn a_tenant_has_a_bounded_number_of_endpoints() {
    let database = Database::fresh().await;
    let scenario = Scenario::new(database.pool().clone());
    let tenant = scenario.tenant("acme").await;
    let warehouse = tenant.endpoint("warehouse", "https://example.com/").create().await;
    fill(
        &database,
        "INSERT INTO postrider.endpoints
                (tenant_id, endpoint_id, name, url, signing_key_id, timeout_ms, max_in_flight, max_attempts,
                 max_age_seconds, initial_delay_ms, max_delay_ms)
         SELECT $1, gen_random_uuid(), 'e' || n, url, signing_key_id, timeout_ms, max_in_flight, max_attempts,
                max_age_seconds, initial_delay_ms, max_delay_ms
           FROM postrider.endpoints, generate_series(1, $4) AS n WHERE tenant_id = $2 AND endpoint_id = $3",
        [tenant.id.as_uuid(), tenant.id.as_uuid(), warehouse.id.as_uuid()],
        endpoints::MAX_PER_TENANT - 2,
    )
    .await;
    let create = async |text: &str| {
        let new = NewEndpoint {
            id: EndpointId::from_uuid(Uuid::now_v7()),
            name: &name(text),
            settings: &endpoints::Settings::new("https://example.com/".to_owned()),
            approval: None,
            key: NewSigningKey {
                id: Uuid::now_v7().into(),
                algorithm: Algorithm::HmacSha256,
                sealed_secret: b"sealed",
            },
        };
        let mut transaction = edit::begin(database.pool()).await?;
        endpoints::create(&mut transaction, tenant.id, new).await?;
        transaction.commit().await.map_err(Error::from)
    };
    create("last").await.expect("there is room for one");
    let refused = create("one-too-many").await.expect_err("there is no room");
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
    scenario.tenant("rival").await.endpoint("first", "https://example.com/").create().await;
}

async fn fill(database: &Database, statement: &'static str, ids: [Uuid; 3], count: u32) {
    let [first, second, third] = ids;
    let count = i32::try_from(count).expect("small");
    let insert = sqlx::query(statement).bind(first).bind(second).bind(third).bind(count);
    insert.execute(database.pool()).await.expect("filled");
}
