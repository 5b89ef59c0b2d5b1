//! `keys rotate-pepper`: tokens of both generations work at each step, on every process, and a kill leaves the one or the
//! other.

use std::fs;

use postrider_testkit::postgres::Database;
use serde_json::{Value, json};

use super::{NEW, keys, keys_json};
use crate::{
    api::call,
    faults::scene::until,
    program::run,
    server::{KEY, Publisher, Server, launch},
};

const BOTH: [(&str, &str); 3] = [
    ("POSTRIDER_TOKEN_PEPPER", NEW),
    ("POSTRIDER_TOKEN_PEPPER_GENERATION", "2"),
    ("POSTRIDER_TOKEN_PEPPER_PREVIOUS", KEY),
];
const NEW_ALONE: [(&str, &str); 2] =
    [("POSTRIDER_TOKEN_PEPPER", NEW), ("POSTRIDER_TOKEN_PEPPER_GENERATION", "2")];

/// An application beside `orders`, and its token.
struct Application {
    name: &'static str,
    token: String,
}

impl Application {
    async fn make(owner: &Publisher, server: &Server, name: &'static str) -> Self {
        let made = owner.at(server).manage("POST", "/applications", json!({ "id": name }), 201).await;
        Self { name, token: made.text("publishToken") }
    }

    /// What publishing is answered with on a process.
    async fn publish(&self, server: &Server) -> u16 {
        let path = format!("/api/tenants/acme/applications/{}/events/order.created", self.name);
        call(server.address, "POST", &path, &self.token, "[1]").await.status
    }
}

/// The publisher's tokens open what they should on a process: its publish token, its owner's.
async fn works(publisher: &Publisher, server: &Server) {
    let publisher = publisher.at(server);
    publisher.publish("[1]").await;
    publisher.manage("GET", "/applications", Value::Null, 200).await;
}

#[tokio::test]
async fn tokens_of_both_generations_work_on_every_process_at_every_step() {
    let database = Database::fresh().await;
    let before = Server::start(&database, "api").await;
    let orders = before.publisher().await;
    // Processes with the new pepper start beside it, and make tokens that it knows.
    let (one, other) = tokio::join!(
        Server::start_with(&database, "api", &BOTH),
        Server::start_with(&database, "api", &BOTH)
    );
    let billing = Application::make(&orders, &one, "billing").await;
    let idle = Application::make(&orders, &one, "idle").await;
    for server in [&before, &one, &other] {
        works(&orders, server).await;
        assert_eq!(billing.publish(server).await, 202);
    }
    before.program.terminate();
    before.program.ended().await;

    let moved = keys_json(&database, &["rotate-pepper"], &BOTH).await;
    assert_eq!((&moved["state"], &moved["left"]), (&json!("moved"), &json!(4)), "{moved}");
    let shipping = Application::make(&orders, &other, "shipping").await;
    for server in [&one, &other] {
        works(&orders, server).await;
        assert_eq!((billing.publish(server).await, shipping.publish(server).await), (202, 202));
    }
    // What was used comes over, whichever process saw it; both let it in before and after.
    until("all but one token came over", async || {
        let left = keys_json(&database, &["rotate-pepper"], &BOTH).await;
        left["left"] == 1 && left["leftNames"] == json!(["application acme/idle"])
    })
    .await;
    // An edit makes the plans in memory stale: the token that opened the old one opens the new one.
    orders.at(&one).manage("PATCH", "/applications/orders", json!({ "enabled": true }), 200).await;
    for server in [&one, &other] {
        works(&orders, server).await;
        assert_eq!(billing.publish(server).await, 202);
    }

    let refused = launch(&database, "api", &NEW_ALONE).ended().await;
    assert!(refused.stderr.contains("set POSTRIDER_TOKEN_PEPPER_PREVIOUS"), "{refused:?}");
    let refused = keys(&database, &["rotate-pepper", "--finish"], &BOTH).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("application acme/idle"), "{refused:?}");
    let done = keys_json(&database, &["rotate-pepper", "--finish", "--revoke-remaining"], &BOTH).await;
    assert_eq!((&done["state"], &done["revoked"]), (&json!("finished"), &json!(1)), "{done}");

    let after = Server::start_with(&database, "api", &NEW_ALONE).await;
    for server in [&one, &other, &after] {
        works(&orders, server).await;
        assert_eq!((billing.publish(server).await, shipping.publish(server).await), (202, 202));
        assert_eq!(idle.publish(server).await, 401);
    }
}

