//! Logging in: what it opens, what it tells, and how fast somebody may guess.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http::{StatusCode, header};
use postrider_api::{Settings, refusals::Refusals};
use postrider_core::{problem::Code, session};
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::datetime};
use tokio::task::JoinSet;

use crate::{
    reply::Reply,
    surface::{Surface, Tenant},
};

const PASSWORD: &str = "correct battery horse";

async fn create(surface: &Surface, acme: &Tenant, email: &str) {
    let body = json!({"email": email, "password": PASSWORD, "role": "viewer"}).to_string();
    surface.post_json("/api/tenants/acme/users", &acme.owner, body).await.expect(201);
}

/// A surface whose time is set by hand.
async fn timed() -> (Surface, Arc<Mutex<OffsetDateTime>>) {
    timed_with(|_settings| ()).await
}

async fn timed_with(change: impl FnOnce(&mut Settings)) -> (Surface, Arc<Mutex<OffsetDateTime>>) {
    let time = Arc::new(Mutex::new(datetime!(2026-03-01 12:00:00 UTC)));
    let now = Arc::clone(&time);
    let surface = Surface::with(move |settings| {
        settings.now = Arc::new(move || *now.lock().expect("lock"));
        change(settings);
    });
    (surface.await, time)
}

#[tokio::test]
async fn a_session_opens_the_tenant_until_it_is_over() {
    let (surface, time) = timed().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    let reply = surface.log_in("Ada@Example.com", PASSWORD).await;
    assert_eq!(reply.header(&header::CACHE_CONTROL), "no-store");
    let answer = reply.expect(200);
    let (token, began) = (answer["token"].as_str().expect("a token"), *time.lock().expect("lock"));
    let expires_at = OffsetDateTime::parse(answer["expiresAt"].as_str().expect("a time"), &Rfc3339);
    assert_eq!(expires_at.ok(), Some(began + session::LIFE));
    let claims = token.split('.').nth(1).expect("claims");
    for told in ["acme", "viewer", "example.com"] {
        let hidden = !claims.contains(told);
        assert!(hidden, "the token names {told}");
    }

    let path = "/api/tenants/acme/applications";
    surface.get(path, token).await.expect(200);
    surface.post_json(path, token, r#"{"id":"billing"}"#).await.expect_problem(Code::Forbidden);
    surface.get("/metrics", token).await.expect_problem(Code::Forbidden);
    surface.get("/api/tenants/rival/applications", token).await.expect_problem(Code::NotFound);
    *time.lock().expect("lock") = began + session::LIFE + session::LEEWAY - Duration::from_secs(1);
    surface.get(path, token).await.expect(200);
    *time.lock().expect("lock") = began + session::LIFE + session::LEEWAY;
    let over = surface.get(path, token).await.expect_problem(Code::Unauthorized);
    assert!(over["detail"].as_str().is_some_and(|detail| detail.contains("Log in again")), "{over}");
}

#[tokio::test]
async fn an_unknown_address_is_answered_like_a_wrong_password_and_takes_as_long() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    let (mut wrong_took, mut unknown_took) = (Duration::MAX, Duration::MAX);
    for number in 0..4 {
        let (wrong, took) = timed_login(&surface, "ada@example.com", "wrong battery horse").await;
        wrong_took = wrong_took.min(took);
        let (unknown, took) = timed_login(&surface, &format!("eve{number}@example.com"), PASSWORD).await;
        unknown_took = unknown_took.min(took);
        assert_eq!(wrong.expect_problem(Code::Unauthorized), unknown.expect_problem(Code::Unauthorized));
        assert_eq!(wrong.headers, unknown.headers);
    }
    // Without a hash it would take a hundredth.
    assert!(
        unknown_took * 3 > wrong_took && wrong_took * 3 > unknown_took,
        "{unknown_took:?} {wrong_took:?}"
    );
}

