//! What tenants may do: how they are bounded, and what they are told.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use futures::{StreamExt as _, poll, stream};
use http::{Method, Request, header};
use postrider_core::{
    bucket::Rate,
    id::{EndpointId, TenantId},
    limiter::{Answer, Entry, InProcess, LeaseId, Limiter, Reach, Taken},
    port::Pending,
    problem::Code,
    quota,
};
use postrider_store::routing::Cache;
use serde_json::{Value, json};

use crate::{
    reply::Reply,
    surface::{BOOTSTRAP_TOKEN, METRICS_TOKEN, Surface, Tenant, request},
};

const ACME: &str = "/api/admin/tenants/acme";
const EVENTS: &str = "/api/tenants/acme/applications/orders/events";
const EVENT: &str = "/api/tenants/acme/applications/orders/events/order.created";

/// A surface, its tenant, and the seconds of its clock.
async fn bounded(limits: Value) -> (Surface, Tenant, Arc<AtomicU64>) {
    let seconds = Arc::<AtomicU64>::default();
    let clock = Arc::clone(&seconds);
    let surface = Surface::with(|settings| {
        settings.monotonic = Arc::new(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
    })
    .await;
    let acme = surface.tenant("acme").await;
    surface.patch(ACME, BOOTSTRAP_TOKEN, limits.to_string()).await.expect(200);
    (surface, acme, seconds)
}

fn told(reply: &Reply) -> [Option<&str>; 3] {
    ["ratelimit-policy", "ratelimit", "retry-after"]
        .map(|name| reply.headers.get(name).map(|value| value.to_str().expect("text")))
}

#[tokio::test]
async fn the_operator_sets_limits_and_sees_what_holds() {
    let surface = Surface::with(|settings| {
        let defaults =
            quota::Settings { rate: Some(50.0), hourly_events: Some(1_000), ..quota::Settings::default() };
        settings.routing = Arc::new(Cache::with_defaults(settings.pool.clone(), defaults));
    })
    .await;
    let acme = surface.tenant("acme").await;
    let shown = surface.get(ACME, BOOTSTRAP_TOKEN).await.expect(200);
    assert_eq!(
        (&shown["id"], &shown["name"], &shown["approvedOnly"]),
        (&"acme".into(), &"acme".into(), &false.into())
    );
    assert_eq!((&shown["rate"], &shown["burst"]), (&Value::Null, &Value::Null));
    let quotas = |events: Option<u64>, open: Option<u64>| json!({ "hourlyEvents": events, "hourlyBytes": null, "openDeliveries": open });
    assert_eq!(shown["quotas"], quotas(None, None));
    let effective = json!({ "rate": 50.0, "burst": 50, "quotas": quotas(Some(1_000), None) });
    assert_eq!(shown["effective"], effective);

    let patch = async |body: Value| surface.patch(ACME, BOOTSTRAP_TOKEN, body.to_string()).await;
    let changed = json!({ "rate": 0, "burst": 7, "quotas": { "openDeliveries": 9, "hourlyEvents": 0 }, "approvedOnly": true });
    let shown = patch(changed).await.expect(200);
    assert_eq!(
        (&shown["rate"], &shown["burst"], &shown["approvedOnly"]),
        (&0.0.into(), &7.into(), &true.into())
    );
    assert_eq!(shown["quotas"], quotas(Some(0), Some(9)));
    assert_eq!(shown["effective"], json!({ "rate": null, "burst": null, "quotas": quotas(None, Some(9)) }));
    let shown = patch(json!({ "rate": null, "quotas": null })).await.expect(200);
    assert_eq!(shown["effective"], json!({ "rate": 50.0, "burst": 7, "quotas": quotas(Some(1_000), None) }));
    assert_eq!(surface.get(ACME, BOOTSTRAP_TOKEN).await.expect(200), shown);

    let fields: Vec<Vec<String>> = sqlx::query_scalar(
        "SELECT fields FROM postrider.audit_log WHERE action = 'tenant.changed' ORDER BY audit_id",
    )
    .fetch_all(surface.database.pool())
    .await
    .expect("entries");
    assert_eq!(fields, [vec!["rate", "burst", "quotas", "approvedOnly"], vec!["rate", "quotas"]]);
    assert_eq!(patch(json!({})).await.expect(200), shown, "and nothing more is recorded");

    for (body, field) in [
        (json!({ "rate": -1 }), "rate"),
        (json!({ "burst": 2_000_000 }), "burst"),
        (json!({ "quotas": { "hourlyBytes": 1_u64 << 60 } }), "quotas.hourlyBytes"),
        (json!({ "quotas": [] }), "quotas"),
        (json!({ "approvedOnly": null }), "approvedOnly"),
        (json!({ "more": 1 }), "more"),
    ] {
        let problem = patch(body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    assert_eq!(surface.count("audit_log WHERE action = 'tenant.changed'").await, 2);
    for token in [&acme.owner, &acme.publish] {
        surface.get(ACME, token).await.expect_problem(Code::Forbidden);
        surface.patch(ACME, token, "{}").await.expect_problem(Code::Forbidden);
    }
    let nobody = "/api/admin/tenants/nobody";
    surface.get(nobody, BOOTSTRAP_TOKEN).await.expect_problem(Code::NotFound);
    surface.patch(nobody, BOOTSTRAP_TOKEN, "{}").await.expect_problem(Code::NotFound);
}

#[tokio::test]
async fn a_tenant_that_publishes_too_fast_is_told_when_to_come_back() {
    let (surface, acme, seconds) = bounded(json!({ "rate": 0.5, "burst": 2 })).await;
    let publish = async |body: &'static str| surface.post_json(EVENT, &acme.publish, body).await;
    let policy = Some("\"rate\";q=2;w=4");
    let first = publish("1").await;
    first.expect(202);
    assert_eq!(told(&first), [policy, Some("\"rate\";r=1;t=2"), None]);
    let second = publish("no JSON").await;
    second.expect_problem(Code::InvalidJson);
    assert_eq!(
        told(&second),
        [policy, Some("\"rate\";r=0;t=4"), None],
        "whatever comes of it, it was an event"
    );
    // Its body is not even read.
    let endless = Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let third = surface.post_json(EVENT, &acme.publish, endless).await;
    third.expect_problem(Code::RateLimited);
    assert_eq!(told(&third), [policy, Some("\"rate\";r=0;t=4"), Some("3")]);
    seconds.store(2, Ordering::Relaxed);
    publish("3").await.expect(202);
    publish("4").await.expect_problem(Code::RateLimited);
    assert_eq!(surface.stored_events().await, 2);

    // Other tenants have buckets of their own, or none.
    let rival = surface.tenant("rival").await;
    let reply = surface.post_json(&EVENT.replace("acme", "rival"), &rival.publish, "1").await;
    reply.expect(202);
    assert_eq!(told(&reply), [None; 3]);
}

#[tokio::test]
async fn a_batch_costs_as_many_tokens_as_it_has_events_and_may_leave_a_debt() {
    let (surface, acme, seconds) = bounded(json!({ "rate": 1, "burst": 3 })).await;
    let batch = async |count: usize| {
        let events = vec![json!({ "type": "order.created", "data": 1 }); count];
        surface.post_json(EVENTS, &acme.publish, json!({ "events": events }).to_string()).await
    };
    let reply = batch(5).await;
    assert_eq!(reply.expect(200)["results"].as_array().map(Vec::len), Some(5));
    assert_eq!(told(&reply)[1], Some("\"rate\";r=0;t=5"), "two more than there were");
    assert_eq!(told(&batch(1).await)[2], Some("4"));
    seconds.store(4, Ordering::Relaxed);
    batch(5).await.expect_problem(Code::RateLimited);
    batch(2).await.expect(200);
    seconds.store(7, Ordering::Relaxed);
    batch(3).await.expect(200);
    assert_eq!(surface.stored_events().await, 10);
}

/// Limits that others use, too, and how often they were asked.
#[derive(Debug)]
struct Shared {
    limits: InProcess,
    asked: AtomicU64,
}

impl Limiter for Shared {
    fn enter(&self, entry: Entry) -> Pending<'_, Answer> {
        self.limits.enter(entry)
    }

    fn leave(&self, endpoint_id: EndpointId, lease_id: LeaseId) {
        self.limits.leave(endpoint_id, lease_id);
    }

    fn take(&self, tenant_id: TenantId, rate: Rate, count: u32) -> Pending<'_, Taken> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.limits.take(tenant_id, rate, count)
    }

    fn look(&self, tenant_id: TenantId, rate: Rate) -> Taken {
        self.limits.look(tenant_id, rate)
    }

    fn reach(&self) -> Reach {
        Reach::Shared
    }
}

#[tokio::test]
async fn a_rate_that_others_share_is_asked_for_once_in_a_request_and_only_where_there_is_one() {
    let limits = InProcess::new(Arc::new(|| Duration::ZERO));
    let shared = Arc::new(Shared { limits, asked: AtomicU64::new(0) });
    let limiter = Arc::clone(&shared);
    let surface = Surface::with(|settings| settings.limiter = Some(limiter)).await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let limits = json!({ "rate": 0.5, "burst": 6 });
    surface.patch(ACME, BOOTSTRAP_TOKEN, limits.to_string()).await.expect(200);
    let rate = Rate { per_second: 0.5, burst: NonZeroU32::new(6).expect("not zero") };
    let elsewhere = shared.limits.take(acme.id, rate, 2).await;
    assert_eq!(elsewhere.answer, Answer::Granted);
    let asked = || shared.asked.swap(0, Ordering::Relaxed);

    let reply = surface.post_json(EVENT, &acme.publish, "1").await;
    reply.expect(202);
    assert_eq!((told(&reply)[1], asked()), (Some("\"rate\";r=3;t=6"), 1));
    let events = json!({ "events": vec![json!({ "type": "order.created", "data": 1 }); 3] }).to_string();
    let reply = surface.post_json(EVENTS, &acme.publish, events.clone()).await;
    reply.expect(200);
    assert_eq!((told(&reply)[1], asked()), (Some("\"rate\";r=0;t=12"), 1));
    let reply = surface.post_json(EVENT, &acme.publish, "1").await;
    reply.expect_problem(Code::RateLimited);
    assert_eq!((told(&reply)[2], asked()), (Some("3"), 1));
    surface.post_json(EVENTS, &acme.publish, events).await.expect_problem(Code::RateLimited);
    assert_eq!(asked(), 0, "what is known already is not asked for");
    surface.post_json(&EVENT.replace("acme", "rival"), &rival.publish, "1").await.expect(202);
    assert_eq!(asked(), 0, "who has no rate costs nothing");
}

/// A publisher that is refused never gets as far as ingest, which would notice.
#[tokio::test]
async fn a_rate_that_was_raised_holds_for_whoever_is_refused() {
    let (surface, acme, seconds) = bounded(json!({ "rate": 0.01, "burst": 1 })).await;
    let publish = async || surface.post_json(EVENT, &acme.publish, "1").await;
    publish().await.expect(202);
    publish().await.expect_problem(Code::RateLimited);
    surface.patch(ACME, BOOTSTRAP_TOKEN, json!({ "rate": 0 }).to_string()).await.expect(200);
    publish().await.expect_problem(Code::RateLimited);
    seconds.store(1, Ordering::Relaxed);
    let reply = publish().await;
    reply.expect(202);
    assert_eq!(told(&reply), [None; 3]);
}

#[tokio::test]
async fn what_is_over_a_quota_stores_nothing_and_what_was_stored_before_is_still_told() {
    let (surface, acme, _) = bounded(json!({ "quotas": { "hourlyEvents": 2, "openDeliveries": 50 } })).await;
    let keyed = async |key: &str, body: &'static str| {
        let request = request(Method::POST, EVENT, &acme.publish)
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", key);
        surface.call(request.body(body.into()).expect("request")).await
    };
    keyed("one", "1").await.expect(202);
    let events = json!({ "events": [
        { "type": "order.created", "idempotencyKey": "one", "data": 1 },
        { "type": "order.created", "idempotencyKey": "two", "data": 2 },
        { "type": "order.created", "data": 3 },
        { "type": "order.created", "idempotencyKey": "one", "data": 4 },
    ] });
    let answer = surface.post_json(EVENTS, &acme.publish, events.to_string()).await.expect(200);
    let statuses: Vec<_> =
        answer["results"].as_array().expect("results").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [200, 202, 429, 409]);
    assert_eq!(answer["results"][2]["problem"]["code"], "quota_exceeded");

    let refused = keyed("three", "5").await;
    let problem = refused.expect_problem(Code::QuotaExceeded);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("`hourlyEvents`")), "{problem}");
    let [policy, standing, retry_after] = told(&refused);
    assert_eq!(policy, Some("\"hourly-events\";q=2;w=3600"));
    let retry_after: u64 = retry_after.expect("a time").parse().expect("seconds");
    assert!((3_600..=3_660).contains(&retry_after), "{retry_after}");
    assert_eq!(standing, Some(format!("\"hourly-events\";r=0;t={retry_after}").as_str()));
    keyed("one", "1").await.expect(200);
    keyed("two", "9").await.expect_problem(Code::IdempotencyConflict);
    assert_eq!(surface.stored_events().await, 2);

    // Test events are events, too.
    let test = surface.post("/api/tenants/acme/endpoints/warehouse/test", &acme.developer).await;
    test.expect_problem(Code::QuotaExceeded);
    let more = json!({ "quotas": { "hourlyEvents": 3 } });
    surface.patch(ACME, BOOTSTRAP_TOKEN, more.to_string()).await.expect(200);
    keyed("three", "5").await.expect(202);
}