/// Whatever a token is used for: a process whose plan is out of date reads it again, and finds that the token was stored
/// under the next pepper meanwhile. Notifications have a look of their own for what a plan does not have yet.
#[tokio::test]
async fn notifications_find_their_endpoint_over_a_plan_from_before_the_token_came_over() {
    let database = Database::fresh().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("registry.yaml");
    let approve = async |names: &[&str]| {
        let entry = |name: &&str| format!("{name}: {{url: 'https://127.0.0.1:1/', applications: [orders]}}");
        let entries: Vec<String> = names.iter().map(entry).collect();
        fs::write(&file, format!("tenants: {{acme: {{endpoints: {{{}}}}}}}", entries.join(", "))).unwrap();
        let variables = [
            ("DATABASE_URL", database.url()),
            ("POSTRIDER_ENCRYPTION_KEY", KEY),
            ("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1"),
        ];
        let ended = run(&["apply", file.to_str().unwrap()], &variables).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    let before = Server::start(&database, "api").await;
    let orders = before.publisher().await;
    let [_, token] = orders.tokens();
    let notify = async |server: &Server, name: &str| {
        let path = format!("/api/tenants/acme/applications/orders/notifications/{name}");
        call(server.address, "POST", &path, token, "hello").await.status
    };
    approve(&["sms"]).await;
    let (one, other, idle) = tokio::join!(
        Server::start_with(&database, "api", &BOTH),
        Server::start_with(&database, "api", &BOTH),
        Server::start_with(&database, "api", &BOTH)
    );
    before.program.terminate();
    before.program.ended().await;
    // Two processes have a plan that knows the token by its hash under the old pepper.
    for server in [&one, &idle] {
        assert_eq!(notify(server, "sms").await, 202);
    }
    assert_eq!(keys_json(&database, &["rotate-pepper"], &BOTH).await["state"], "moved");
    assert_eq!(notify(&other, "sms").await, 202);
    until("the token came over", async || {
        let left = keys_json(&database, &["rotate-pepper"], &BOTH).await;
        !left["leftNames"].to_string().contains("acme/orders")
    })
    .await;
    // Makes those plans stale, and has what they do not.
    approve(&["sms", "fax"]).await;
    assert_eq!(notify(&one, "sms").await, 202, "its plan is refused by the database");
    assert_eq!(notify(&idle, "fax").await, 202, "its plan has no such endpoint");
    assert_eq!((notify(&one, "fax").await, notify(&idle, "sms").await), (202, 202));

    // Another token is another one, whatever the pepper.
    let path = "/applications/orders/rotate-token";
    let rotated = orders.at(&other).manage("POST", path, Value::Null, 200).await;
    assert!(!rotated.text("publishToken").is_empty());
    for server in [&one, &other, &idle] {
        assert_eq!((notify(server, "sms").await, notify(server, "fax").await), (401, 401));
    }
}

#[tokio::test]
async fn killed_in_the_middle_of_the_move_the_installation_is_at_the_one_generation_or_the_other() {
    for (failpoint, has_moved) in [("pepper_written:kill:0", false), ("pepper_committed:kill:0", true)] {
        let database = Database::fresh().await;
        let server = Server::start_with(&database, "api", &[]).await;
        let orders = server.publisher().await;
        server.program.terminate();
        server.program.ended().await;
        let server = Server::start_with(&database, "api", &BOTH).await;
        let killing = [BOTH.as_slice(), &[("POSTRIDER_FAILPOINT", failpoint)]].concat();
        let killed = keys(&database, &["rotate-pepper"], &killing).await;
        assert_eq!(killed.code, None, "{failpoint} killed it: {killed:?}");

        let moved: bool = sqlx::query_scalar(
            "SELECT pepper_generation = 2 AND previous_pepper_fingerprint IS NOT NULL FROM postrider.installation
              WHERE pepper_generation = 2 OR previous_pepper_fingerprint IS NULL",
        )
        .fetch_one(database.pool())
        .await
        .unwrap();
        assert_eq!(moved, has_moved, "{failpoint}");
        works(&orders, &server).await;
        let old = launch(&database, "api", &[]);
        if has_moved {
            let refused = old.ended().await;
            assert!(refused.stderr.contains("POSTRIDER_TOKEN_PEPPER_GENERATION to 2"), "{refused:?}");
        } else {
            drop(old);
        }
        assert_eq!(keys_json(&database, &["rotate-pepper"], &BOTH).await["state"], "moved");
        works(&orders, &server).await;
        until("both tokens came over", async || {
            keys_json(&database, &["rotate-pepper"], &BOTH).await["left"] == 0
        })
        .await;
        keys_json(&database, &["rotate-pepper", "--finish"], &BOTH).await;
        works(&orders, &Server::start_with(&database, "api", &NEW_ALONE).await).await;
    }
}
