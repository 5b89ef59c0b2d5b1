//! Redis for tests: a server of the test's own, which keeps nothing on disk and forgets everything when it ends.
//!
//! Invariant: nothing here uses a server that was there before, and only the holder of a random password may ask it
//! anything.

use std::path::PathBuf;

use postrider_embedded::account::Account;
use redis::{Client, Cmd, FromRedisValue};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::program::{self, Program};

/// How often a first start is tried, when another process took a port.
const START_TRIES: u32 = 3;

/// A server. Dropping it ends it at once.
#[derive(Debug)]
pub struct Redis {
    program: Option<Program>,
    port: u16,
    tls_port: Option<u16>,
    password: String,
    home: PathBuf,
    /// Declared last: it goes after the program that works in it.
    _directory: TempDir,
}

impl Redis {
    /// An empty server.
    pub async fn fresh() -> Self {
        Self::start_new(None).await
    }

    /// The same with a second port that speaks TLS, with a certificate for `127.0.0.1` and `localhost`.
    pub async fn with_tls(authority: &Authority) -> Self {
        Self::start_new(Some(authority)).await
    }

    async fn start_new(authority: Option<&Authority>) -> Self {
        let mut said = String::new();
        for _ in 0..START_TRIES {
            let mut redis = Self::prepare(authority);
            match redis.try_start().await {
                Ok(()) => return redis,
                Err(complaint) => said = complaint,
            }
        }
        panic!("Redis did not start: {said}");
    }

    fn prepare(authority: Option<&Authority>) -> Self {
        let (directory, home) = program::directory("redis");
        let [port, tls_port] = program::free_ports();
        let tls_port = authority.map(|_| tls_port);
        let password = program::password();
        if let Some(authority) = authority {
            let issued = authority.issue_pem(&["127.0.0.1", "localhost"]);
            program::write_private(&home.join("authority.pem"), &authority.certificate_pem());
            program::write_private(&home.join("certificate.pem"), &issued.certificate);
            program::write_private(&home.join("key.pem"), &issued.key);
        }
        let redis = Self { program: None, port, tls_port, password, home, _directory: directory };
        program::write_private(&redis.home.join("redis.conf"), &redis.configuration());
        redis
    }

    fn configuration(&self) -> String {
        let Self { port, password, .. } = self;
        let home = self.home.display();
        let tls = self.tls_port.map_or_else(String::new, |port| {
            format!(
                "tls-port {port}\n\
                 tls-auth-clients no\n\
                 tls-ca-cert-file {home}/authority.pem\n\
                 tls-cert-file {home}/certificate.pem\n\
                 tls-key-file {home}/key.pem\n"
            )
        });
        format!(
            "bind 127.0.0.1\n\
             port {port}\n\
             requirepass {password}\n\
             dir {home}\n\
             daemonize no\n\
             save \"\"\n\
             appendonly no\n\
             io-threads 1\n\
             {tls}"
        )
    }

    /// For programs and connections of the test's own. It contains the password.
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}/0", self.password, self.port)
    }

    /// The same over TLS; panics where the server has no such port.
    pub fn tls_url(&self) -> String {
        let port = self.tls_port.expect("a server with TLS");
        format!("rediss://:{}@127.0.0.1:{port}/0", self.password)
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.program.as_ref().map(Program::pid)
    }

    /// What it says of itself, from its first start on.
    pub fn log(&self) -> PathBuf {
        self.home.join(program::LOG)
    }

    /// How many connections others have to it.
    pub async fn count_connections(&self) -> usize {
        let list: String = self.ask(redis::cmd("CLIENT").arg("LIST").arg("TYPE").arg("NORMAL")).await;
        // The one that asks is among them.
        list.lines().count().saturating_sub(1)
    }

    /// Starts it again on the same port, empty.
    pub async fn start(&mut self) {
        self.try_start().await.unwrap_or_else(|said| panic!("Redis did not start: {said}"));
    }

    async fn try_start(&mut self) -> Result<(), String> {
        assert!(self.program.is_none(), "it runs already");
        let mut command = Account::Own.command(&program::find("redis-server"));
        command.arg(self.home.join("redis.conf"));
        let mut program = Program::start(command, &self.home);
        program.listens(self.port).await?;
        // Whoever took the port meanwhile does not know the password.
        self.try_ask::<()>(&redis::cmd("PING")).await.map_err(|error| error.to_string())?;
        self.program = Some(program);
        Ok(())
    }

    /// Ends it in order.
    pub async fn stop(&mut self) {
        let program = self.program.take().expect("it runs");
        program.end(Signal::TERM).await;
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        drop(self.program.take().expect("it runs"));
    }

    /// Lets it hang: connections stay open, and nothing is answered.
    pub fn freeze(&self) {
        self.running().send(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.running().send(Signal::CONT);
    }

    fn running(&self) -> &Program {
        self.program.as_ref().expect("it runs")
    }

    /// Removes every key, with every script it remembers: what a server knows that was lost and came back.
    pub async fn flush(&self) {
        self.ask::<()>(&redis::cmd("FLUSHALL")).await;
        self.ask::<()>(redis::cmd("SCRIPT").arg("FLUSH")).await;
    }

    /// Asks it anything, on a connection of its own.
    pub async fn ask<A: FromRedisValue>(&self, command: &Cmd) -> A {
        self.try_ask(command).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_ask<A: FromRedisValue>(&self, command: &Cmd) -> redis::RedisResult<A> {
        let mut connection = Client::open(self.url())?.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }
}