/// Whoever is told to send it again when there is room would do so for ever.
#[tokio::test]
async fn what_could_never_be_within_a_quota_is_refused_for_good() {
    let (surface, acme, _) = bounded(json!({ "quotas": { "openDeliveries": 2 } })).await;
    for id in ["second", "third"] {
        let endpoint = json!({ "id": id, "url": "https://receiver.example/" }).to_string();
        surface.post_json("/api/tenants/acme/endpoints", &acme.developer, endpoint).await.expect(201);
        let subscription =
            json!({ "id": id, "applicationId": "orders", "endpointId": id, "eventTypes": ["order.created"] });
        let path = "/api/tenants/acme/subscriptions";
        surface.post_json(path, &acme.developer, subscription.to_string()).await.expect(201);
    }
    let publish = async || surface.post_json(EVENT, &acme.publish, "1").await;
    let refused = publish().await;
    let problem = refused.expect_problem(Code::LargerThanQuota);
    for told in ["`openDeliveries`", "of which 2 are left", "the 3 that this event needs"] {
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(told)), "{problem}");
    }
    let policy = Some("\"open-deliveries\";q=2");
    assert_eq!(told(&refused), [policy, Some("\"open-deliveries\";r=2"), None]);
    let patch = async |quotas: Value| {
        let body = json!({ "quotas": quotas }).to_string();
        surface.patch(ACME, BOOTSTRAP_TOKEN, body).await.expect(200);
    };
    patch(json!({ "openDeliveries": 3 })).await;
    publish().await.expect(202);
    publish().await.expect_problem(Code::QuotaExceeded);
    patch(json!({ "openDeliveries": null, "hourlyBytes": 1, "hourlyEvents": 1 })).await;
    publish().await.expect_problem(Code::QuotaExceeded);
    let long = surface.post_json(EVENT, &acme.publish, "10").await;
    long.expect_problem(Code::LargerThanQuota);
    assert_eq!(surface.stored_events().await, 1);
}

