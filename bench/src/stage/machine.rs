//! What a figure depends on besides the program: the machine, PostgreSQL and its settings, the commit.

use std::{fmt, fs, process::Command, thread};

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
    commit: String,
    settings: Vec<(&'static str, String)>,
    over_unix_socket: bool,
}

impl Facts {
    pub(crate) async fn gather(connection: &mut PgConnection) -> anyhow::Result<Self> {
        let mut settings = Vec::new();
        for name in SETTINGS {
            let value =
                sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut *connection);
            settings.push((name, value.await?));
        }
        let over_unix_socket =
            sqlx::query_scalar("SELECT inet_server_addr() IS NULL").fetch_one(connection).await?;
        Ok(Self {
            cores: thread::available_parallelism()?.get(),
            processor: first("/proc/cpuinfo", "model name"),
            memory: first("/proc/meminfo", "MemTotal"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            commit: commit(),
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

/// The commit of the checkout, and whether it was changed since.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        Some(_) | None => format!("{commit} with uncommitted changes"),
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory, kernel, commit, settings, over_unix_socket } = self;
        writeln!(
            formatter,
            "Machine: {cores} cores ({processor}), {memory} of memory, Linux {kernel}; generator,"
        )?;
        writeln!(formatter, "sink, server and database all on it. Commit {commit}.")?;
        let settings: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(formatter, "PostgreSQL, as it reports itself: {}.", settings.join(", "))?;
        let way = if *over_unix_socket { "a Unix socket" } else { "TCP on loopback" };
        let profile = if cfg!(debug_assertions) { "A DEBUG BUILD: THE FIGURES MEAN NOTHING. " } else { "" };
        write!(formatter, "{profile}Server and PostgreSQL talk as under `postrider dev`: over {way}.")
    }
}
