//! What approved vendors want to see in requests: over a real database and real HTTP to a scripted vendor.

use std::time::Duration;

use postrider_core::{
    credential::{Basic, Bearer, Credential, Header},
    header::CustomHeaders,
    id::CredentialId,
    retry::Policy,
    seal::{Context, Purpose},
};
use postrider_testkit::{
    answer::{Answer, Gate},
    postgres::Database,
    receiver::{Receiver, Request},
    running::Running,
    scenario::{Application, Endpoint, NewEndpoint, Scenario, Tenant, keyring, new_event, token_client},
};

use crate::delivery::{wait_for_count, wait_until_nothing_is_open};

const CANARY: &str = "canary-40aa";
const DELIVERED: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'delivered'";

/// A vendor that takes hooks and hands out tokens, and a tenant that sends to it.
struct World {
    database: Database,
    vendor: Receiver,
    login: Receiver,
    tenant: Tenant,
    application: Application,
}

impl World {
    async fn new() -> Self {
        let (database, vendor, login) =
            (Database::fresh().await, Receiver::start().await, Receiver::start().await);
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        let application = tenant.application("orders").await;
        login.answer_with(|request| granting(request, 3600));
        Self { database, vendor, login, tenant, application }
    }

    fn client(&self, secret: &str) -> Credential {
        token_client(&self.login.url("/token"), secret)
    }

    /// An endpoint that carries this credential and gets everything.
    async fn endpoint(&self, name: &str, credential: CredentialId) -> Endpoint {
        self.endpoint_with(name, credential, |endpoint| endpoint).await
    }

