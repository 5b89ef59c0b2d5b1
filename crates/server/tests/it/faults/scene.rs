//! What the fault tests have in common: looking until something is so, and reading what a process shows.

use std::{net::SocketAddr, time::Duration};

use postrider_testkit::ledger::Expectation;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::{sleep, timeout};

use crate::{
    api::send_raw,
    server::{METRICS_TOKEN, Publisher},
};

/// Everything had the time to end.
pub(super) const OVER: Expectation = Expectation { poll: Duration::from_secs(2), everything_ended: true };

/// Longest wait for what must come: a lease whose owner nobody knows is taken back after 30 seconds at the latest.
pub(super) const PATIENCE: Duration = Duration::from_secs(50);
/// Between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Looks until it is so; panics with `what` where it never is.
pub(super) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("it never came to this: {what}"));
}

/// A number from the database.
pub(super) async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.unwrap()
}

/// What sessions of this database that open from now on have for a setting, unless they say otherwise.
pub(super) async fn set_default(pool: &PgPool, setting: &str, value: &str) {
    let database: String = sqlx::query_scalar("SELECT current_database()").fetch_one(pool).await.unwrap();
    let set = format!("ALTER DATABASE \"{database}\" SET {setting} = '{value}'");
    sqlx::raw_sql(AssertSqlSafe(set)).execute(pool).await.unwrap();
}

/// Waits until no delivery is open.
pub(super) async fn until_nothing_is_open(pool: &PgPool) {
    let open = async || count(pool, "SELECT count(*) FROM postrider.delivery_queue").await == 0;
    until("no delivery is open", open).await;
}

/// Waits until so many sessions of this database wait for a lock, or for what else is named.
pub(super) async fn until_sessions_wait(pool: &PgPool, wait: &str, expected: i64) {
    let query = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND $1 IN (wait_event_type, wait_event)";
    let waiting = async || {
        let found: i64 = sqlx::query_scalar(query).bind(wait).fetch_one(pool).await.unwrap();
        found >= expected
    };
    until(&format!("{expected} sessions wait for {wait}"), waiting).await;
}

/// The sum of a metric's values, over all its labels.
pub(super) async fn metric(address: SocketAddr, name: &str) -> f64 {
    values(address, name).await.iter().map(|value| value.parse::<f64>().unwrap()).sum()
}

/// The same of one that counts something.
pub(super) async fn counter(address: SocketAddr, name: &str) -> u64 {
    values(address, name).await.iter().map(|value| value.parse::<u64>().unwrap()).sum()
}

async fn values(address: SocketAddr, name: &str) -> Vec<String> {
    let head = format!(
        "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {METRICS_TOKEN}\r\n\r\n"
    );
    let answer = send_raw(address, head.as_bytes()).await;
    let values = answer.lines().filter_map(|line| {
        let (shown, value) = line.rsplit_once(' ')?;
        (shown.split('{').next() == Some(name)).then(|| value.to_owned())
    });
    values.collect()
}

/// Creates an endpoint that is tried again at once and gets all events of `orders`.
pub(super) async fn endpoint(publisher: &Publisher, name: &str, url: &str, max_age_seconds: u32) {
    let retry = json!({ "initialDelayMs": 1, "maxDelayMs": 1, "maxAgeSeconds": max_age_seconds });
    let endpoint = json!({ "id": name, "url": url, "retry": retry });
    publisher.manage("POST", "/endpoints", endpoint, 201).await;
    let subscription = json!({
        "id": name, "applicationId": "orders", "endpointId": name, "eventTypes": ["*"],
    });
    publisher.manage("POST", "/subscriptions", subscription, 201).await;
}

/// What became of the attempts of a delivery, in their order.
pub(super) async fn outcomes(publisher: &Publisher, delivery: &Value) -> Vec<String> {
    let path = format!("/deliveries/{}/attempts", delivery["id"].as_str().unwrap());
    let attempts = publisher.manage("GET", &path, Value::Null, 200).await.body["data"].clone();
    let mut attempts = attempts.as_array().unwrap().clone();
    attempts.sort_by_key(|attempt| attempt["number"].as_u64());
    attempts.iter().map(|attempt| attempt["outcome"].as_str().unwrap().to_owned()).collect()
}
