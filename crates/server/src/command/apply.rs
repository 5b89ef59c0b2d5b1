//! `postrider apply`: makes the approved endpoints of tenants what the registry's file declares.
//!
//! Invariant: all of the file is applied in one transaction or none of it, and applying the same file again changes
//! nothing. Lookups of names come before the transaction; what is printed holds no secret.

mod current;
mod differences;
mod report;
mod write;

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use postrider_core::{
    address,
    destination::UrlPolicy,
    registry::{MAX_FILE_BYTES, Policies, Registry},
    seal::Keyring,
};
use postrider_engine::{
    clock::SystemClock,
    transport::{Guard, SystemResolver},
};
use postrider_store::registry;
use sqlx::PgPool;

use self::{differences::Differences, report::Report};
use crate::{
    configuration::{self, Database, Deliveries, secrets::keyring},
    database::open_for_command,
    environment::Environment,
    process::{address_policy, url_policy},
};

const EXAMPLES: &str = "\
Examples:
  postrider apply registry.yaml --dry-run          show what would change
  postrider apply registry.yaml                    change it
  postrider apply registry.yaml --dry-run --json | jq .changed

Needed: DATABASE_URL, POSTRIDER_ENCRYPTION_KEY; URLs are checked by POSTRIDER_ALLOWED_CIDRS and
POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS as the API checks them. docs/guide.md has the file's format.

Exit status: 0 applied, or nothing to change; 3 with --dry-run: something would change; 1 refused; 2 the
settings or the command line cannot be used.";

/// Exit status of a dry run that found something to change.
const WOULD_CHANGE: u8 = 3;
/// Make approved endpoints what a registry file declares.
///
/// The file says everything about the approved endpoints of the tenants that it names: those it leaves out are deleted.
/// Tenants that it does not name are left as they are.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The registry's file, in YAML; `-` reads standard input
    file: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also delete, or lead to another host, endpoints whose deliveries are still open: those of deleted ones become dead
    /// letters, the others go to the new host
    #[arg(long)]
    allow_orphans: bool,
    /// Print JSON: {"changed", "applied", "tenants": [{"tenant", "version", "changes": […]}], "untouched"}
    #[arg(long)]
    json: bool,
    /// TOML file with settings; environment variables win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What applying stands on.
struct Ground {
    pool: PgPool,
    keyring: Keyring,
    addresses: address::Policy,
    url: UrlPolicy,
}

pub(crate) async fn run(arguments: &Arguments, environment: Environment) -> anyhow::Result<ExitCode> {
    #[cfg(debug_assertions)]
    let environment = {
        let mut environment = environment;
        configuration::failpoint::arm(&mut environment)?;
        environment
    };
    let section = |source: &mut configuration::Source<'_>| {
        let (database, keyring, deliveries) =
            (Database::section(source), keyring(source), Deliveries::section(source));
        Ok((database?, keyring?, deliveries?))
    };
    let read = configuration::read(&environment, arguments.config.as_deref(), section)?;
    let (database, keyring, deliveries) = read.with_warnings_printed();
    let (addresses, url) = (address_policy(&deliveries), url_policy(&deliveries));
    let text = read_file(&arguments.file)?;
    let shown = arguments.file.display();
    let registry = Registry::parse(&text, Policies { url, addresses: &addresses })
        .with_context(|| format!("{shown} is refused and nothing was changed"))?;
    let ground = Ground { pool: open_for_command(&database).await?, keyring, addresses, url };
    let report = ground.apply(&registry, arguments).await;
    ground.pool.close().await;
    let report = report.with_context(|| format!("{shown} was not applied and nothing was changed"))?;
    println!("{}", if arguments.json { report.json() } else { report.text() });
    let is_pending = arguments.dry_run && report.is_changed();
    Ok(if is_pending { ExitCode::from(WOULD_CHANGE) } else { ExitCode::SUCCESS })
}

impl Ground {
    async fn apply(&self, declared: &Registry, arguments: &Arguments) -> anyhow::Result<Report> {
        let mut reader = registry::begin_read(&self.pool).await.context("the database cannot be reached")?;
        let seen = Differences::find(self, declared, &mut reader).await?;
        let untouched = differences::untouched(declared, &mut reader).await?;
        let orphans = if arguments.dry_run { seen.orphans(&mut reader).await? } else { Vec::new() };
        drop(reader);
        seen.check_addresses(self, self.guard()).await?;
        if arguments.dry_run {
            return Ok(Report { differences: seen, orphans, untouched, is_applied: false });
        }
        let written = write::write(self, declared, &seen, arguments.allow_orphans).await?;
        Ok(Report { differences: written.differences, orphans: written.orphans, untouched, is_applied: true })
    }

    /// The one that every request passes.
    fn guard(&self) -> Guard {
        Guard::new(self.addresses.clone(), Arc::new(SystemResolver), Arc::new(SystemClock::default()))
    }
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let cannot_read = || format!("{shown} cannot be read");
    let mut text = String::new();
    // One byte more than there may be: enough to be told that there is more.
    let limit = MAX_FILE_BYTES as u64 + 1;
    if path == Path::new("-") {
        io::stdin().take(limit).read_to_string(&mut text).with_context(cannot_read)?;
    } else {
        let file = fs::File::open(path).with_context(cannot_read)?;
        file.take(limit).read_to_string(&mut text).with_context(cannot_read)?;
    }
    Ok(text)
}