    async fn endpoint_with(
        &self,
        name: &str,
        credential: CredentialId,
        describe: impl FnOnce(NewEndpoint<'_>) -> NewEndpoint<'_>,
    ) -> Endpoint {
        let endpoint = self.tenant.endpoint(name, &self.vendor.url(&format!("/{name}"))).retry(hasty(3));
        let endpoint = describe(endpoint.carries(credential)).create().await;
        self.application.sends(&["*"], &endpoint).await;
        endpoint
    }

    async fn publish(&self, engine: &Running) {
        let event = new_event("order.created", "{}", None);
        engine.publish(&self.application, event).await.expect("the event is accepted");
    }

    /// Kind and words of the failures so far, oldest first, and each attempt's status.
    async fn attempts(&self) -> Vec<(Option<i16>, Option<String>, Option<String>)> {
        sqlx::query_as(
            "SELECT status_code, failure, detail FROM postrider.attempts ORDER BY ended_at, attempt_number",
        )
        .fetch_all(self.database.pool())
        .await
        .expect("attempts")
    }
}

fn hasty(max_attempts: u16) -> Policy {
    let delay = Duration::from_millis(1);
    Policy::new(max_attempts, Duration::from_secs(60), delay, delay).expect("a policy within bounds")
}

/// A token that tells which client it is for.
fn granting(request: &Request, expires_in: u32) -> Answer {
    let client = request.header("authorization").unwrap_or_default().replace([' ', '='], "-");
    Answer::ok()
        .body(format!(r#"{{"access_token":"for-{client}","token_type":"bearer","expires_in":{expires_in}}}"#))
}

fn authorization(request: &Request) -> &str {
    request.header("authorization").unwrap_or_default()
}

fn bearer(token: &str) -> Credential {
    Credential::Bearer(Bearer::new(token.into()).expect("a token"))
}

#[tokio::test]
async fn each_kind_adds_one_header_and_takes_none_away() {
    let world = World::new().await;
    let basic = Credential::Basic(Basic::new("user".into(), "password".into()).expect("a pair"));
    let header = Credential::Header(Header::new("X-Api-Key", "k-1".into()).expect("a header"));
    for (name, credential) in
        [("bearer", bearer("t-1")), ("basic", basic), ("header", header), ("oauth2", world.client("s-1"))]
    {
        let id = world.tenant.credential(name, &credential).await;
        world.endpoint(name, id).await;
    }
    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    let requests = world.vendor.wait_for(4).await;
    wait_until_nothing_is_open(world.database.pool()).await;
    for (path, expected) in [
        ("/bearer", ("authorization", "Bearer t-1")),
        ("/basic", ("authorization", "Basic dXNlcjpwYXNzd29yZA==")),
        ("/header", ("x-api-key", "k-1")),
        // The name and the secret, form-encoded and in base64 as `Basic` has them, are what this login makes tokens of.
        ("/oauth2", ("authorization", "Bearer for-Basic-YWNtZTpzLTE-")),
    ] {
        let request = requests.iter().find(|request| request.target() == path).expect(path);
        assert_eq!(request.header(expected.0), Some(expected.1), "{path}");
        let more = request
            .headers()
            .into_iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .filter(|name| !name.starts_with("postrider-") && !name.starts_with("webhook-"));
        let mut more: Vec<String> = more.collect();
        more.sort();
        let mut usual =
            vec!["content-length", "content-type", "host", "traceparent", "user-agent", expected.0];
        usual.sort_unstable();
        assert_eq!(more, usual, "{path}");
    }
    assert_eq!(world.login.requests().len(), 1);
    engine.drain().await;
}

#[tokio::test]
async fn a_burst_of_deliveries_asks_for_one_token() {
    const ENDPOINTS: usize = 20;
    const EVENTS: usize = 5;
    let world = World::new().await;
    let (id, gate) = (world.tenant.credential("crm", &world.client("s-1")).await, Gate::default());
    for number in 0..ENDPOINTS {
        world.endpoint(&format!("crm-{number}"), id).await;
    }
    world.login.answer_with({
        let gate = gate.clone();
        move |request| granting(request, 3600).after(&gate)
    });
    for _ in 0..EVENTS {
        world.application.publish("order.created", "{}").await;
    }
    let engine = Running::start(&world.database);
    world.login.wait_for(1).await;
    let many =
        "SELECT (count(*) >= 20)::integer::bigint FROM postrider.delivery_queue WHERE state = 'in_flight'";
    wait_for_count(world.database.pool(), many, 1).await;
    // One that were open for as long as the login takes would never go.
    let idle = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    wait_for_count(world.database.pool(), idle, 0).await;
    gate.open();
    wait_until_nothing_is_open(world.database.pool()).await;
    assert_eq!((world.login.requests().len(), world.vendor.requests().len()), (1, ENDPOINTS * EVENTS));
    engine.drain().await;
}

#[tokio::test]
async fn a_replaced_credential_is_sent_from_the_next_attempt_on_by_every_process() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &bearer("old")).await;
    world.endpoint("crm", id).await;
    let engines = [Running::start(&world.database), Running::start(&world.database)];
    for engine in &engines {
        world.publish(engine).await;
    }
    let before = world.vendor.wait_for(2).await;
    assert!(before.iter().all(|request| authorization(request) == "Bearer old"));
    wait_until_nothing_is_open(world.database.pool()).await;
    for (credential, expected) in
        [(bearer("new"), "Bearer new"), (world.client("s-2"), "Bearer for-Basic-YWNtZTpzLTI-")]
    {
        let so_far = world.vendor.requests().len();
        world.tenant.replace_credential("crm", &credential).await;
        for engine in &engines {
            world.publish(engine).await;
        }
        let after = world.vendor.wait_for(so_far + 2).await.split_off(so_far);
        assert!(after.iter().all(|request| authorization(request) == expected), "{expected}");
        wait_until_nothing_is_open(world.database.pool()).await;
    }
    for engine in engines {
        engine.drain().await;
    }
}

#[tokio::test]
async fn a_refused_token_is_fetched_anew_for_the_next_attempt_and_not_for_ever() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &world.client("s-1")).await;
    world.endpoint("crm", id).await;
    let engine = Running::start(&world.database);
    world.vendor.queue([Answer::status(401)]);
    world.publish(&engine).await;
    wait_for_count(world.database.pool(), DELIVERED, 1).await;
    assert_eq!((world.login.requests().len(), world.vendor.requests().len()), (2, 2));

    // The new token is refused, too: another would fare no better, and the login is not asked for each delivery.
    world.vendor.answer_with(|_| Answer::status(401));
    for _ in 0..3 {
        world.publish(&engine).await;
    }
    let rejected = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'rejected'";
    wait_for_count(world.database.pool(), rejected, 3).await;
    assert_eq!((world.login.requests().len(), world.vendor.requests().len()), (2, 5));
    let statuses: Vec<Option<i16>> = world.attempts().await.into_iter().map(|(status, ..)| status).collect();
    assert_eq!(statuses, [Some(401), Some(200), Some(401), Some(401), Some(401)], "the status is kept");
    engine.drain().await;
}

#[tokio::test]
async fn a_401_without_a_token_is_final() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &bearer("t-1")).await;
    world.endpoint("crm", id).await;
    world.vendor.answer_with(|_| Answer::status(401));
    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    wait_for_count(
        world.database.pool(),
        "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'rejected'",
        1,
    )
    .await;
    assert_eq!(world.vendor.requests().len(), 1);
    engine.drain().await;
}

