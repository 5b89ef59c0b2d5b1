//! What breaks around a running process, and what must hold then. Each file makes one kind of fault real; wherever
//! deliveries are involved it ends in the ledger checker. `docs/faults.md` lists them all.

mod at_rest;
mod bloat;
mod clocks;
mod deadlock;
mod disk_full;
mod drain;
mod failover;
mod fan_out;
mod frozen;
mod isolation;
mod load;
mod locked_table;
mod long_transaction;
mod lost_commit;
mod odd_answers;
mod outage;
mod overload;
mod pool;
mod proxies;
mod quotas;
mod replay;
mod rolling;
mod rotation;
mod scene;
mod shared_limits;
mod signing_keys;
mod smuggling;
mod stopped_database;
