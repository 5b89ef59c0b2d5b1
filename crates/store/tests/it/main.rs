//! The store against a real PostgreSQL.

mod backlog;
mod counting;
mod deleted;
mod epochs;
mod hot_path;
mod identity;
mod installation;
mod migrate;
mod named;
mod orphans;
mod outbox;
mod plans;
mod pool;
mod queries;
mod queries_history;
mod queries_retry;
mod quotas;
mod races;
mod replay;
mod resources;
mod resources_edits;
mod resources_limits;
mod rotation;
mod upkeep;
mod walls;
mod walls_of_endpoints;
