//! `postrider apply`: what a registry file makes of a running installation.

use std::{fs, path::PathBuf};

use postrider_testkit::{answer::Answer as Reply, postgres::Database, receiver::Receiver};
use serde_json::{Value, json};

use crate::{
    api::{Answer, exchange},
    program::{Ended, run},
    server::{KEY, Publisher, Server},
};

/// What no output may show.
const CANARY: &str = "canary-7781";

struct World {
    server: Server,
    publisher: Publisher,
    receiver: Receiver,
    file: PathBuf,
    _directory: tempfile::TempDir,
    database: Database,
}

impl World {
    async fn new() -> Self {
        let database = Database::empty().await;
        let server = Server::start(&database, "all").await;
        let publisher = server.publisher().await;
        let receiver = Receiver::start().await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registry.yaml");
        Self { server, publisher, receiver, file, _directory: directory, database }
    }

    /// Writes the file: the endpoint `sms` of the tenant `acme` with these settings.
    fn declare(&self, settings: &str) {
        let url = self.receiver.url("/v2/messages");
        self.write(&format!("tenants:\n  acme:\n    endpoints:\n      sms: {{url: '{url}', {settings}}}\n"));
    }

    fn write(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
    }

    async fn apply(&self, more: &[&str]) -> Ended {
        self.apply_with(more, &[]).await
    }

    async fn apply_with(&self, more: &[&str], variables: &[(&str, &str)]) -> Ended {
        let arguments = [&["apply", self.file.to_str().unwrap()], more].concat();
        let usual = [
            ("DATABASE_URL", self.database.url()),
            ("POSTRIDER_ENCRYPTION_KEY", KEY),
            ("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1"),
        ];
        let ended = run(&arguments, &[&usual, variables].concat()).await;
        assert!(!format!("{ended:?}").contains(CANARY), "{ended:?}");
        ended
    }

    async fn expect(&self, more: &[&str], code: i32, said: &str) {
        let ended = self.apply(more).await;
        let all = format!("{}{}", ended.stdout, ended.stderr);
        assert!(ended.code == Some(code) && all.contains(said), "{code} {said:?}: {ended:?}");
    }

