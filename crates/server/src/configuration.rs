//! What the operator can set, one file per section.
//!
//! Invariant: a configuration that could be read is valid, and one that could not names every setting that is wrong and
//! how to mend it, not just the first.

mod database;
mod deliveries;
#[cfg(debug_assertions)]
pub(crate) mod failpoint;
mod file;
mod http;
mod limits;
mod networks;
mod problem;
mod rabbitmq;
mod redis;
pub(crate) mod secrets;
mod sessions;
pub(crate) mod setting;
mod source;
mod worker;

use std::path::Path;

pub(crate) use database::Database;
pub(crate) use deliveries::Deliveries;
pub(crate) use http::Http;
pub(crate) use limits::Limits;
pub(crate) use problem::Problems;
pub(crate) use rabbitmq::RabbitMq;
pub(crate) use redis::Redis;
pub(crate) use secrets::Secrets;
pub(crate) use sessions::Sessions;
pub(crate) use source::{Recorded, Secret, Source};
pub(crate) use worker::Worker;

use crate::environment::Environment;

/// Everything `serve` needs.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) database: Database,
    pub(crate) deliveries: Deliveries,
    pub(crate) http: Http,
    pub(crate) limits: Limits,
    pub(crate) rabbitmq: RabbitMq,
    pub(crate) redis: Redis,
    pub(crate) secrets: Secrets,
    pub(crate) sessions: Sessions,
    pub(crate) worker: Worker,
}

impl Configuration {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let database = Database::section(source);
        let deliveries = Deliveries::section(source);
        let http = Http::section(source);
        let limits = Limits::section(source);
        let rabbitmq = RabbitMq::section(source);
        let redis = Redis::section(source);
        let secrets = Secrets::section(source);
        let sessions = Sessions::section(source);
        let worker = Worker::section(source);
        Ok(Self {
            database: database?,
            deliveries: deliveries?,
            http: http?,
            limits: limits?,
            rabbitmq: rabbitmq?,
            redis: redis?,
            secrets: secrets?,
            sessions: sessions?,
            worker: worker?,
        })
    }
}

/// A configuration, and what the operator should know although it is valid.
#[derive(Debug)]
pub(crate) struct Read<T> {
    pub(crate) configuration: T,
    pub(crate) warnings: Vec<String>,
}

impl<T> Read<T> {
    /// For commands that end soon: the warnings go to the terminal.
    pub(crate) fn with_warnings_printed(self) -> T {
        for warning in &self.warnings {
            eprintln!("postrider: {warning}");
        }
        self.configuration
    }

    /// For processes that run: the warnings go to the log.
    pub(crate) fn with_warnings_logged(self) -> T {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        self.configuration
    }
}

/// Reads one section, or all, from the environment and the file; the environment wins.
pub(crate) fn read<T>(
    environment: &Environment,
    file: Option<&Path>,
    section: impl FnOnce(&mut Source<'_>) -> Result<T, Recorded>,
) -> Result<Read<T>, Problems> {
    let mut source = Source::new(environment, file);
    let configuration = section(&mut source);
    let unknown = source.unknown_variables();
    let mut problems = source.into_problems();
    match configuration {
        Ok(configuration) if problems.is_empty() => {
            let warnings = unknown.iter().map(ToString::to_string).collect();
            Ok(Read { configuration, warnings })
        }
        Ok(_) | Err(Recorded { .. }) => {
            // A setting may be missing because it is misspelt.
            problems.extend(unknown);
            Err(Problems(problems))
        }
    }
}

#[cfg(test)]
mod tests;
