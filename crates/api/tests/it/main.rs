//! The HTTP surface against a real PostgreSQL: requests go through the whole router, events through real ingest.

mod access;
mod batch;
mod document;
mod health;
mod ingester;
mod problems;
mod publishing;
mod reads;
mod reply;
mod secrecy;
mod surface;
