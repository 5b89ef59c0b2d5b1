//! `postrider dev`: the whole way on the first start, on the second, and after a kill.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    api::call,
    program::{Ended, Program, run},
};

const ON_FREE_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--simulator-listen", "127.0.0.1:0"];

pub(crate) fn arguments<'a>(data: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    ["dev", "--data-dir", data.to_str().unwrap()]
        .into_iter()
        .chain(ON_FREE_PORTS)
        .chain(more.iter().copied())
        .collect()
}

#[track_caller]
fn check_delivered(ended: &Ended, how: &str) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains(&format!("{how} event went the whole way: evt_")), "{ended:?}");
    assert!(ended.stdout.contains("its signature held"), "{ended:?}");
}

#[tokio::test]
async fn an_event_goes_the_whole_way_at_every_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("a place with spaces");
    // The simulator gets another port each time: the endpoint follows it.
    for how in ["A first", "An"] {
        check_delivered(&run(&arguments(&data, &["--once"]), &[]).await, how);
    }
    let secrets = std::fs::read_to_string(data.join("secrets.env")).unwrap();
    assert!(secrets.contains("\nEXAMPLE_TENANT=example\n"), "the second start used the first one's example");
    let options = std::fs::read_to_string(data.join("postgresql/data/postmaster.opts")).unwrap();
    if let Some((name, value)) = postrider_embedded::memory::shared_buffers() {
        assert!(options.contains(&format!("{name}={value}")), "{options}");
    }
}

/// What somebody does to the example, and what the next start says of it.
#[tokio::test]
async fn a_changed_example_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let rotate_secret = json!({ "overlapSeconds": 0 });
    let elsewhere = json!({ "url": "http://127.0.0.1:9/elsewhere" });
    let on = json!({ "enabled": true });
    let off = json!({ "enabled": false });
    let nothing = Value::Null;
    let steps = [
        ("POST", "endpoints/simulator/rotate-secret", &rotate_secret, "you rotated the secret; "),
        ("PATCH", "subscriptions/orders-to-simulator", &off, "`orders-to-simulator` is disabled"),
        (
            "PATCH",
            "endpoints/simulator",
            &elsewhere,
            "leads to http://127.0.0.1:9/elsewhere, not to the simulator",
        ),
        ("PATCH", "endpoints/simulator", &off, "the endpoint `simulator` is disabled"),
        ("PATCH", "applications/orders", &off, "the endpoint `simulator` is disabled"),
    ];
    let token =
        ("POST", "applications/orders/rotate-token", &nothing, "a publish token that is no longer valid");
    for step in [token].into_iter().chain(steps) {
        let (method, path, body, expected) = step;
        let mut program = Program::start(&arguments(&data, &[]), &[]);
        let api = address_of(&program.line(|line| line.starts_with("  API ")).await);
        program.line(|line| line.contains("Publish one yourself")).await;
        let owner = secret(&data, "OWNER_TOKEN");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = call(api, method, &format!("/api/tenants/example/{path}"), &owner, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        program.terminate();
        program.ended().await;

        let publish_token = secret(&data, "PUBLISH_TOKEN");
        let ended = run(&arguments(&data, &["--once"]), &[]).await;
        assert!(ended.stdout.contains(expected), "{path}: {ended:?}");
        assert_eq!(secret(&data, "PUBLISH_TOKEN"), publish_token, "nothing was rotated");
        if path.ends_with("rotate-token") {
            assert_eq!(ended.code, Some(1), "--once fails where no event could be shown: {ended:?}");
            let text = std::fs::read_to_string(data.join("secrets.env")).unwrap();
            let new = answer.text("publishToken");
            std::fs::write(data.join("secrets.env"), text.replace(&publish_token, &new)).unwrap();
        } else if path.starts_with("subscriptions") {
            let mut program = Program::start(&arguments(&data, &[]), &[]);
            let api = address_of(&program.line(|line| line.starts_with("  API ")).await);
            program.line(|line| line.contains("Publish one yourself")).await;
            let path = format!("/api/tenants/example/{path}");
            assert_eq!(call(api, "GET", &path, &owner, "").await.body["enabled"], false, "left alone");
            assert_eq!(call(api, "PATCH", &path, &owner, &on.to_string()).await.status, 200);
        }
    }
}

