//! Help, and how mistakes are answered.

use crate::program::run;

#[tokio::test]
async fn every_command_has_help_with_examples() {
    for command in [
        &["--help"][..],
        &["dev", "--help"],
        &["serve", "--help"],
        &["migrate", "--help"],
        &["apply", "--help"],
        &["schema", "--help"],
        &["schema", "inspect", "--help"],
        &["simulate", "--help"],
        &["healthcheck", "--help"],
        &["keys", "--help"],
        &["keys", "rotate-encryption", "--help"],
        &["keys", "rotate-pepper", "--help"],
        &["openapi", "--help"],
    ] {
        let ended = run(command, &[]).await;
        assert!(ended.code == Some(0) && ended.stdout.contains("Examples:"), "{command:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_bad_configuration_is_refused_with_every_setting_named() {
    let variables = [
        ("POSTRIDER_LISTEN", "everywhere"),
        ("POSTRIDER_ENCRYPTION_KEY", "canary"),
        ("POSTRIDER_LISTN", "x"),
    ];
    let ended = run(&["serve"], &variables).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for setting in [
        "DATABASE_URL is not set",
        "POSTRIDER_LISTEN takes",
        "POSTRIDER_ENCRYPTION_KEY is not a key",
        "POSTRIDER_LISTN is set but is no setting: did you mean POSTRIDER_LISTEN?",
    ] {
        assert!(ended.stderr.contains(setting), "{setting}: {ended:?}");
    }
    assert!(!ended.stderr.contains("canary") && !ended.stdout.contains("canary"), "{ended:?}");
}

#[tokio::test]
async fn a_misspelt_variable_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let key = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let variables = [
        // Nothing listens there: the program ends after it has warned.
        ("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing"),
        ("POSTRIDER_ENCRYPTION_KEY", key),
        ("POSTRIDER_TOKEN_PEPPER", key),
        ("POSTRIDER_WORKERS_CONCURRENCY", "7"),
        ("TMPDIR", directory.path().to_str().unwrap()),
    ];
    let ended = run(&["serve", "--listen", "127.0.0.1:0"], &variables).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("POSTRIDER_WORKERS_CONCURRENCY is set but is no setting"), "{ended:?}");
    assert!(ended.stderr.contains("cannot be reached at 127.0.0.1:1: Connection refused"), "{ended:?}");
}

#[tokio::test]
async fn an_unreachable_database_is_named_with_its_own_error() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("postgres://nobody:canary@{closed}/nothing");
    let key = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let variables =
        [("DATABASE_URL", url.as_str()), ("POSTRIDER_ENCRYPTION_KEY", key), ("POSTRIDER_TOKEN_PEPPER", key)];
    for command in [
        &["migrate"][..],
        &["schema", "inspect"],
        &["serve", "--listen", "127.0.0.1:0", "--log-format", "text"],
    ] {
        let ended = run(command, &variables).await;
        assert_eq!(ended.code, Some(1), "{command:?}: {ended:?}");
        let expected = format!("DATABASE_URL cannot be reached at {closed}: Connection refused");
        assert!(ended.stderr.contains(&expected), "{command:?}: {ended:?}");
        assert_eq!(ended.stderr.matches("refused").count(), 1, "said once: {ended:?}");
        assert!(!ended.stderr.contains("canary"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_taken_port_is_named_with_the_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let ended = run(&["dev", "--listen", &address, "--data-dir", data.to_str().unwrap()], &[]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&address) && ended.stderr.contains("--listen"), "{ended:?}");
    assert!(!data.exists(), "nothing was made before the mistake was said");
}

#[tokio::test]
async fn the_document_is_printed_as_it_is_served() {
    let ended = run(&["openapi"], &[]).await;
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")), "{ended:?}");
}

#[tokio::test]
async fn an_absent_server_is_not_healthy() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = run(&["healthcheck", "--url", &format!("http://{closed}")], &[]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot connect"), "{ended:?}");
}