#[tokio::test]
async fn beyond_its_fuse_a_process_answers_only_for_its_own_health() {
    let surface = Surface::with(|settings| settings.max_requests_in_flight = NonZeroU32::new(1)).await;
    let acme = surface.tenant("acme").await;
    let (sender, receiver) = futures::channel::mpsc::unbounded::<Result<Vec<u8>, std::io::Error>>();
    let body = Body::from_stream(receiver.boxed());
    let mut slow = Box::pin(surface.post_json(EVENT, &acme.publish, body));
    // It waits for its body.
    while poll!(&mut slow).is_pending() {
        let second = surface.get("/openapi.json", &acme.viewer).await;
        if second.status == 503 {
            second.expect_problem(Code::Overloaded);
            assert_eq!(second.header(&header::RETRY_AFTER), "1");
            break;
        }
    }
    surface.post_json(EVENT, &acme.publish, "1").await.expect_problem(Code::Overloaded);
    surface.get("/health/live", "").await.expect(200);
    assert_eq!(surface.get("/metrics", METRICS_TOKEN).await.status, 200);
    sender.unbounded_send(Ok(b"1".to_vec())).expect("it waits");
    drop(sender);
    slow.await.expect(202);
    surface.post_json(EVENT, &acme.publish, "2").await.expect(202);
}

#[tokio::test]
async fn who_logs_in_slowly_keeps_nobody_out_who_has_a_credential() {
    let surface = Surface::with(|settings| settings.max_requests_in_flight = NonZeroU32::new(1)).await;
    let acme = surface.tenant("acme").await;
    let login = |body| {
        let request = Request::post("/api/auth/login").header(header::CONTENT_TYPE, "application/json");
        surface.call(request.body(body).expect("request"))
    };
    let (_never_ends, receiver) = futures::channel::mpsc::unbounded::<Result<Vec<u8>, std::io::Error>>();
    let mut slow = Box::pin(login(Body::from_stream(receiver.boxed())));
    assert!(poll!(&mut slow).is_pending(), "it waits for its body");
    login(Body::from("{}")).await.expect_problem(Code::Overloaded);
    surface.post_json(EVENT, &acme.publish, "1").await.expect(202);
}
