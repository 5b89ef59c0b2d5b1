//! `postrider keys`: the encryption key and the pepper are replaced while servers run, and whoever is killed goes on.

mod encryption;
mod pepper;
mod refused;

use postrider_testkit::postgres::Database;
use serde_json::Value;

use crate::program::{Ended, run};

/// The keys and peppers of these tests, beside the one that servers have by default.
const NEW: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
const WRONG: &str = "00000000000000000000000000000000000000000000000000000000000000ff";

/// Runs `postrider keys`; later variables win.
async fn keys(database: &Database, arguments: &[&str], more: &[(&str, &str)]) -> Ended {
    let arguments = [&["keys"], arguments].concat();
    run(&arguments, &[&[("DATABASE_URL", database.url())], more].concat()).await
}

/// The same with `--json`, which must end well.
async fn keys_json(database: &Database, arguments: &[&str], more: &[(&str, &str)]) -> Value {
    let ended = keys(database, &[arguments, &["--json"]].concat(), more).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}
