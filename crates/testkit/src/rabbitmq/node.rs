//! A node of a test's own, and what may happen to it.
//!
//! Ports, users and the virtual host stay the same whatever happens, so that the URLs of its broker stay right.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Address, control, launch};
use crate::authority::Authority;
use crate::program::{self, Program};
use crate::run::Run;

/// How often a first start is tried, when another process took a port.
const START_TRIES: u32 = 3;

/// A node. Dropping it ends it at once, and removes everything of it.
#[derive(Debug)]
pub struct Node {
    program: Option<Program>,
    address: Address,
    /// It answers nothing.
    is_frozen: bool,
    /// Declared last: it goes after the program that works in it.
    directory: TempDir,
}

impl Node {
    pub(super) async fn start_new(authority: Option<&Authority>) -> Self {
        let mut said = String::new();
        for _ in 0..START_TRIES {
            let mut node = Self::prepare(authority);
            match node.try_start().await {
                Ok(()) => return node,
                Err(complaint) => said = complaint,
            }
        }
        panic!("RabbitMQ did not start: {said}");
    }

    fn prepare(authority: Option<&Authority>) -> Self {
        let (directory, home) = program::directory("rabbitmq");
        let [port, distribution_port, tls_port] = program::free_ports();
        let tls_port = authority.map(|_| tls_port);
        let password = program::password();
        let address = Address { port, tls_port, distribution_port, password, home };
        launch::prepare(&address, authority);
        Self { program: None, address, is_frozen: false, directory }
    }

    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// The process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.program.as_ref().map(Program::pid)
    }

    /// What it says of itself, from its first start on.
    pub fn log(&self) -> PathBuf {
        self.address.home.join(program::LOG)
    }

    /// Starts it again with the data it has.
    pub async fn start(&mut self) {
        self.try_start().await.unwrap_or_else(|said| panic!("RabbitMQ did not start: {said}"));
    }

    async fn try_start(&mut self) -> Result<(), String> {
        assert!(self.program.is_none(), "it runs already");
        let mut program = Program::start(launch::command(&self.address), &self.address.home);
        program.listens(self.address.port).await?;
        let started = "ok = rabbit:await_startup(), \"\".";
        let (address, started) = (self.address.clone(), started.to_owned());
        let asked = tokio::task::spawn_blocking(move || control::evaluate_blocking(&address, &started));
        asked.await.expect("it does not panic")?;
        self.program = Some(program);
        self.is_frozen = false;
        Ok(())
    }

    /// Ends it in order: clients are told.
    pub async fn stop(&mut self) {
        let program = self.program.take().expect("it runs");
        program.end(Signal::TERM).await;
    }

    /// Ends it as `kill -9` does, once what it noted of its queues is on disk. RabbitMQ 3.10 writes the register of its
    /// quorum queues only every half second: a queue that is younger than that never has a leader again after a kill, and
    /// confirms nothing until it is deleted. No test means to be about that.
    pub async fn kill(&mut self) {
        if !self.is_frozen {
            control::evaluate(&self.address, "[dets:sync(Table) || Table <- dets:all()], \"\".").await;
        }
        drop(self.program.take().expect("it runs"));
    }

    /// Kills it if it runs, removes its data and starts it anew: every queue is gone, and every message.
    pub async fn wipe(&mut self) {
        drop(self.program.take());
        fs::remove_dir_all(launch::data(&self.address)).expect("it has data");
        self.start().await;
    }

    /// Lets it hang: connections stay open, and nothing is answered.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
        self.running().send(Signal::STOP);
    }

    pub fn thaw(&mut self) {
        self.is_frozen = false;
        self.running().send(Signal::CONT);
    }

    /// Raises the memory alarm: whoever publishes is blocked from now on.
    pub async fn raise_memory_alarm(&self) {
        self.set_memory_limit("0", "true").await;
    }

    pub async fn clear_memory_alarm(&self) {
        self.set_memory_limit("0.4", "false").await;
    }

    async fn set_memory_limit(&self, fraction: &str, is_alarmed: &str) {
        let set = format!(
            "vm_memory_monitor:set_vm_memory_high_watermark({fraction}), \
             Wait = fun (Again) -> case lists:keymember({{resource_limit, memory, node()}}, 1, rabbit_alarm:get_alarms()) of \
                 {is_alarmed} -> \"\"; \
                 _ -> timer:sleep(10), Again(Again) \
             end end, Wait(Wait)."
        );
        control::evaluate(&self.address, &set).await;
    }

    /// How long a consumer may hold a message without acknowledging it, on channels that are opened from now on. They
    /// are looked at several times within it.
    pub async fn set_consumer_timeout(&self, timeout: Duration) {
        let timeout_ms = timeout.as_millis();
        let every_ms = (timeout_ms / 4).max(1);
        let set = format!(
            "application:set_env(rabbit, consumer_timeout, {timeout_ms}), \
             application:set_env(rabbit, channel_tick_interval, {every_ms}), \"\"."
        );
        control::evaluate(&self.address, &set).await;
    }

    fn running(&self) -> &Program {
        self.program.as_ref().expect("it runs")
    }

    /// Lets it go on until the end of the run, and everything of it go then.
    pub(super) fn detach(self, run: &Run) {
        let Self { program, address, directory, .. } = self;
        let _ = directory.keep();
        program.expect("it runs").detach(run.lifetime, &address.home, &run.directory);
    }
}
