//! The stage: a private PostgreSQL, the release binary's processes on it, what they use of the machine.

mod database;
mod guard;
mod machine;
mod management;
mod process;
mod server;

pub(crate) use database::{Database, QueueSize, Stage};
pub(crate) use machine::Facts;
pub(crate) use management::{EVERY_TYPE, Owner, limit};
pub(crate) use process::{Machine, Memory, cpu_s, family_cpu_s, memory};
pub(crate) use server::{Role, Server};
