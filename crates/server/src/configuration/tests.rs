//! What each setting accepts, and that what is refused is named with its mend.

use std::fs;

use postrider_testkit::authority::Authority;

use super::*;

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER_KEY: &str = "ff23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const TOKEN: &str = "canary-0123456789abcdef0123456789abcdef";

/// A complete environment, with some variables set differently; an empty value leaves one out.
fn environment(changes: &[(&str, &str)]) -> Environment {
    let complete = [
        ("DATABASE_URL", "postgresql://postrider@127.0.0.1:5432/postrider"),
        ("POSTRIDER_ENCRYPTION_KEY", KEY),
        ("POSTRIDER_TOKEN_PEPPER", KEY),
        ("PATH", "/usr/bin"),
    ];
    complete.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read_all(environment: &Environment, file: Option<&Path>) -> Result<Read<Configuration>, Problems> {
    read(environment, file, Configuration::section)
}

/// Changes that are refused, and what the refusal names.
#[track_caller]
fn check_refused(changes: &[(&str, &str)], expected: &[(&str, &str)]) {
    let problems = read_all(&environment(changes), None).expect_err("these changes are refused").0;
    let shown = format!("{changes:?}: {problems:?}");
    assert_eq!(problems.len(), expected.len(), "{shown}");
    for (problem, (setting, mend)) in problems.iter().zip(expected) {
        assert!(problem.setting == *setting && problem.mend.contains(mend), "{shown}");
    }
    assert!(!shown.split_once("Problem").is_some_and(|(_, said)| said.contains("canary")), "{shown}");
}

#[test]
fn the_least_configuration_takes_the_stated_defaults() {
    let read = read_all(&environment(&[]), None).unwrap();
    let configuration = read.configuration;
    assert_eq!(configuration.http.listen.to_string(), "127.0.0.1:8787");
    assert_eq!((configuration.database.pool, configuration.worker.concurrency), (16, 256));
    assert!(!configuration.deliveries.allow_loopback && !configuration.database.allow_schema_upgrade);
    assert!(configuration.secrets.bootstrap_token.is_none() && configuration.secrets.metrics_token.is_none());
    assert!(configuration.database.migration_url.is_none() && configuration.sessions.keys.is_none());
    assert_eq!(read.warnings, Vec::<String>::new());
}

#[test]
fn each_refusal_names_the_setting_and_the_mend() {
    for (variable, value, mend) in [
        ("DATABASE_URL", "", "postgresql://USER:PASSWORD@HOST"),
        ("DATABASE_URL", "mysql://canary", "postgresql://USER:PASSWORD@HOST"),
        ("POSTRIDER_MIGRATION_DATABASE_URL", "canary", "is not a PostgreSQL URL"),
        ("POSTRIDER_DIRECT_DATABASE_URL", "http://canary", "is not a PostgreSQL URL"),
        ("POSTRIDER_DATABASE_POOL", "1", "from 2 to 500"),
        ("POSTRIDER_DATABASE_POOL", "many", "from 2 to 500"),
        ("POSTRIDER_ALLOW_SCHEMA_UPGRADE", "yes", "set it to 1"),
        ("POSTRIDER_LISTEN", "8787", "127.0.0.1:8787"),
        ("POSTRIDER_LISTEN", "localhost:8787", "127.0.0.1:8787"),
        ("POSTRIDER_ENCRYPTION_KEY", "", "openssl rand -hex 32"),
        ("POSTRIDER_ENCRYPTION_KEY", "canary", "64 hexadecimal"),
        ("POSTRIDER_ENCRYPTION_KEY", "0123", "64 hexadecimal"),
        ("POSTRIDER_ENCRYPTION_KEY_PREVIOUS", "canary", "64 hexadecimal"),
        ("POSTRIDER_ENCRYPTION_KEY_PREVIOUS", KEY, "cannot be used"),
        ("POSTRIDER_TOKEN_PEPPER", "", "32 bytes or more"),
        ("POSTRIDER_TOKEN_PEPPER", "canary", "32 bytes or more"),
        ("POSTRIDER_TOKEN_PEPPER_GENERATION", "0", "from 1 to"),
        ("POSTRIDER_JWT_SECRET", "canary", "32 bytes or more"),
        ("POSTRIDER_JWT_SECRET_PREVIOUS", "canary", "32 bytes or more"),
        ("POSTRIDER_JWT_SECRET_PREVIOUS", TOKEN, "POSTRIDER_JWT_SECRET is not"),
        ("POSTRIDER_BOOTSTRAP_TOKEN", "canary", "32 characters or more"),
        ("POSTRIDER_METRICS_TOKEN", "canary-with spaces-0123456789abcdef", "visible ASCII"),
        ("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "on", "set it to 1"),
        ("POSTRIDER_ALLOWED_CIDRS", "10.0.0.0/8, nonsense", "`nonsense`"),
        ("POSTRIDER_ALLOWED_CIDRS", "10.1.2.3/8", "write 10.0.0.0/8"),
        ("POSTRIDER_CA_FILE", "/nowhere/ca.pem", "/nowhere/ca.pem, which cannot be read"),
        ("POSTRIDER_CA_FILE", "/dev/null", "no certificate in PEM"),
        ("POSTRIDER_WORKER_CONCURRENCY", "3", "from 4 to 10000"),
        ("POSTRIDER_REDIS_URL", "canary", "rediss://USER:PASSWORD@HOST"),
        ("POSTRIDER_REDIS_URL", "redis://:canary@host:canary", "rediss://USER:PASSWORD@HOST"),
        ("POSTRIDER_REDIS_URL", "rediss://:canary@host/#insecure", "what follows the `#`"),
    ] {
        check_refused(&[(variable, value)], &[(variable, mend)]);
    }
    check_refused(
        &[("POSTRIDER_BOOTSTRAP_TOKEN", TOKEN), ("POSTRIDER_METRICS_TOKEN", TOKEN)],
        &[("POSTRIDER_METRICS_TOKEN", "same as POSTRIDER_BOOTSTRAP_TOKEN")],
    );
    check_refused(
        &[("POSTRIDER_JWT_SECRET", TOKEN), ("POSTRIDER_JWT_SECRET_PREVIOUS", TOKEN)],
        &[("POSTRIDER_JWT_SECRET_PREVIOUS", "the same as the current one")],
    );
    check_refused(
        &[("POSTRIDER_TOKEN_PEPPER_FILE", "/nowhere")],
        &[("POSTRIDER_TOKEN_PEPPER", "POSTRIDER_TOKEN_PEPPER_FILE are both set")],
    );
    check_refused(
        &[("POSTRIDER_METRICS_TOKEN_FILE", "/nowhere/token")],
        &[("POSTRIDER_METRICS_TOKEN_FILE", "/nowhere/token, which cannot be read")],
    );
}

#[test]
fn authorities_that_nobody_could_ask_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("authority.pem");
    let path = file.to_str().unwrap();
    for variable in ["POSTRIDER_CA_FILE", "POSTRIDER_REDIS_CA_FILE", "POSTRIDER_RABBITMQ_CA_FILE"] {
        for (text, mend) in [
            ("", "no certificate in PEM"),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "the PEM is broken"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "cannot be used as an authority",
            ),
        ] {
            fs::write(&file, text).unwrap();
            check_refused(&[(variable, path)], &[(variable, mend)]);
        }
    }
}

