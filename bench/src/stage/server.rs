//! A process of the release binary, configured as an operator would, save that receivers may be on loopback.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::{Database, Stage, guard::Guard};

/// A bootstrap token for a database that lives for a minute.
pub(crate) const BOOTSTRAP_TOKEN: &str = "bench-bootstrap-token-0123456789abcdef";
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const START_LIMIT: Duration = Duration::from_secs(30);
const DRAIN_LIMIT: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    All,
    Api,
    Worker,
}

/// A running process; killed when dropped, or when this process has ended in any way.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    _guard: Guard,
    log: PathBuf,
    pub(crate) pid: u32,
    pub(crate) address: SocketAddr,
}

/// Creates the schema.
pub(crate) async fn migrate(program: &Path, url: &str) -> anyhow::Result<()> {
    let output = command(program, url).arg("migrate").output().await?;
    ensure!(
        output.status.success(),
        "`postrider migrate` failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl Server {
    /// Returns once it listens.
    pub(crate) async fn start(
        stage: &Stage,
        database: &Database,
        role: Role,
        settings: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let log =
            tempfile::Builder::new().prefix(database.name()).suffix(".log").tempfile_in(stage.logs.path())?;
        let (file, log) = log.keep()?;
        let mut child = command(&stage.program, &database.url)
            .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
            .args(["serve", "--role", role.name(), "--listen", "127.0.0.1:0"])
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let pid = child.id().context("the server has ended")?;
        let guard = Guard::over(pid)?;
        let listening = async {
            loop {
                if let Some(address) = address(&std::fs::read_to_string(&log)?) {
                    return anyhow::Ok(address);
                }
                if let Some(status) = child.try_wait()? {
                    bail!("the server ended with {status}: {}", std::fs::read_to_string(&log)?);
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let address =
            tokio::time::timeout(START_LIMIT, listening).await.context("the server does not start")??;
        Ok(Self { child, _guard: guard, log, pid, address })
    }

    /// Drains the process, as SIGTERM does for an operator.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, Signal::TERM)?;
        let ended = tokio::time::timeout(DRAIN_LIMIT, self.child.wait()).await;
        let status = ended.context("the server does not drain")??;
        ensure!(status.success(), "the server ended with {status}: {}", std::fs::read_to_string(&self.log)?);
        Ok(())
    }
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }
}

fn command(program: &Path, url: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("DATABASE_URL", url)
        .env("POSTRIDER_ENCRYPTION_KEY", KEY)
        .env("POSTRIDER_TOKEN_PEPPER", KEY)
        .env("POSTRIDER_BOOTSTRAP_TOKEN", BOOTSTRAP_TOKEN)
        .env("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Where the process listens, once its log says so.
fn address(log: &str) -> Option<SocketAddr> {
    let mut said = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    said.find_map(|line| line.get("address")?.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_log() {
        let log = "not JSON\n{\"message\":\"starting\"}\n{\"message\":\"listening\",\"address\":\"127.0.0.1:77\"}\n";
        assert_eq!(address(log), Some("127.0.0.1:77".parse().unwrap()));
        assert_eq!(address("{\"message\":\"listening\",\"addr"), None);
    }
}
