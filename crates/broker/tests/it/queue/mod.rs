//! The queue: what every one has to do, and what happens when RabbitMQ fails.

mod conformance;
mod deaf;
mod outages;
mod publishing;
mod receipts;
mod replays;
mod strangers;
mod trust;
mod world;