#[test]
fn authorities_are_refused_where_nobody_would_ask_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("authority.pem");
    fs::write(&file, Authority::default().certificate_pem()).unwrap();
    for (authorities, url, plain, encrypted) in [
        ("POSTRIDER_REDIS_CA_FILE", "POSTRIDER_REDIS_URL", "redis", "rediss"),
        ("POSTRIDER_RABBITMQ_CA_FILE", "POSTRIDER_RABBITMQ_URL", "amqp", "amqps"),
    ] {
        let authority = (authorities, file.to_str().unwrap());
        let mend = format!("no {encrypted}:// URL");
        let of_no_use = [(authorities, mend.as_str())];
        let at = |scheme| format!("{scheme}://me:canary@inside.example");
        check_refused(&[authority], &of_no_use);
        check_refused(&[authority, (url, at(plain).as_str())], &of_no_use);
        let read = read_all(&environment(&[authority, (url, at(encrypted).as_str())]), None);
        let read = format!("{:?}", read.unwrap().configuration);
        assert!(read.contains("inside.example") && !read.contains("canary"), "{read}");
        // One mistake hides no other.
        check_refused(
            &[(authorities, "/dev/null"), (url, "canary")],
            &[(authorities, "no certificate in PEM"), (url, encrypted)],
        );
    }
}

#[test]
fn everything_wrong_is_said_at_once() {
    let problems = read_all(&Environment::default(), None).unwrap_err();
    let said = problems.to_string();
    for setting in ["DATABASE_URL", "POSTRIDER_ENCRYPTION_KEY", "POSTRIDER_TOKEN_PEPPER"] {
        assert!(said.contains(&format!("\n  {setting} is not set: ")), "{said}");
    }
    check_refused(
        &[
            ("POSTRIDER_DATABASE_POOL", "0"),
            ("POSTRIDER_LISTEN", "x"),
            ("POSTRIDER_WORKER_CONCURRENCY", "-1"),
        ],
        &[
            ("POSTRIDER_DATABASE_POOL", "from 2"),
            ("POSTRIDER_LISTEN", "takes an IP address"),
            ("POSTRIDER_WORKER_CONCURRENCY", "from 4"),
        ],
    );
}