#[expect(clippy::disallowed_methods, reason = "how long a stranger waits is what a stranger measures")]
async fn timed_login(surface: &Surface, email: &str, password: &str) -> (Reply, Duration) {
    let began = Instant::now();
    let reply = surface.log_in(email, password).await;
    (reply, began.elapsed())
}

#[tokio::test]
async fn guessing_is_slowed_down_and_the_owner_gets_in_again() {
    let (surface, time) = timed().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    for guess in 0..5 {
        let reply = surface.log_in("ada@example.com", &format!("guess {guess}")).await;
        reply.expect_problem(Code::Unauthorized);
    }
    for password in ["another guess", PASSWORD] {
        let reply = surface.log_in("ADA@example.com", password).await;
        reply.expect_problem(Code::RateLimited);
        assert_eq!(reply.header(&header::RETRY_AFTER), "1");
    }
    *time.lock().expect("lock") += Duration::from_secs(1);
    surface.log_in("ada@example.com", "one more guess").await.expect_problem(Code::Unauthorized);
    let reply = surface.log_in("ada@example.com", PASSWORD).await;
    assert_eq!(reply.header(&header::RETRY_AFTER), "2");
    *time.lock().expect("lock") += Duration::from_secs(2);
    surface.log_in("ada@example.com", PASSWORD).await.expect(200);
    surface.log_in("ada@example.com", "mistyped").await.expect_problem(Code::Unauthorized);
    surface.log_in("ada@example.com", PASSWORD).await.expect(200);
}

/// What is let through is decided before anything is hashed, so it is no more when all come at once.
#[tokio::test]
async fn guesses_at_once_are_no_more_than_one_after_the_other() {
    let (surface, _time) = timed().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    let guesses = (0..30).map(|guess| format!("guess {guess}")).collect::<Vec<_>>();
    let guesses = guesses.iter().map(|guess| surface.log_in("ada@example.com", guess));
    let replies = futures::future::join_all(guesses).await;
    let tried = replies.iter().filter(|reply| reply.status.as_u16() == 401).count();
    assert_eq!(tried, 5, "so many guesses were compared");
    assert!(replies.iter().all(|reply| [401, 429].contains(&reply.status.as_u16())));
}

