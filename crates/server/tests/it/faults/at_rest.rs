//! What the database holds gives nobody a secret: a copy of it, without the keys, opens nothing.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::scene::until_nothing_is_open;
use crate::server::{BOOTSTRAP_TOKEN, KEY, METRICS_TOKEN, Server};

/// A receiver's credential, and what its answers say.
const CANARY: &str = "canary-7c20ae91";

#[tokio::test]
async fn no_table_holds_a_secret_in_a_form_that_can_be_read() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let answer = format!("HTTP/1.1 500 {CANARY}\r\nx-said: {CANARY}\r\ncontent-length: 15\r\n\r\n{CANARY}");
    receiver.queue([Answer::raw(answer), Answer::raw(format!("{CANARY}\r\n\r\n"))]);
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    let secret = publisher.deliver_to(&receiver.url("/")).await;
    let headers = json!({ "headers": { "authorization": format!("Bearer {CANARY}") } });
    publisher.manage("PATCH", "/endpoints/warehouse", headers, 200).await;
    let rotated = publisher
        .manage("POST", "/endpoints/warehouse/rotate-secret", json!({ "overlapSeconds": 60 }), 200)
        .await
        .text("signingSecret");
    publisher.publish("[1]").await;
    receiver.wait_for(3).await;
    until_nothing_is_open(database.pool()).await;

    let mut needles: Vec<Vec<u8>> =
        publisher.tokens().iter().map(|token| token.as_bytes().to_vec()).collect();
    needles.extend([CANARY, BOOTSTRAP_TOKEN, METRICS_TOKEN, KEY].map(|text| text.as_bytes().to_vec()));
    for secret in [&secret, &rotated] {
        let encoded = secret.strip_prefix("whsec_").unwrap();
        needles.extend([encoded.as_bytes().to_vec(), BASE64.decode(encoded).unwrap()]);
    }
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'postrider'")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert!(tables.len() >= 10, "{tables:?}");
    for table in tables {
        let rows = format!("SELECT t::text FROM postrider.{table} t");
        let rows: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(rows)).fetch_all(database.pool()).await.unwrap();
        for needle in &needles {
            // Bytes are shown in hexadecimal.
            let (hexadecimal, text) = (hex::encode(needle), String::from_utf8_lossy(needle));
            let found = rows.iter().find(|row| row.contains(&*text) || row.contains(&hexadecimal));
            assert_eq!(found, None, "{text} stands in {table}");
        }
    }
}
