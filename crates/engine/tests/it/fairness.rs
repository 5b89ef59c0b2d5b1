//! Endpoints that hang cost their neighbours nothing, of other tenants and of their own.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    ingest::{Accepted, Refusal, Submission},
    instances::Role,
    routing::Routing,
};
use postrider_testkit::{
    answer::Answer,
    postgres::Database,
    receiver::Receiver,
    running::{Options, Running, loopback_http},
    scenario::{Scenario, Tenant, new_event},
};

use tokio::sync::oneshot;

use crate::delivery::wait_for_count;

const HANGING_ENDPOINTS: usize = 40;

/// Endpoints of a tenant that never answer, each with work that waits.
async fn hanging_backlog(tenant: &Tenant, receiver: &Receiver) {
    receiver.answer_with(|_| Answer::never());
    let application = tenant.application("hanging").await;
    for number in 0..HANGING_ENDPOINTS {
        let name = format!("hanging-{number}");
        let minute = Duration::from_secs(60);
        let endpoint = tenant.endpoint(&name, &receiver.url("/")).timeout(minute).create().await;
        application.sends(&["*"], &endpoint).await;
    }
    for _ in 0..10 {
        application.publish("order.created", "{}").await;
    }
}

async fn check(quick_tenant_has_the_hanging_ones: bool) {
    let database = Database::fresh().await;
    let (hanging, quick) = (Receiver::start().await, Receiver::start().await);
    let scenario = Scenario::new(database.pool().clone());
    let acme = scenario.tenant("acme").await;
    hanging_backlog(&acme, &hanging).await;
    let engine =
        Running::start_with(&database, loopback_http(), Options { concurrency: 32, ..Options::default() });
    // The hanging ones have all that they can get before the quick one begins.
    hanging.wait_for(HANGING_ENDPOINTS / 2).await;

    let tenant = if quick_tenant_has_the_hanging_ones { acme } else { scenario.tenant("globex").await };
    let application = tenant.application("quick").await;
    let endpoint = tenant.endpoint("quick", &quick.url("/")).create().await;
    application.sends(&["*"], &endpoint).await;
    for _ in 0..50 {
        application.publish("order.created", "{}").await;
    }
    quick.wait_for(50).await;
    wait_for_count(database.pool(), "SELECT count(*) FROM postrider.deliveries", 50).await;
    let ended: i64 =
        sqlx::query_scalar("SELECT count(*) FROM postrider.attempts WHERE outcome <> 'delivered'")
            .fetch_one(database.pool())
            .await
            .expect("the attempts can be counted");
    assert_eq!(ended, 0, "none of the hanging requests had to end for it");
    drop(engine);
}

#[tokio::test]
async fn hanging_endpoints_leave_another_tenant_alone() {
    check(false).await;
}

#[tokio::test]
async fn hanging_endpoints_leave_their_own_tenants_quick_one_alone() {
    check(true).await;
}

#[tokio::test]
async fn an_application_that_publishes_to_many_does_not_hold_up_another() {
    const WIDE_ENDPOINTS: usize = 100;
    const WIDE_EVENTS: usize = 200;
    let database = Database::fresh().await;
    let scenario = Scenario::new(database.pool().clone());
    let (acme, globex) = (scenario.tenant("acme").await, scenario.tenant("globex").await);
    let (wide, narrow) = (acme.application("wide").await, globex.application("narrow").await);
    for number in 0..WIDE_ENDPOINTS {
        let endpoint = acme.endpoint(&format!("wide-{number}"), "http://127.0.0.1:9/").create().await;
        wide.sends(&["*"], &endpoint).await;
    }
    let options = Options { role: Role::Api, ..Options::default() };
    let engine = Running::start_with(&database, loopback_http(), options);
    let (wide, narrow) = (wide.routing().await, narrow.routing().await);
    // All wide events stand in the line before the narrow one comes.
    let mut wide: Vec<_> = (0..WIDE_EVENTS).map(|_| submit(&engine, &wide)).collect();
    let accepted = submit(&engine, &narrow).await;
    assert!(matches!(accepted, Ok(Ok(_))), "{accepted:?}");
    let answered = wide.iter_mut().filter_map(|answer| answer.try_recv().ok()).count();
    assert!(answered < WIDE_EVENTS / 2, "the narrow event had to wait for {answered} wide ones");
}

fn submit(engine: &Running, routing: &Arc<Routing>) -> oneshot::Receiver<Result<Accepted, Refusal>> {
    let (reply, answer) = oneshot::channel();
    let event = new_event("order.created", "{}", None);
    let submission = Submission { routing: Arc::clone(routing), event, reply };
    engine.entrance().try_send(submission).expect("there is room in the line");
    answer
}