#[test]
fn secrets_may_lie_in_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    fs::write(&path, format!("{OTHER_KEY}\n")).unwrap();
    let path = path.to_str().unwrap();
    let from_file = environment(&[("POSTRIDER_ENCRYPTION_KEY", ""), ("POSTRIDER_ENCRYPTION_KEY_FILE", path)]);
    let direct = environment(&[("POSTRIDER_ENCRYPTION_KEY", OTHER_KEY)]);
    // Debug output shows the key's id.
    let key_id = |environment: &Environment| {
        format!("{:?}", read_all(environment, None).unwrap().configuration.secrets.keyring)
    };
    assert_eq!(key_id(&from_file), key_id(&direct));
    assert_ne!(key_id(&from_file), key_id(&environment(&[])));
}

#[test]
fn unknown_variables_are_warned_of_with_what_may_be_meant() {
    for (variable, said) in [
        ("POSTRIDER_LISTN", ": did you mean POSTRIDER_LISTEN?"),
        ("POSTRIDER_LISTEN_FILE", "; is it misspelt?"),
        ("POSTRIDER_TOKEN_PEPPERS", ": did you mean POSTRIDER_TOKEN_PEPPER?"),
        ("POSTRIDER_TOKEN_PEPER_FILE", ": did you mean POSTRIDER_TOKEN_PEPPER_FILE?"),
        ("POSTRIDER_DATABASE_URL", ": did you mean DATABASE_URL?"),
        ("POSTRIDER_CONCURRENCY", ": did you mean POSTRIDER_WORKER_CONCURRENCY?"),
        ("POSTRIDER_ALLOW_CIDRS", ": did you mean POSTRIDER_ALLOWED_CIDRS?"),
        ("POSTRIDER_X", "; is it misspelt?"),
    ] {
        let read = read_all(&environment(&[(variable, "canary")]), None).unwrap();
        assert_eq!(read.warnings, [format!("{variable} is set but is no setting{said}")]);
    }
}

#[test]
fn a_refusal_names_unknown_variables_after_what_is_wrong() {
    check_refused(
        &[("POSTRIDER_TOKEN_PEPPER", ""), ("POSTRIDER_TOKEN_PEPPERS", "canary")],
        &[
            ("POSTRIDER_TOKEN_PEPPER", "is not set: "),
            ("POSTRIDER_TOKEN_PEPPERS", "did you mean POSTRIDER_TOKEN_PEPPER?"),
        ],
    );
}

fn with_file(text: &str, changes: &[(&str, &str)]) -> Result<Configuration, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("postrider.toml");
    fs::write(&path, text).unwrap();
    let read = read_all(&environment(changes), Some(&path));
    read.map(|read| read.configuration).map_err(|problems| problems.to_string())
}

#[test]
fn the_file_holds_settings_and_the_environment_wins() {
    let text = r#"
        listen = "127.0.0.1:1"
        worker_concurrency = 7
        allow_loopback_endpoints = true
        allowed_cidrs = ["10.0.0.0/8", "fd00::/8"]
    "#;
    let configuration = with_file(text, &[("POSTRIDER_WORKER_CONCURRENCY", "9")]).unwrap();
    assert_eq!(configuration.http.listen.port(), 1);
    assert_eq!(configuration.worker.concurrency, 9);
    assert!(configuration.deliveries.allow_loopback);
    assert_eq!(configuration.deliveries.allowed_cidrs.len(), 2);
}

#[test]
fn the_file_is_refused_with_secrets_and_unknown_keys() {
    for (text, said) in [
        ("encryption_key = 'canary'", "`encryption_key`, a secret"),
        ("database_url = 'canary'", "set DATABASE_URL, or DATABASE_URL_FILE"),
        ("listn = 'canary'", "`listn`, which is no setting: there are database_pool"),
        ("log = 1.5", "`log`, which takes a text"),
        ("\nlisten = canary", "is not TOML: line 2"),
        ("worker_concurrency = 0", "POSTRIDER_WORKER_CONCURRENCY takes"),
    ] {
        let problems = with_file(text, &[]).unwrap_err();
        assert!(problems.contains(said) && !problems.contains("canary"), "{text}: {problems}");
    }
    let missing = read_all(&environment(&[]), Some(Path::new("/nowhere.toml"))).unwrap_err().to_string();
    assert!(missing.contains("/nowhere.toml cannot be read"), "{missing}");
}
