//! Credentials over several processes on one database: what one takes away, the others refuse at once.

use std::time::{Duration, Instant};

use postrider_testkit::postgres::Database;
use serde_json::{Value, json};

use crate::{
    api::{Answer, call},
    server::{Publisher, Server},
};

const SECRET: &str = "sessions-0123456789abcdef0123456789abcdef";
const NEW_SECRET: &str = "sessions-of-next-month-0123456789abcdef01";
const PASSWORD: &str = "correct battery horse";
/// Longest time before every process refuses what one took away.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn log_in(server: &Server) -> Answer {
    let body = json!({ "email": "ada@example.com", "password": PASSWORD }).to_string();
    call(server.address, "POST", "/api/auth/login", "", &body).await
}

async fn create_user(owner: &Publisher) -> String {
    let body = json!({ "email": "ada@example.com", "password": PASSWORD, "role": "developer" });
    format!("/users/{}", owner.manage("POST", "/users", body, 201).await.text("id"))
}

async fn status(server: &Server, token: &str) -> u16 {
    call(server.address, "GET", "/api/tenants/acme/applications", token, "").await.status
}

#[expect(clippy::disallowed_methods, reason = "the time that passes for a caller")]
fn began() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn what_is_taken_away_in_one_process_is_refused_by_another_at_once() {
    let database = Database::empty().await;
    let secret = [("POSTRIDER_JWT_SECRET", SECRET)];
    let here = Server::start_with(&database, "api", &secret).await;
    let there = Server::start_with(&database, "api", &secret).await;
    let owner = here.publisher().await;

    for round in 0..5 {
        let name = format!("ci-{round}");
        let body = json!({ "id": name, "role": "viewer" });
        let token = owner.manage("POST", "/keys", body, 201).await.text("token");
        assert_eq!(status(&there, &token).await, 200);
        let revoking = began();
        owner.manage("POST", &format!("/keys/{name}/revoke"), Value::Null, 200).await;
        assert_eq!(status(&there, &token).await, 401, "the first request after the answer");
        assert!(revoking.elapsed() < AT_ONCE, "{:?}", revoking.elapsed());
    }

    let user = create_user(&owner).await;
    let path = format!("/api/tenants/acme{user}");
    for (change, expected) in [
        (json!({ "role": "viewer" }), 403),
        (json!({ "password": PASSWORD }), 401),
        (json!({ "enabled": false }), 401),
    ] {
        owner.manage("PATCH", &user, json!({ "role": "developer", "enabled": true }), 200).await;
        let session = log_in(&here).await.text("token");
        let create = async |server: &Server, id: &str| {
            let body = json!({ "id": id }).to_string();
            call(server.address, "POST", "/api/tenants/acme/applications", &session, &body).await.status
        };
        let name = change.as_object().and_then(|change| change.keys().next()).unwrap();
        assert_eq!(create(&there, name).await, 201, "{change}");
        let changing = began();
        owner.manage("PATCH", &user, change.clone(), 200).await;
        assert_eq!(create(&there, "never").await, expected, "{change}");
        assert!(changing.elapsed() < AT_ONCE, "{:?}", changing.elapsed());
    }
    owner.manage("PATCH", &user, json!({ "enabled": true }), 200).await;
    let session = log_in(&there).await.text("token");
    assert_eq!(status(&here, &session).await, 200);
    let [owner_token, _] = owner.tokens();
    assert_eq!(call(here.address, "DELETE", &path, owner_token, "").await.status, 204);
    assert_eq!(status(&there, &session).await, 401);
}

#[tokio::test]
async fn a_new_secret_ends_no_session_while_the_old_one_is_given_too() {
    let database = Database::empty().await;
    let old = Server::start_with(&database, "api", &[("POSTRIDER_JWT_SECRET", SECRET)]).await;
    create_user(&old.publisher().await).await;
    let session = log_in(&old).await.text("token");
    let both = [("POSTRIDER_JWT_SECRET", NEW_SECRET), ("POSTRIDER_JWT_SECRET_PREVIOUS", SECRET)];
    let between = Server::start_with(&database, "api", &both).await;
    let new = Server::start_with(&database, "api", &[("POSTRIDER_JWT_SECRET", NEW_SECRET)]).await;
    let without = Server::start(&database, "api").await;
    for (server, expected) in [(&old, 200), (&between, 200), (&new, 401), (&without, 401)] {
        assert_eq!(status(server, &session).await, expected);
    }
    let session = log_in(&between).await.text("token");
    for (server, expected) in [(&old, 401), (&between, 200), (&new, 200)] {
        assert_eq!(status(server, &session).await, expected);
    }
    let off = log_in(&without).await;
    assert_eq!((off.status, off.text("code").as_str()), (403, "logins_off"), "{off:?}");
}
