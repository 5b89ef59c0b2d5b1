//! The HTTP surface against a real PostgreSQL: requests go through the whole router, events through real ingest.

mod access;
mod applications;
mod audit;
mod batch;
mod credentials;
mod credentials_in_use;
mod document;
mod endpoints;
mod endpoints_input;
mod guide;
mod health;
mod keys;
mod limits;
mod login;
mod problems;
mod publishing;
mod reads;
mod replays;
mod reply;
mod scoping;
mod secrecy;
mod sessions;
mod subscriptions;
mod surface;
mod tenants;
mod users;
