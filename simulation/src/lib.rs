//! A simulation of Postrider: the real engine, the real store and a real PostgreSQL, with a scripted network, a clock
//! that the run moves, and faults wherever a process waits for anything. Everything that happens follows from one
//! number, so that what a seed has shown once it shows again.
//!
//! | module | role |
//! |---|---|
//! | [`gate`], [`wire`], [`backend`] | stand before PostgreSQL: one statement at a time, in the order the run chooses |
//! | [`network`] | stands for the receivers: a request ends when and how the run chooses |
//! | [`time`] | a timer ends when the run chooses, once it is due |
//! | [`process`] | the engine on a runtime of its own that runs until it can do nothing more; dropping it is a crash |
//! | [`run`], `chaos`, `moments`, `people`, `publishing`, `rest` | one run: chaos, then a time to come to rest |
//! | [`model`], [`habits`] | what people have set up, and what they are given to: quotas, replays, deletions |
//! | [`check`] | what must hold after every step; the ledger checker of the test kit ends each run |
//! | [`laboratory`] | what many runs share: a private PostgreSQL whose `now()` is the simulated time |
//! | [`campaign`], `watchdog` | many seeds, several workers, what is told of them, and the end of one that has none |
//!
//! No part of the engine is replaced or opened for this: the loops, lanes and batches are those that `serve` runs.
//!
//! [`placement`] stands apart: it reckons how tenants are spread over cells, each with a database of its own.

pub mod backend;
pub mod campaign;
pub mod chance;
mod chaos;
pub mod check;
pub mod gate;
pub mod habits;
mod label;
pub mod laboratory;
mod look;
pub mod model;
mod moments;
pub mod network;
mod people;
pub mod placement;
pub mod process;
mod publishing;
mod rest;
pub mod run;
pub mod time;
pub mod trace;
mod watchdog;
pub mod wire;