#[tokio::test]
async fn nothing_is_sent_while_there_is_no_token() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &world.client(CANARY)).await;
    let policy =
        Policy::new(100, Duration::from_secs(60), Duration::from_millis(400), Duration::from_millis(400));
    let policy = policy.expect("a policy within bounds");
    world.endpoint_with("crm", id, |endpoint| endpoint.retry(policy)).await;
    world.login.queue([Answer::status(400).body(format!(r#"{{"error":"{CANARY}"}}"#))]);
    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    wait_for_count(world.database.pool(), DELIVERED, 1).await;
    let attempts = world.attempts().await;
    let (last, failed) = attempts.split_last().expect("attempts");
    assert_eq!(last, &(Some(200), None, None));
    assert!(!failed.is_empty());
    for (status, failure, detail) in failed {
        assert_eq!((status, failure.as_deref()), (&None, Some("credential_unavailable")));
        assert_eq!(detail.as_deref(), Some("no access token: the token endpoint answered 400"));
    }
    // Attempts during the pause after the failure asked nobody.
    assert_eq!((world.login.requests().len(), world.vendor.requests().len()), (2, 1));
    engine.drain().await;
}

#[tokio::test]
async fn the_wait_for_a_token_is_part_of_the_attempt() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &world.client("s-1")).await;
    let timeout = Duration::from_millis(300);
    world.endpoint_with("crm", id, |endpoint| endpoint.timeout(timeout).retry(hasty(1))).await;
    world.login.answer_with(|_| Answer::never());
    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    let dead = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'attempts_exhausted'";
    wait_for_count(world.database.pool(), dead, 1).await;
    let attempts = world.attempts().await;
    let detail = "no access token: none came within the attempt's time";
    assert_eq!(attempts, [(None, Some("credential_unavailable".to_owned()), Some(detail.to_owned()))]);
    let latency_ms: i32 = sqlx::query_scalar("SELECT latency_ms FROM postrider.attempts")
        .fetch_one(world.database.pool())
        .await
        .expect("one attempt");
    assert!((300..5_000).contains(&latency_ms), "{latency_ms}");
    assert_eq!(world.vendor.requests().len(), 0);
}

#[tokio::test]
async fn a_slow_login_leaves_the_vendor_the_rest_of_the_time() {
    let world = World::new().await;
    let id = world.tenant.credential("crm", &world.client("s-1")).await;
    let timeout = Duration::from_millis(800);
    world.endpoint_with("crm", id, |endpoint| endpoint.timeout(timeout).retry(hasty(1))).await;
    world.login.answer_with(|request| granting(request, 3600).late(Duration::from_millis(600)));
    world.vendor.answer_with(|_| Answer::never());
    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    let dead = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'attempts_exhausted'";
    wait_for_count(world.database.pool(), dead, 1).await;
    assert_eq!(world.attempts().await[0].1.as_deref(), Some("timeout"));
    let latency_ms: i32 = sqlx::query_scalar("SELECT latency_ms FROM postrider.attempts")
        .fetch_one(world.database.pool())
        .await
        .expect("one attempt");
    // With all of its time for the vendor alone it would take 1,400.
    assert!((800..1_300).contains(&latency_ms), "{latency_ms}");
}

#[tokio::test]
async fn a_credential_that_cannot_be_used_is_said_to_be_without_showing_it() {
    let world = World::new().await;
    let at = |url: &str| token_client(url, CANARY);
    let tenant = &world.tenant;
    for (name, credential) in [
        ("private", at("https://10.9.8.7/token")),
        ("plain", at("http://vendor.example/token")),
        ("no-url", at("canary-40aa")),
    ] {
        let id = tenant.credential(name, &credential).await;
        world.endpoint_with(name, id, |endpoint| endpoint.retry(hasty(1))).await;
    }
    let twice = tenant.credential("twice", &bearer(CANARY)).await;
    let endpoint = world.endpoint_with("twice", twice, |endpoint| endpoint.retry(hasty(1))).await;
    // The API refuses this; only a row that was changed by hand has it.
    let headers = CustomHeaders::from_pairs([("Authorization", CANARY)]).expect("headers").to_stored();
    let context =
        Context { purpose: Purpose::EndpointHeaders, tenant: tenant.id, row: endpoint.id.as_uuid() };
    sqlx::query("UPDATE postrider.endpoints SET sealed_headers = $1 WHERE endpoint_id = $2")
        .bind(keyring().seal([1; 12], &context, &headers))
        .bind(endpoint.id.as_uuid())
        .execute(world.database.pool())
        .await
        .expect("the row is changed");
    let damaged = tenant.credential("damaged", &bearer(CANARY)).await;
    world.endpoint_with("damaged", damaged, |endpoint| endpoint.retry(hasty(1))).await;
    sqlx::query("UPDATE postrider.credentials SET sealed_value = 'canary-40aa' WHERE name = 'damaged'")
        .execute(world.database.pool())
        .await
        .expect("the row is changed");

    let engine = Running::start(&world.database);
    world.publish(&engine).await;
    wait_until_nothing_is_open(world.database.pool()).await;
    let mut details: Vec<String> = Vec::new();
    for (status, failure, detail) in world.attempts().await {
        assert_eq!((status, failure.as_deref()), (None, Some("unsendable")));
        details.extend(detail);
    }
    details.sort();
    let token_url = "the token URL of the endpoint's credential is no longer allowed";
    let expected = [
        "a secret cannot be opened: the sealed value is damaged, or was moved from another row; check \
         POSTRIDER_ENCRYPTION_KEY",
        "the endpoint sets the header `authorization`, and so does its credential; remove one of them",
        token_url,
        token_url,
        token_url,
    ];
    assert_eq!(details, expected);
    assert_eq!((world.vendor.requests().len(), world.login.requests().len()), (0, 0));
    engine.drain().await;
}