/// The simulator gets another port at each start, and the endpoint may not follow it.
#[tokio::test]
async fn an_example_that_is_held_to_approved_endpoints_starts_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let admin = "/api/admin/tenants/example";
    let endpoint = "/api/tenants/example/endpoints/simulator";
    for (method, path, token, body, expected) in [
        (
            "PATCH",
            admin,
            "POSTRIDER_BOOTSTRAP_TOKEN",
            r#"{"approvedOnly":true}"#,
            "where the simulator was the last time",
        ),
        ("DELETE", endpoint, "OWNER_TOKEN", "", "is gone, and the tenant is held to approved endpoints"),
    ] {
        let mut program = Program::start(&arguments(&data, &[]), &[]);
        let api = address_of(&program.line(|line| line.starts_with("  API ")).await);
        program.line(|line| line.contains("Publish one yourself")).await;
        let answer = call(api, method, path, &secret(&data, token), body).await;
        assert!((200..300).contains(&answer.status), "{path}: {answer:?}");
        program.terminate();
        program.ended().await;
        let ended = run(&arguments(&data, &["--once"]), &[]).await;
        assert!(ended.stdout.contains(expected), "{path}: {ended:?}");
    }
    // As if a start had ended between the tenant and its endpoint.
    let file = data.join("secrets.env");
    let secrets = std::fs::read_to_string(&file).unwrap();
    let left: Vec<&str> = secrets.lines().filter(|line| !line.starts_with("SIGNING_")).collect();
    assert_eq!(secrets.lines().count() - left.len(), 2, "a secret and its id");
    std::fs::write(&file, left.join("\n") + "\n").unwrap();
    let ended = run(&arguments(&data, &["--once"]), &[]).await;
    assert!(ended.stdout.contains("the tenant is held to approved endpoints"), "{ended:?}");
}

/// The first `http://` address of a line.
pub(crate) fn address_of(line: &str) -> SocketAddr {
    let rest = line.split_once("http://").unwrap().1;
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn secret(data: &Path, name: &str) -> String {
    let text = std::fs::read_to_string(data.join("secrets.env")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

#[tokio::test]
async fn lost_secrets_are_named_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    check_delivered(&run(&arguments(directory.path(), &["--once"]), &[]).await, "A first");
    std::fs::remove_file(directory.path().join("secrets.env")).unwrap();
    let ended = run(&arguments(directory.path(), &["--once"]), &[]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("secrets.env: bring that file back"), "{ended:?}");
}

#[tokio::test]
async fn what_it_prints_can_be_pasted_and_a_kill_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut program = Program::start(&arguments(&data, &[]), &[]);
    let mut lines = Vec::new();
    while lines.len() < 6 {
        let is_pasteable = |line: &str| {
            ["  curl ", "  . ", "  EVENT=", "  sleep "].iter().any(|start| line.starts_with(start))
        };
        lines.push(program.line(is_pasteable).await.trim().to_owned());
    }
    let [source, publish, look, patch, publish_again, follow] = lines.as_slice() else {
        unreachable!("six lines were read")
    };

    assert_eq!(paste(source, publish).await["deliveries"], 1);
    assert!(paste(source, look).await["total"].as_u64() >= Some(1));
    assert!(paste(source, patch).await["url"].as_str().unwrap().ends_with("/flap/2/1"));
    let timeline = paste(&format!("{source}\n{publish_again}"), follow).await;
    assert!(timeline["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty()), "{timeline}");

    program.kill();
    assert_eq!(program.ended().await.code, None);
    let ended = run(&arguments(&data, &["--once"]), &[]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The simulator counts anew: the first try fails, as the endpoint that was changed above asks for.
    assert!(ended.stdout.contains("The answer was 503, as the path /flap/2/1"), "{ended:?}");
    assert!(ended.stdout.contains("its signature held"), "{ended:?}");
}

/// Runs two printed lines in a shell; the second one's output is JSON.
async fn paste(source: &str, line: &str) -> Value {
    let output = Command::new("sh").args(["-c", &format!("{source}\n{line}")]).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "is curl installed? {line}: {errors}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
}

#[tokio::test]
async fn a_second_start_on_the_same_directory_hears_of_the_directory_and_not_of_the_port() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut first = Program::start(&arguments(&data, &[]), &[]);
    let taken = address_of(&first.line(|line| line.starts_with("  API ")).await).to_string();
    let second = run(&["dev", "--data-dir", data.to_str().unwrap(), "--listen", &taken], &[]).await;
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("is in use by the running process"), "{second:?}");
    assert!(!second.stderr.contains(&taken), "{second:?}");
    first.terminate();
    assert_eq!(first.ended().await.code, Some(0));
}

#[tokio::test]
async fn ctrl_c_and_sigterm_end_it_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut program = Program::start(&arguments(&data, &[]), &[]);
    program.line(|line| line.contains("Publish one yourself")).await;
    program.terminate();
    let ended = program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("Stopping …"), "{ended:?}");
    assert!(!ended.stderr.contains("WARN"), "{ended:?}");
}
