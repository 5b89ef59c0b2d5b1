//! The control routes: what arrived is shown, and secrets are taken and never shown.

use postrider_core::signature::{SigningSecret, signature_header};

use crate::exchange::{NOW_S, send, send_with, start};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn what_arrived_is_shown_with_its_verdict() {
    let simulator = start().await;
    let body = r#"{"order":42}"#;
    let secret: SigningSecret = SECRET.parse().unwrap();
    let signature = signature_header(&[&secret], "dlv_1", NOW_S, body.as_bytes());
    let headers =
        format!("webhook-id: dlv_1\r\nwebhook-timestamp: {NOW_S}\r\nwebhook-signature: {signature}\r\n");

    send_with(&simulator, "POST", "/ok?x=1", &headers, body).await.unwrap();
    let (head, _) =
        send(&simulator, "POST", "/_/secrets", &format!(r#"{{"secret":"{SECRET}"}}"#)).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 204"), "{head}");
    send_with(&simulator, "POST", "/ok", &headers, body).await.unwrap();
    send(&simulator, "POST", "/ok", body).await.unwrap();

    let (_, shown) = send(&simulator, "GET", "/_/requests?limit=3", "").await.unwrap();
    assert!(!shown.contains("whsec_"), "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["total"], 3);
    let verdicts: Vec<_> = (0..3).map(|at| shown["requests"][at]["signature"]["verdict"].clone()).collect();
    assert_eq!(verdicts, ["unsigned", "held", "unchecked"]);
    let oldest = &shown["requests"][2];
    assert_eq!(oldest["target"], "/ok?x=1");
    assert_eq!(oldest["webhookId"], "dlv_1");
    assert_eq!(oldest["body"], body);
    assert_eq!(oldest["receivedAt"], "2021-02-25T15:02:10Z");
    assert_eq!(oldest["bodySha256"], "54985dc3c12fada7a1b1db53cf23d3cbd4bcbe64e1cef95071e2073e2ceff4ed");
    assert_eq!(oldest["headers"][0], serde_json::json!(["host", "simulator"]));
}

#[tokio::test]
async fn requests_can_be_forgotten_and_mistakes_are_named() {
    let simulator = start().await;
    send(&simulator, "POST", "/ok", "{}").await.unwrap();
    send(&simulator, "DELETE", "/_/requests", "").await.unwrap();
    assert!(simulator.requests().is_empty());

    for (method, target, body, status, says) in [
        ("GET", "/_/requests?limit=0", "", "400", "limit"),
        ("POST", "/_/secrets", "{}", "422", "secret"),
        ("POST", "/_/secrets", r#"{"secret":"nonsense"}"#, "422", "whsec_"),
        ("GET", "/_/other", "", "404", "/_/requests"),
        ("GET", "/", "", "200", "/flap/"),
    ] {
        let (head, text) = send(&simulator, method, target, body).await.unwrap();
        assert!(head.contains(status) && text.contains(says), "{method} {target}: {head} {text}");
    }
}
