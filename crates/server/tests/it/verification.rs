//! Strangers' libraries accept what we send: the official Standard Webhooks packages for Python and Node.js verify
//! requests that were captured byte for byte.

use std::{path::Path, process::Stdio};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Gate, Receiver, Request},
};
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::server::Server;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");

#[tokio::test]
async fn the_official_libraries_accept_our_deliveries() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    let mut cases = Vec::new();

    let first = publisher.deliver_to(&receiver.url("/hook")).await;
    publisher.publish("{\"order\": 42,\n \"note\":\"größer € 1e2\", \"order\":42.0}").await;
    let request = receiver.wait_for(1).await.remove(0);
    cases.push(case("signed under the first secret", &first, &request, true));
    cases.push(case("checked under a foreign secret", &foreign_secret(), &request, false));

    // While a rotation overlaps, receivers may hold either secret.
    let rotation = json!({ "overlapSeconds": 3600 });
    let second = publisher
        .manage("POST", "/endpoints/warehouse/rotate-secret", rotation, 200)
        .await
        .text("signingSecret");
    publisher.publish("[]").await;
    let request = receiver.wait_for(2).await.remove(1);
    cases.push(case("rotated, checked under the new secret", &second, &request, true));
    cases.push(case("rotated, checked under the old secret", &first, &request, true));

    // What was accepted before a rotation without overlap stays signed under its own secret, retries included.
    let gate = Gate::default();
    receiver.queue([Answer::status(503).after(&gate)]);
    publisher.publish("\"accepted before the rotation\"").await;
    receiver.wait_for(3).await;
    let rotation = json!({ "overlapSeconds": 0, "force": true });
    let third = publisher
        .manage("POST", "/endpoints/warehouse/rotate-secret", rotation, 200)
        .await
        .text("signingSecret");
    gate.open();
    let retried = receiver.wait_for(4).await.remove(3);
    cases.push(case("queued before the rotation", &second, &retried, true));
    cases.push(case("queued before, checked under the new secret", &third, &retried, false));
    publisher.publish("null").await;
    let request = receiver.wait_for(5).await.remove(4);
    cases.push(case("accepted after the rotation", &third, &request, true));
    cases.push(case("accepted after, checked under the old secret", &second, &request, false));

    let cases = Value::Array(cases).to_string();
    verify(&format!("{TOOLS}/venv/bin/python"), "verify.py", &cases).await;
    verify("node", "verify.cjs", &cases).await;
}

fn case(name: &str, secret: &str, request: &Request, accepted: bool) -> Value {
    let headers: Map<String, Value> =
        request.headers().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    json!({
        "name": name, "secret": secret, "headers": headers, "body": BASE64.encode(&request.body), "accepted": accepted,
    })
}

fn foreign_secret() -> String {
    format!("whsec_{}", BASE64.encode([7; 32]))
}

/// Lets a library judge the cases; it exits with 0 if it judges each as expected.
async fn verify(program: &str, script: &str, cases: &str) {
    assert!(Path::new(TOOLS).is_dir(), "the libraries are missing: run `scripts/setup test`");
    let mut child = Command::new(program)
        .arg(format!("{SCRIPTS}/{script}"))
        .env("NODE_PATH", format!("{TOOLS}/npm/node_modules"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be run ({error}): run `scripts/setup test`"));
    let mut input = child.stdin.take().unwrap();
    input.write_all(cases.as_bytes()).await.unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("8 cases"), "{script}: {said}");
}
