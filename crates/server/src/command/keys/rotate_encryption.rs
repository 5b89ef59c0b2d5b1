//! `postrider keys rotate-encryption`: seals everything that is stored under `POSTRIDER_ENCRYPTION_KEY`.

use std::io::{IsTerminal, Write};

use clap::Args;
use postrider_core::seal::{KeyId, Keyring};
use postrider_store::rotation::{
    encryption::{Progress, Rotation, under_others},
    sealed::{self, Count},
};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::Shared;
use crate::{
    configuration::{secrets::keyring, setting},
    database::open_for_command,
    environment::Environment,
    random,
};

const EXAMPLES: &str = "\
Examples:
  postrider keys rotate-encryption --dry-run
  postrider keys rotate-encryption
  postrider keys rotate-encryption --json | jq .resealed

Needed: DATABASE_URL, POSTRIDER_ENCRYPTION_KEY (the new key), POSTRIDER_ENCRYPTION_KEY_PREVIOUS (the old one).
Every server must hold both keys. It can be killed at any time; run it again to go on.";

/// Seal every stored secret anew, under `POSTRIDER_ENCRYPTION_KEY`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Count what is sealed under which key, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    shared: Shared,
}

pub(super) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let (database, keyring) = arguments.shared.read(environment, keyring)?;
    let pool = open_for_command(&database).await?;
    let is_json = arguments.shared.json;
    let said = if arguments.dry_run {
        let counts = sealed::count(&pool).await?;
        if is_json { dry_run_json(&counts, &keyring).to_string() } else { dry_run_text(&counts, &keyring) }
    } else {
        let resealed = rotate(&pool, &keyring, is_json).await?.resealed;
        let current = keyring.current_id();
        if is_json {
            json!({ "resealed": resealed, "left": 0, "key": current.to_string() }).to_string()
        } else {
            let previous = setting::ENCRYPTION_KEY_PREVIOUS.variable;
            format!(
                "Sealed anew: {resealed}. Everything is under encryption key {current} now, and nothing under another.\n\
                 {previous} may go: start every process without it, then destroy the old key."
            )
        }
    };
    pool.close().await;
    println!("{said}");
    Ok(())
}

async fn rotate(pool: &PgPool, keyring: &Keyring, is_json: bool) -> anyhow::Result<Progress> {
    let shows_progress = !is_json && std::io::stderr().is_terminal();
    let rotation = Rotation { pool, keyring, nonce: || random::bytes().map_err(|error| error.to_string()) };
    let done = rotation
        .run(super::by(), |progress| {
            if shows_progress {
                show(progress);
            }
        })
        .await;
    if shows_progress {
        eprintln!();
    }
    Ok(done?)
}

/// One line that is written over.
fn show(Progress { resealed, to_do }: Progress) {
    eprint!("\rsealed anew: {resealed} of {to_do}");
    // A terminal that is gone hides nothing but this.
    let _ = std::io::stderr().flush();
}

fn dry_run_text(counts: &[Count], keyring: &Keyring) -> String {
    let current = keyring.current_id();
    let lines = counts.iter().map(|Count { column, key, values }| {
        let standing = match key {
            None => "no envelope at all: damaged",
            Some(key) if *key == current => "the current key",
            Some(key) if keyring.holds(*key) => "to be sealed anew",
            Some(_) => "this key was not given",
        };
        format!("{:27} {:8} {values:>9}  {standing}", column.as_str(), named(*key))
    });
    let to_do: u64 = under_others(counts, current).map(|count| count.values).sum();
    let total = format!("To be sealed anew under {current}: {to_do}. Nothing was changed.");
    lines.chain([total]).collect::<Vec<_>>().join("\n")
}

fn dry_run_json(counts: &[Count], keyring: &Keyring) -> Value {
    let current = keyring.current_id();
    let found = counts.iter().map(|Count { column, key, values }| {
        let is_held = key.is_some_and(|key| keyring.holds(key));
        json!({ "column": column.as_str(), "key": key.map(|key| key.to_string()), "held": is_held, "values": values })
    });
    let left: u64 = under_others(counts, current).map(|count| count.values).sum();
    json!({ "resealed": 0, "left": left, "key": current.to_string(), "found": found.collect::<Vec<_>>() })
}

fn named(key: Option<KeyId>) -> String {
    key.map_or_else(|| "-".to_owned(), |key| key.to_string())
}
