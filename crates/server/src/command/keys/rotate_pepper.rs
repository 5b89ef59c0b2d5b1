//! `postrider keys rotate-pepper`: moves the installation to `POSTRIDER_TOKEN_PEPPER`, and later lets go of the pepper
//! before.

use clap::Args;
use postrider_core::pepper::{Peppers, Step};
use postrider_store::rotation::{
    pepper::{self, Finish, Unused},
    tokens::{self, Remaining},
};
use serde_json::json;
use sqlx::PgPool;

use super::Shared;
use crate::{configuration::secrets::peppers, database::open_for_command, environment::Environment};

const EXAMPLES: &str = "\
Examples:
  postrider keys rotate-pepper                               move to the new pepper
  postrider keys rotate-pepper --finish                      end it once every token was used
  postrider keys rotate-pepper --finish --revoke-remaining   end it, whatever is left
  postrider keys rotate-pepper --cancel                      choose another new pepper, before the move

Needed: DATABASE_URL, POSTRIDER_TOKEN_PEPPER (the new pepper), POSTRIDER_TOKEN_PEPPER_GENERATION (one more than
before), POSTRIDER_TOKEN_PEPPER_PREVIOUS (the old pepper). Every server must hold both peppers.";

/// Store tokens under `POSTRIDER_TOKEN_PEPPER`; run again to see which tokens have not come over yet.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// End the rotation: the pepper before is needed no longer
    #[arg(long, conflicts_with = "cancel")]
    finish: bool,
    /// Revoke the tokens that are still stored under the pepper before
    #[arg(long, requires = "finish")]
    revoke_remaining: bool,
    /// Forget the new pepper, before the move to it
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    shared: Shared,
}

/// What is told at the end.
struct Report {
    state: &'static str,
    text: String,
    left: Remaining,
    revoked: u64,
}

pub(super) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let (database, peppers) = arguments.shared.read(environment, peppers)?;
    let pool = open_for_command(&database).await?;
    let report = if arguments.cancel {
        cancel(&pool).await?
    } else if arguments.finish {
        let unused = if arguments.revoke_remaining { Unused::Revoke } else { Unused::Keep };
        finish(&pool, &peppers, unused).await?
    } else {
        advance(&pool, &peppers).await?
    };
    pool.close().await;
    if arguments.shared.json {
        let Report { state, left, revoked, text: _ } = report;
        let shown =
            json!({ "state": state, "left": left.tokens, "leftNames": left.names, "revoked": revoked });
        println!("{shown}");
    } else {
        println!("{}", report.text);
    }
    Ok(())
}

async fn advance(pool: &PgPool, peppers: &Peppers) -> anyhow::Result<Report> {
    let step = pepper::advance(pool, peppers, super::by()).await?;
    let generation = peppers.current().number;
    let (state, said) = match step {
        Step::Move => {
            ("moved", format!("Tokens are stored under pepper generation {generation} from now on."))
        }
        Step::Moved => ("moved", format!("Tokens are stored under pepper generation {generation} already.")),
        Step::Over => {
            let text = format!(
                "Tokens are stored under pepper generation {generation}, and no rotation is under way: the pepper before may \
                 go."
            );
            return Ok(Report { state: "finished", text, left: Remaining::default(), revoked: 0 });
        }
    };
    let left = tokens::before(pool, generation).await?;
    let next = if left.tokens == 0 {
        "No usable token is left under the pepper before: run `postrider keys rotate-pepper --finish`."
            .to_owned()
    } else {
        format!(
            "{left} still stored under the pepper before. Each comes over when it is used; give those that are not used anew \
             to their owners:\n{}",
            list(&left)
        )
    };
    Ok(Report { state, text: format!("{said}\n{next}"), left, revoked: 0 })
}

async fn finish(pool: &PgPool, peppers: &Peppers, unused: Unused) -> anyhow::Result<Report> {
    let (text, revoked) = match pepper::finish(pool, peppers, unused, super::by()).await? {
        Finish::Finished { revoked } => (
            format!(
                "The rotation is over; tokens revoked: {revoked}. POSTRIDER_TOKEN_PEPPER_PREVIOUS may go: start every process \
                 without it, then destroy the old pepper."
            ),
            revoked,
        ),
        Finish::Over => {
            ("The rotation was over already: POSTRIDER_TOKEN_PEPPER_PREVIOUS may go.".to_owned(), 0)
        }
    };
    Ok(Report { state: "finished", text, left: Remaining::default(), revoked })
}

async fn cancel(pool: &PgPool) -> anyhow::Result<Report> {
    let text = if pepper::cancel(pool, super::by()).await? {
        "The new pepper is forgotten. Stop the processes that were started with it before others start with another."
    } else {
        "No new pepper was announced; nothing was changed."
    };
    Ok(Report { state: "cancelled", text: text.to_owned(), left: Remaining::default(), revoked: 0 })
}

/// The names, and how many more there are.
fn list(left: &Remaining) -> String {
    let named = left.names.iter().map(|name| format!("  {name}"));
    let unnamed = left.tokens.saturating_sub(left.names.len() as u64);
    let more = (unnamed > 0).then(|| format!("  and {unnamed} more"));
    named.chain(more).collect::<Vec<_>>().join("\n")
}