    async fn notify(&self, key: &str, body: &[u8]) -> Answer {
        let path = "/api/tenants/acme/applications/orders/notifications/sms";
        let [_, token] = self.publisher.tokens();
        let head =
            format!("POST {path} HTTP/1.1\r\nauthorization: Bearer {token}\r\nidempotency-key: {key}\r\n");
        exchange(self.server.address, &head, body).await
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.database.pool()).await.unwrap()
    }

    async fn wait_for_count(&self, query: &'static str, expected: i64) {
        while self.count(query).await != expected {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_file_is_shown_applied_once_and_used_by_the_next_notification() {
    let world = World::new().await;
    world.write(&format!(
        "tenants:\n  acme:\n    endpoints:\n      sms:\n        url: {}?account={CANARY}\n        allowQuery: true\n        \
         method: PUT\n        headers: {{x-tenant: {CANARY}}}\n        applications: [orders]\n",
        world.receiver.url("/v2/messages")
    ));
    assert_eq!(world.notify("k0", b"hello").await.status, 404, "nothing is approved yet");
    world.expect(&["--dry-run"], 3, "+ sms: ").await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.endpoints").await, 0);
    world.expect(&[], 0, "Applied.").await;
    world.expect(&[], 0, "There is nothing to change.").await;
    world.expect(&["--dry-run"], 0, "There is nothing to change.").await;
    assert_eq!(world.count("SELECT max(version) FROM postrider.registry_versions").await, 1);

    let accepted = world.notify("k1", b"\x00hello\xff").await;
    assert_eq!((accepted.status, &accepted.body["duplicate"]), (202, &json!(false)), "{accepted:?}");
    let repeat = world.notify("k1", b"\x00hello\xff").await;
    assert_eq!((repeat.status, &repeat.body["id"]), (200, &accepted.body["id"]), "{repeat:?}");
    assert_eq!(world.notify("k1", b"other").await.status, 409);

    let request = world.receiver.wait_for(1).await.remove(0);
    assert_eq!(request.method(), "PUT");
    assert_eq!(request.target(), format!("/v2/messages?account={CANARY}"));
    assert_eq!(request.header("x-tenant"), Some(CANARY));
    assert_eq!(&*request.body, b"\x00hello\xff");

    let attempts = format!("/deliveries/{}/attempts", accepted.text("deliveryId"));
    loop {
        let seen = world.publisher.manage("GET", &attempts, Value::Null, 200).await;
        if seen.body["data"][0]["outcome"] == "delivered" {
            assert_eq!(seen.body["data"][0]["registryVersion"], 1, "{seen:?}");
            break;
        }
    }
    let log = world.publisher.manage("GET", "/audit", Value::Null, 200).await;
    let actions: Vec<&Value> =
        log.body["data"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert!(actions.contains(&&json!("registry.applied")), "{actions:?}");
    let fields =
        "SELECT array_to_string(fields, ' ') FROM postrider.audit_log WHERE action = 'endpoint.created'";
    let fields: String = sqlx::query_scalar(fields).fetch_one(world.database.pool()).await.unwrap();
    assert_eq!(fields, "url allowQuery method applications query headers");
    let plain = "SELECT count(*) FROM postrider.registry_versions WHERE document LIKE '%canary%'";
    assert_eq!(world.count(plain).await, 0);
    let plain = "SELECT count(*) FROM postrider.endpoints WHERE url LIKE '%canary%'";
    assert_eq!(world.count(plain).await, 0);
}

#[tokio::test]
async fn a_change_is_told_setting_by_setting_and_makes_a_version() {
    let world = World::new().await;
    world.declare("applications: [orders]");
    world.expect(&[], 0, "acme: version 1 of its registry").await;
    world.declare("applications: [orders], timeoutMs: 500, successCodes: [200-299, 409]");
    let ended = world.apply(&["--dry-run", "--json"]).await;
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
    let fields = json!([
        { "name": "successCodes", "from": "200-299", "to": "200-299,409" },
        { "name": "timeoutMs", "from": "15000", "to": "500" },
    ]);
    let change = json!({ "endpoint": "sms", "change": "changed", "fields": fields, "openDeliveries": 0 });
    let tenant = json!({ "tenant": "acme", "version": 2, "changes": [change] });
    let expected = json!({ "changed": true, "applied": false, "tenants": [tenant], "untouched": [] });
    assert_eq!((ended.code, shown), (Some(3), expected));
    world.expect(&[], 0, "timeoutMs: 15000 -> 500").await;
    world.receiver.answer_with(|_| Reply::status(409));
    let accepted = world.notify("k1", b"hello").await;
    world.wait_for_count("SELECT count(*) FROM postrider.deliveries WHERE outcome = 'delivered'", 1).await;
    let attempts = format!("/deliveries/{}/attempts", accepted.text("deliveryId"));
    let seen = world.publisher.manage("GET", &attempts, Value::Null, 200).await;
    assert_eq!(seen.body["data"][0]["registryVersion"], 2, "{seen:?}");

    // A tenant that the file does not name is left alone, and that is said.
    world.write("tenants: {}");
    world.expect(&[], 0, "acme: not in this file; its 1 approved endpoints stay as they are").await;
}

#[tokio::test]
async fn what_would_lose_its_endpoint_is_kept_unless_told_otherwise() {
    let world = World::new().await;
    world.receiver.answer_with(|_| Reply::status(503));
    let patient = "applications: [orders], retry: {initialDelayMs: 3600000, maxDelayMs: 3600000}";
    world.declare(patient);
    world.expect(&[], 0, "Applied.").await;
    let accepted = world.notify("k1", b"hello").await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue WHERE state = 'scheduled'", 1).await;

    let elsewhere = Receiver::start().await.url("/");
    for file in [
        format!("tenants: {{acme: {{endpoints: {{sms: {{url: '{elsewhere}', applications: [orders]}}}}}}}}"),
        "tenants: {acme: {endpoints: {}}}".to_owned(),
    ] {
        world.write(&file);
        world.expect(&["--dry-run"], 3, "1 open deliveries").await;
        world.expect(&[], 1, "tenants.acme.endpoints.sms (1)").await;
    }
    world.expect(&["--allow-orphans"], 0, "1 open deliveries become dead letters").await;
    let cancelled = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'endpoint_deleted'";
    world.wait_for_count(cancelled, 1).await;
    assert_eq!(world.notify("k2", b"hello").await.status, 404);
    assert_eq!(world.receiver.requests().len(), 1, "it was not sent again");
}

#[tokio::test]
async fn what_a_delisted_application_lost_is_not_sent_again() {
    let world = World::new().await;
    world.receiver.answer_with(|_| Reply::status(400));
    world.declare("applications: [orders]");
    world.expect(&[], 0, "Applied.").await;
    let accepted = world.notify("k1", b"hello").await;
    let dead = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'dead_lettered'";
    world.wait_for_count(dead, 1).await;
    world.declare("applications: []");
    world.expect(&[], 0, "applications: orders -> none").await;

    assert_eq!(world.notify("k2", b"hello").await.status, 404);
    let retry = format!("/deliveries/{}/retry", accepted.text("deliveryId"));
    world.publisher.manage("POST", &retry, Value::Null, 409).await;
    let filter = json!({ "filter": { "applicationId": "orders" } });
    let replay = world.publisher.manage("POST", "/replays", filter, 201).await.text("id");
    world.publisher.manage("POST", &format!("/replays/{replay}/execute"), Value::Null, 202).await;
    world.wait_for_count("SELECT count(*) FROM postrider.replays WHERE state = 'finished'", 1).await;
    let shown = world.publisher.manage("GET", &format!("/replays/{replay}"), Value::Null, 200).await.body;
    assert_eq!((&shown["replayed"], &shown["skipped"]["notListed"]), (&json!(0), &json!(1)), "{shown}");

    world.declare("applications: [orders]");
    world.expect(&[], 0, "applications: none -> orders").await;
    world.publisher.manage("POST", &retry, Value::Null, 202).await;
    assert_eq!(
        world.receiver.wait_for(2).await.len(),
        2,
        "once before it was delisted, once when it was listed again"
    );
}

#[tokio::test]
async fn a_file_that_does_not_fit_changes_nothing() {
    let world = World::new().await;
    world
        .publisher
        .manage("POST", "/endpoints", json!({"id": "own", "url": world.receiver.url("/")}), 201)
        .await;
    let fine = format!("fine: {{url: '{}'}}", world.receiver.url("/"));
    for (endpoints, said) in [
        ("sms: {url: 'https://10.0.0.1/'}".to_owned(), "tenants.acme.endpoints.sms.url"),
        ("sms: {url: 'https://example.com/', colour: red}".to_owned(), "tenants.acme.endpoints.sms.colour"),
        ("sms: {url: 'https://example.com/', applications: [nobody]}".to_owned(), "no application `nobody`"),
        ("sms: {url: 'https://example.com/', credential: nothing}".to_owned(), "no credential `nothing`"),
        (format!("own: {{url: '{}'}}", world.receiver.url("/")), "made through the API"),
    ] {
        world.write(&format!("tenants: {{acme: {{endpoints: {{{fine}, {endpoints}}}}}}}"));
        world.expect(&[], 1, said).await;
        world.expect(&["--dry-run"], 1, "nothing was changed").await;
    }
    world.write(&format!("tenants: {{acme: {{endpoints: {{{fine}}}}}, globex: {{endpoints: {{}}}}}}"));
    world.expect(&[], 1, "tenants.globex: there is no such tenant").await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.registry_versions").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM postrider.endpoints WHERE approved").await, 0);
}

#[tokio::test]
async fn two_who_apply_at_once_make_one_version() {
    let world = World::new().await;
    world.declare("applications: [orders]");
    let ended = futures::future::join_all((0..4).map(|_| world.apply(&[]))).await;
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let applied = ended.iter().filter(|ended| ended.stdout.contains("Applied.")).count();
    assert_eq!(applied, 1, "{ended:?}");
    assert_eq!(world.count("SELECT count(*) FROM postrider.registry_versions").await, 1);
}

/// While it waits for the publishers who are at it, one of them is accepted.
#[tokio::test]
async fn what_is_accepted_after_the_first_look_keeps_its_endpoint() {
    let world = World::new().await;
    world.declare("applications: [orders]");
    world.expect(&[], 0, "Applied.").await;
    let mut publishing = world.database.pool().begin().await.unwrap();
    sqlx::query(
        "SELECT postrider.locked_routing_version(tenant_id, application_id) FROM postrider.applications",
    )
    .execute(&mut *publishing)
    .await
    .unwrap();
    world.write("tenants: {acme: {endpoints: {}}}");
    let accepted = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        world.wait_for_count(waiting, 1).await;
        sqlx::query(
            "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                    signing_key_id, accepted_at, deadline_at, state, due_at, attempt_number, tries)
             SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), endpoint_id, signing_key_id, now(),
                    now() + interval '1 day', 'scheduled', now() + interval '1 day', 1, 1 FROM postrider.endpoints",
        )
        .execute(&mut *publishing)
        .await
        .unwrap();
        publishing.commit().await.unwrap();
    };
    tokio::join!(world.expect(&[], 1, "tenants.acme.endpoints.sms (1)"), accepted);
    assert_eq!(world.count("SELECT count(*) FROM postrider.endpoints WHERE deleted_at IS NULL").await, 1);
}

