//! A process with a key or a pepper that is wrong or missing does not start, and is told which setting to mend.

use postrider_testkit::postgres::Database;

use super::{NEW, WRONG, keys, keys_json};
use crate::server::{KEY, Server, launch};

const KEY_: &str = "POSTRIDER_ENCRYPTION_KEY";
const KEY_BEFORE: &str = "POSTRIDER_ENCRYPTION_KEY_PREVIOUS";
const KEY_NEXT: &str = "POSTRIDER_ENCRYPTION_KEY_NEXT";
const PEPPER: &str = "POSTRIDER_TOKEN_PEPPER";
const GENERATION: &str = "POSTRIDER_TOKEN_PEPPER_GENERATION";
const PEPPER_BEFORE: &str = "POSTRIDER_TOKEN_PEPPER_PREVIOUS";

/// An installation with one tenant, one endpoint and the usual key and pepper, and no process.
async fn installation() -> Database {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    server.publisher().await.deliver_to("http://127.0.0.1:9/").await;
    server.program.terminate();
    server.program.ended().await;
    database
}

/// Each of these starts ends with status 1 and these words; nobody listened, and no secret was repeated.
async fn refused(database: &Database, cases: &[(&[(&str, &str)], &str)]) {
    for (variables, said) in cases {
        let ended = launch(database, "all", variables).ended().await;
        assert!(ended.code == Some(1) && ended.stderr.contains(said), "{variables:?} {said}: {ended:?}");
        assert!(!ended.stdout.contains("\"listening\""), "{ended:?}");
        let shown = format!("{}{}", ended.stdout, ended.stderr);
        for secret in [KEY, NEW, WRONG] {
            assert!(!shown.contains(secret), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn each_wrong_or_missing_secret_is_named_at_the_start() {
    let database = installation().await;
    refused(
        &database,
        &[
            (&[(KEY_, WRONG)], "set POSTRIDER_ENCRYPTION_KEY to"),
            (&[(KEY_, NEW), (KEY_BEFORE, WRONG)], "set POSTRIDER_ENCRYPTION_KEY to"),
            (&[(KEY_, NEW), (KEY_NEXT, WRONG)], "set POSTRIDER_ENCRYPTION_KEY_PREVIOUS to it"),
            (&[(PEPPER, WRONG)], "set POSTRIDER_TOKEN_PEPPER to the one"),
            (&[(GENERATION, "2")], "set POSTRIDER_TOKEN_PEPPER_PREVIOUS to the pepper of generation 1"),
            (&[(GENERATION, "3")], "set POSTRIDER_TOKEN_PEPPER_GENERATION to 1"),
            (&[(PEPPER, NEW), (GENERATION, "2")], "set POSTRIDER_TOKEN_PEPPER_PREVIOUS to"),
            (
                &[(PEPPER, NEW), (GENERATION, "2"), (PEPPER_BEFORE, WRONG)],
                "POSTRIDER_TOKEN_PEPPER_PREVIOUS is not the pepper of generation 1",
            ),
        ],
    )
    .await;
    for right in [
        [(KEY_, NEW), (KEY_BEFORE, KEY)].as_slice(),
        &[(KEY_NEXT, NEW)],
        &[(PEPPER, NEW), (GENERATION, "2"), (PEPPER_BEFORE, KEY)],
    ] {
        Server::start_with(&database, "api", right).await;
    }
    let other_next = [(PEPPER, WRONG), (GENERATION, "2"), (PEPPER_BEFORE, KEY)];
    refused(&database, &[(&other_next, "another process was started with another pepper of generation 2")])
        .await;
}

#[tokio::test]
async fn a_configuration_whose_secrets_cannot_go_together_is_refused_by_name() {
    let database = Database::fresh().await;
    for (variables, said) in [
        ([(KEY_BEFORE, KEY)].as_slice(), "POSTRIDER_ENCRYPTION_KEY_PREVIOUS cannot be used"),
        (&[(KEY_NEXT, KEY)], "POSTRIDER_ENCRYPTION_KEY_NEXT cannot be used"),
        (&[(PEPPER_BEFORE, NEW)], "POSTRIDER_TOKEN_PEPPER_PREVIOUS cannot be used"),
        (&[(PEPPER_BEFORE, KEY), (GENERATION, "2")], "POSTRIDER_TOKEN_PEPPER_PREVIOUS cannot be used"),
    ] {
        let ended = launch(&database, "api", variables).ended().await;
        assert!(ended.code == Some(2) && ended.stderr.contains(said), "{variables:?}: {ended:?}");
    }
}

#[tokio::test]
async fn commands_with_a_wrong_secret_change_nothing() {
    let database = installation().await;
    let look = "SELECT md5(string_agg(row::text, '' ORDER BY row::text)) FROM (
                    SELECT to_jsonb(i) AS row FROM postrider.installation AS i
                    UNION ALL SELECT to_jsonb(k) FROM postrider.signing_keys AS k
                    UNION ALL SELECT to_jsonb(a) FROM postrider.applications AS a) AS rows";
    let state = async || sqlx::query_scalar::<_, String>(look).fetch_one(database.pool()).await.unwrap();
    let before = state().await;
    for (command, variables, said) in [
        (["rotate-encryption"].as_slice(), [(KEY_, NEW)].as_slice(), "set POSTRIDER_ENCRYPTION_KEY_PREVIOUS"),
        (&["rotate-pepper"], &[(PEPPER, KEY)], "set POSTRIDER_TOKEN_PEPPER to a new one"),
        (&["rotate-pepper"], &[(PEPPER, WRONG)], "set POSTRIDER_TOKEN_PEPPER to the one"),
        (&["rotate-pepper"], &[(PEPPER, NEW), (GENERATION, "2")], "set POSTRIDER_TOKEN_PEPPER_PREVIOUS"),
        (
            &["rotate-pepper", "--finish", "--revoke-remaining"],
            &[(PEPPER, NEW), (GENERATION, "2"), (PEPPER_BEFORE, KEY)],
            "run `postrider keys rotate-pepper` first",
        ),
    ] {
        let ended = keys(&database, command, variables).await;
        assert!(ended.code == Some(1) && ended.stderr.contains(said), "{command:?} {variables:?}: {ended:?}");
        assert_eq!(state().await, before, "{command:?} {variables:?}");
    }
    let dry = keys_json(&database, &["rotate-encryption", "--dry-run"], &[(KEY_, NEW)]).await;
    assert_eq!((&dry["left"], &dry["found"][0]["held"]), (&1.into(), &false.into()), "{dry}");
    assert_eq!(state().await, before);
}