/// Each of its own tenant, and under an address without an account nobody knows what was typed there.
#[tokio::test]
async fn logins_are_remembered_however_they_end() {
    let (refusals, waiting) = Refusals::new();
    let (surface, _time) = timed_with(|settings| settings.refusals = refusals).await;
    let mut writer = JoinSet::new();
    writer.spawn(waiting.write(surface.database.pool().clone()));
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    surface.log_in("ada@example.com", PASSWORD).await.expect(200);
    surface.log_in("my-password-by-mistake@example.com", "x").await.expect_problem(Code::Unauthorized);
    for _ in 0..5 {
        surface.log_in("ada@example.com", "guess").await.expect_problem(Code::Unauthorized);
    }
    surface.log_in("ada@example.com", "guess").await.expect_problem(Code::RateLimited);

    let path = "/api/tenants/acme/audit?actor=ada@example.com";
    let own = surface.get(path, &acme.owner).await.expect(200);
    assert_eq!(
        (&own["data"][0]["action"], &own["data"][0]["actor"]["kind"]),
        (&"login.succeeded".into(), &"user".into())
    );
    let database = surface.database.pool().clone();
    let read = async || {
        let query = "SELECT action, tenant_id IS NOT NULL, target_name, reason FROM postrider.audit_log
                      WHERE actor_kind = 'anonymous' ORDER BY action, target_name";
        let rows = sqlx::query_as::<_, (String, bool, Option<String>, String)>(query);
        rows.fetch_all(&database).await.expect("the log")
    };
    let mut found = read().await;
    while found.len() < 3 {
        tokio::task::yield_now().await;
        found = read().await;
    }
    let entry = |action: &str, whose: Option<&str>, reason: &str| {
        (action.to_owned(), whose.is_some(), whose.map(str::to_owned), reason.to_owned())
    };
    let ada = Some("ada@example.com");
    let expected = [
        entry("login.refused", ada, "unauthorized"),
        entry("login.refused", None, "unauthorized"),
        entry("login.throttled", ada, "rate_limited"),
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_user_replaces_the_own_password_by_the_one_before() {
    let (surface, _time) = timed().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com").await;
    let begun = surface.log_in("ada@example.com", PASSWORD).await.expect(200);
    let session = begun["token"].as_str().expect("a token");
    let change = async |password: &str, new_password: &str| {
        let body = json!({"email": "Ada@example.com", "password": password, "newPassword": new_password});
        surface.post_json("/api/auth/password", session, body.to_string()).await
    };
    change("wrong battery horse", "another long one").await.expect_problem(Code::Unauthorized);
    for short in ["canary", "ada@example.com"] {
        let problem = change(PASSWORD, short).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], "newPassword", "{problem}");
        assert!(!problem.to_string().contains("canary"), "{problem}");
    }
    surface.get("/api/tenants/acme/applications", session).await.expect(200);

    assert_eq!(change(PASSWORD, "another long one").await.status, StatusCode::NO_CONTENT);
    surface.get("/api/tenants/acme/applications", session).await.expect_problem(Code::Unauthorized);
    change(PASSWORD, "a third long one").await.expect_problem(Code::Unauthorized);
    surface.log_in("ada@example.com", PASSWORD).await.expect_problem(Code::Unauthorized);
    surface.log_in("ada@example.com", "another long one").await.expect(200);
    let log = surface.get("/api/tenants/acme/audit?action=user.changed", &acme.owner).await.expect(200);
    assert_eq!(
        (&log["data"][0]["actor"]["name"], &log["data"][0]["fields"]),
        (&json!("ada@example.com"), &json!(["password"]))
    );
    for _ in 0..5 {
        change("guess", "a third long one").await;
    }
    change("another long one", "a third long one").await.expect_problem(Code::RateLimited);
}

#[tokio::test]
async fn without_a_secret_nobody_logs_in_and_nothing_breaks() {
    let with = Surface::new().await;
    let acme = with.tenant("acme").await;
    create(&with, &acme, "ada@example.com").await;
    let begun = with.log_in("ada@example.com", PASSWORD).await.expect(200);
    let surface = Surface::with(|settings| settings.sessions = None).await;
    surface.tenant("acme").await;
    let problem = surface.log_in("ada@example.com", PASSWORD).await.expect_problem(Code::LoginsOff);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("POSTRIDER_JWT_SECRET")));
    let token = begun["token"].as_str().expect("a token");
    surface.get("/api/tenants/acme/applications", token).await.expect_problem(Code::Unauthorized);
}

#[tokio::test]
async fn what_is_no_login_is_refused_without_repeating_it() {
    let surface = Surface::new().await;
    for (body, code) in [
        ("", Code::InvalidJson),
        ("{}", Code::InvalidField),
        (r#"{"email":"canary","password":"canary"}"#, Code::InvalidField),
        (
            &format!(r#"{{"email":"ada@example.com","password":"{}"}}"#, "canary".repeat(1_000)),
            Code::BodyTooLarge,
        ),
        (r#"{"email":"ada@example.com","password":["canary"]}"#, Code::InvalidField),
        (r#"{"email":"ada@example.com","password":"canary","tenant":"canary"}"#, Code::InvalidField),
        (r#"{"email":"ada@example.com","password":"canary","password":"canary"}"#, Code::InvalidField),
    ] {
        let request = http::Request::post("/api/auth/login").header(header::CONTENT_TYPE, "application/json");
        let reply = surface.call(request.body(body.to_owned().into()).expect("request")).await;
        let problem = reply.expect_problem(code);
        assert!(!problem.to_string().contains("canary"), "{problem}");
    }
}