/// `kill -9` right before its commit, and right after.
#[tokio::test]
async fn killed_around_its_commit_it_has_applied_all_of_a_file_or_nothing_and_is_recorded_once() {
    for (failpoint, is_applied) in [("registry_written:kill:0", false), ("registry_committed:kill:0", true)] {
        let world = World::new().await;
        let url = world.receiver.url("/");
        let file = |endpoints: &str| {
            let endpoints = endpoints.replace("URL", &format!("url: '{url}', applications: [orders]"));
            world.write(&format!("tenants: {{acme: {{endpoints: {{{endpoints}}}}}}}"));
        };
        let registry = async || -> (Vec<(String, i32)>, i64, Vec<String>) {
            let endpoints =
                "SELECT name, timeout_ms FROM postrider.endpoints WHERE deleted_at IS NULL ORDER BY name";
            let recorded = "SELECT action FROM postrider.audit_log WHERE action LIKE 'endpoint.%' OR action LIKE 'registry.%'
                             ORDER BY audit_id";
            let pool = world.database.pool();
            (
                sqlx::query_as(endpoints).fetch_all(pool).await.unwrap(),
                world.count("SELECT max(version) FROM postrider.registry_versions").await,
                sqlx::query_scalar(recorded).fetch_all(pool).await.unwrap(),
            )
        };
        file("gone: {URL}, kept: {URL, timeoutMs: 500}");
        world.expect(&[], 0, "Applied.").await;
        let before = registry().await;
        assert_eq!((before.0.len(), before.1, before.2.len()), (2, 1, 3), "{before:?}");

        file("kept: {URL, timeoutMs: 600}, new: {URL, timeoutMs: 700}");
        let killed = world.apply_with(&[], &[("POSTRIDER_FAILPOINT", failpoint)]).await;
        assert_eq!((killed.code, killed.stdout.as_str()), (None, ""), "{failpoint} killed it: {killed:?}");
        // What it had written without committing it is undone once the server has noticed.
        let sessions = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        world.wait_for_count(sessions, 0).await;
        let left = registry().await;
        world.expect(&[], 0, if is_applied { "There is nothing to change." } else { "Applied." }).await;
        let after = registry().await;
        assert_eq!(left, if is_applied { after.clone() } else { before.clone() }, "{failpoint}");

        assert_eq!(after.0, [("kept".to_owned(), 600), ("new".to_owned(), 700)]);
        assert_eq!(after.1, 2);
        let mut recorded = after.2[before.2.len()..].to_vec();
        recorded.sort_unstable();
        let expected = ["endpoint.changed", "endpoint.created", "endpoint.deleted", "registry.applied"];
        assert_eq!(recorded, expected, "{failpoint}: once");
        world.expect(&[], 0, "There is nothing to change.").await;
    }
}
