//! The HTTP surface against a real PostgreSQL: requests go through the whole router, events through real ingest.

mod access;
mod applications;
mod audit;
mod batch;
mod document;
mod endpoints;
mod endpoints_input;
mod guide;
mod health;
mod keys;
mod login;
mod problems;
mod publishing;
mod reads;
mod reply;
mod scoping;
mod secrecy;
mod sessions;
mod subscriptions;
mod surface;
mod tenants;
mod users;
