//! PgBouncer for tests: in transaction mode before a server, so that each transaction may get another session.
//!
//! Invariant: it changes nothing but the way. Its URL is the server's with another port, and databases, users and
//! passwords are the server's own.

use std::path::PathBuf;

use postrider_embedded::account::Account;
use rustix::process::Signal;
use tempfile::TempDir;
use url::Url;

use crate::program::{self, Program};
use crate::run::Run;

/// How often a start is tried, when another process took the port.
const START_TRIES: u32 = 3;
/// Sessions with the server for each database and user: few, so that clients share them even in a small test.
const SESSIONS: u32 = 4;

/// A pooler. Dropping it ends it at once.
#[derive(Debug)]
pub struct Pooler {
    program: Program,
    port: u16,
    url: String,
    home: PathBuf,
    /// Declared last: it goes after the program that works in it.
    directory: TempDir,
}

impl Pooler {
    /// A pooler before the server of a URL, for all its databases.
    pub async fn before(url: &str) -> Self {
        let mut said = String::new();
        for _ in 0..START_TRIES {
            match Self::try_start(url).await {
                Ok(pooler) => return pooler,
                Err(complaint) => said = complaint,
            }
        }
        panic!("PgBouncer did not start: {said}");
    }

    async fn try_start(url: &str) -> Result<Self, String> {
        let (directory, home) = program::directory("pgbouncer");
        let [port] = program::free_ports();
        let server = Url::parse(url).expect("a database URL");
        // It refuses root, as PostgreSQL does.
        let account = Account::for_server().expect("an account that PgBouncer may run as");
        let files = [("pgbouncer.ini", configuration(port, &server)), ("users", user(&server))];
        for (name, text) in files {
            let path = home.join(name);
            program::write_private(&path, &text);
            account.own(&path).expect("it is ours to give");
        }
        account.own(&home).expect("it is ours to give");
        let mut command = account.command(&program::find("pgbouncer"));
        command.arg(home.join("pgbouncer.ini"));
        let mut program = Program::start(command, &home);
        program.listens(port).await?;
        let mut pooled = server;
        pooled.set_port(Some(port)).expect("a database URL has a host");
        Ok(Self { program, port, url: pooled.into(), home, directory })
    }

    /// The URL it was put before, by way of the pooler.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Lets it hang: connections stay open, and nothing is answered.
    pub fn freeze(&self) {
        self.program.send(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.program.send(Signal::CONT);
    }

    /// Lets it go on until the end of the run, and everything of it go then.
    pub(crate) fn detach(self, run: &Run) {
        let Self { program, home, directory, .. } = self;
        let _ = directory.keep();
        program.detach(run.lifetime, &home, &run.directory);
    }
}

/// As PgBouncer is without any setting that would make it easier for who comes through it.
fn configuration(port: u16, server: &Url) -> String {
    let host = server.host_str().expect("a database URL has a host");
    let server_port = server.port().unwrap_or(5432);
    let user = server.username();
    format!(
        "[databases]\n\
         * = host={host} port={server_port} auth_user={user}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = scram-sha-256\n\
         auth_file = users\n\
         auth_query = SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin\n\
         pool_mode = transaction\n\
         default_pool_size = {SESSIONS}\n\
         max_client_conn = 2000\n\
         log_connections = 0\n\
         log_disconnections = 0\n"
    )
}

fn user(server: &Url) -> String {
    let password = server.password().expect("a database URL with a password");
    format!("\"{}\" \"{password}\"\n", server.username())
}
