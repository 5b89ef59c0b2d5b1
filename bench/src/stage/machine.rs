//! What a figure depends on: the program, the machine, PostgreSQL and its settings.

use std::{fmt, fs, path::Path, process::Command, thread};

use anyhow::{Context as _, ensure};
use sqlx::PgConnection;

/// Settings that a reader of the figures wants to know, as the server itself reports them.
const SETTINGS: [&str; 8] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "shared_preload_libraries",
];

#[derive(Debug)]
pub(crate) struct Facts {
    cores: usize,
    processor: String,
    memory: String,
    kernel: String,
    program: String,
    settings: Vec<(String, String)>,
    over_unix_socket: bool,
}

impl Facts {
    /// `given` names the settings that are not at their defaults.
    pub(crate) async fn gather(
        connection: &mut PgConnection,
        program: &Path,
        given: &[String],
    ) -> anyhow::Result<Self> {
        let mut settings = Vec::new();
        let others = given.iter().map(String::as_str).filter(|name| !SETTINGS.contains(name));
        for name in SETTINGS.into_iter().chain(others) {
            let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                .bind(name)
                .fetch_one(&mut *connection)
                .await?;
            settings.push((name.to_owned(), value));
        }
        let over_unix_socket =
            sqlx::query_scalar("SELECT inet_server_addr() IS NULL").fetch_one(connection).await?;
        Ok(Self {
            cores: thread::available_parallelism()?.get(),
            processor: first("/proc/cpuinfo", "model name"),
            memory: first("/proc/meminfo", "MemTotal"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            program: version(program)?,
            settings,
            over_unix_socket,
        })
    }
}

/// The first line of a file that begins with a name, without the name.
fn first(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// What the measured program says of itself: its version and its commit.
fn version(program: &Path) -> anyhow::Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("{} cannot be run", program.display()))?;
    ensure!(output.status.success(), "{} does not say its version: {}", program.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl fmt::Display for Facts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory, kernel, program, settings, over_unix_socket } = self;
        writeln!(
            formatter,
            "Machine: {cores} cores ({processor}), {memory} of memory, Linux {kernel}; generator,"
        )?;
        writeln!(formatter, "sink, server and database all on it. Measured: {program}.")?;
        let settings: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(formatter, "PostgreSQL, as it reports itself: {}.", settings.join(", "))?;
        let way = if *over_unix_socket { "a Unix socket" } else { "TCP on loopback" };
        let profile = if cfg!(debug_assertions) { "A DEBUG BUILD: THE FIGURES MEAN NOTHING. " } else { "" };
        write!(formatter, "{profile}Server and PostgreSQL talk as under `postrider dev`: over {way}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_has_no_version() {
        for (program, works) in [("/bin/echo", true), ("/bin/false", false), ("/nowhere", false)] {
            assert_eq!(version(Path::new(program)).is_ok(), works, "{program}");
        }
    }
}
