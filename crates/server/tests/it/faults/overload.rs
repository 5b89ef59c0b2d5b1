//! More is published than is delivered: publishers are told to come back, those who cause it and no others, and what was
//! promised before is kept.

use postrider_testkit::{ledger::Ledger, postgres::Database, receiver::Receiver};
use serde_json::json;

use super::scene::{OVER, counter, metric, until, until_nothing_is_open};
use crate::{
    api::call,
    server::{BOOTSTRAP_TOKEN, Publisher, Server},
};

/// Deliveries that may wait.
const LIMIT: &str = "20";
/// A publisher that is never refused has sent so many by then.
const FAR_TOO_MANY: usize = 20_000;

/// Publishes until it is refused.
async fn publish_until_refused(publisher: &Publisher) -> (Ledger, String) {
    let mut ledger = Ledger::default();
    for number in 0..FAR_TOO_MANY {
        let body = format!("[{number}]");
        let answer = publisher.try_publish(&body).await;
        match answer.status {
            202 => ledger.accepted.push(crate::server::accepted(&answer, body.as_bytes())),
            503 => return (ledger, answer.text("detail")),
            _ => panic!("{answer:?}"),
        }
    }
    panic!("{FAR_TOO_MANY} events were taken, and nobody delivers");
}

/// Another tenant with an application; its publish token.
async fn another_tenant(server: &Server) -> String {
    let tenant = json!({ "id": "globex", "name": "Globex" }).to_string();
    let made = call(server.address, "POST", "/api/admin/tenants", BOOTSTRAP_TOKEN, &tenant).await;
    let (owner, application) = (made.text("ownerToken"), json!({ "id": "orders" }).to_string());
    let path = "/api/tenants/globex/applications";
    call(server.address, "POST", path, &owner, &application).await.text("publishToken")
}

async fn publish_as_another(server: &Server, token: &str) -> u16 {
    let path = "/api/tenants/globex/applications/orders/events/order.created";
    call(server.address, "POST", path, token, "[1]").await.status
}

#[tokio::test]
async fn while_nobody_delivers_a_tenant_is_refused_at_the_limit_and_taken_again_when_it_is_sent() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let api = Server::start_with(&database, "api", &[("POSTRIDER_MAX_BACKLOG", LIMIT)]).await;
    let publisher = api.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let token = another_tenant(&api).await;

    let (mut ledger, detail) = publish_until_refused(&publisher).await;
    assert!(detail.contains("this tenant's"), "{detail}");
    assert!(ledger.accepted.len() >= 20, "refused after {}", ledger.accepted.len());
    assert_eq!(publish_as_another(&api, &token).await, 202, "who has nothing waiting is taken");
    assert!(counter(api.address, "postrider_events_over_backlog_total").await >= 1);
    let shown = async |name| metric(api.address, name).await;
    until("the backlog is shown", async || shown("postrider_backlog").await >= 20.0).await;
    until("its age is shown", async || shown("postrider_backlog_oldest_seconds").await > 0.0).await;
    assert_eq!(counter(api.address, "postrider_active_workers").await, 0);

    let worker = Server::start(&database, "worker").await;
    until("it is taken again", async || {
        let answer = publisher.try_publish("[0]").await;
        if answer.status == 202 {
            ledger.accepted.push(crate::server::accepted(&answer, b"[0]"));
        }
        answer.status == 202
    })
    .await;
    until("the worker is seen", async || counter(api.address, "postrider_active_workers").await == 1).await;
    until_nothing_is_open(database.pool()).await;
    ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    drop(worker);
}
