//! `postrider dev`: the whole way on the first start, on the second, and after a kill.

use std::path::Path;

use tokio::process::Command;

use crate::program::{Ended, Program, run};

const ON_FREE_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--simulator-listen", "127.0.0.1:0"];

fn arguments<'a>(data: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    ["dev", "--data-dir", data.to_str().unwrap()]
        .into_iter()
        .chain(ON_FREE_PORTS)
        .chain(more.iter().copied())
        .collect()
}

#[track_caller]
fn check_delivered(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("A first event went the whole way: evt_"), "{ended:?}");
    assert!(ended.stdout.contains("its signature held"), "{ended:?}");
}

#[tokio::test]
async fn an_event_goes_the_whole_way_at_every_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("a place with spaces");
    for _ in 0..2 {
        check_delivered(&run(&arguments(&data, &["--once"]), &[]).await);
    }
    let secrets = std::fs::read_to_string(data.join("secrets.env")).unwrap();
    assert!(secrets.contains("\nEXAMPLE_TENANT=example\n"), "the second start used the first one's example");
}

#[tokio::test]
async fn lost_secrets_are_named_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    check_delivered(&run(&arguments(directory.path(), &["--once"]), &[]).await);
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
    while lines.len() < 5 {
        let is_pasteable = |line: &str| line.starts_with("  curl ") || line.starts_with("  . ");
        lines.push(program.line(is_pasteable).await.trim().to_owned());
    }
    let [source, publish, look, patch, list] = lines.as_slice() else { unreachable!("five lines were read") };

    assert_eq!(paste(source, publish).await["deliveries"], 1);
    assert!(paste(source, look).await["total"].as_u64() >= Some(1));
    assert!(paste(source, patch).await["url"].as_str().unwrap().ends_with("/flap/2/1"));
    let data_of_list = &paste(source, list).await["data"];
    assert!(data_of_list.as_array().is_some_and(|deliveries| !deliveries.is_empty()), "{data_of_list}");

    program.kill();
    assert_eq!(program.ended().await.code, None);
    check_delivered(&run(&arguments(&data, &["--once"]), &[]).await);
}

/// Runs two printed lines in a shell; the second one's output is JSON.
async fn paste(source: &str, line: &str) -> serde_json::Value {
    let output = Command::new("sh").args(["-c", &format!("{source}\n{line}")]).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "is curl installed? {line}: {errors}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
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
}
