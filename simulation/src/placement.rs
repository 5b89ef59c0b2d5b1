//! Cells of tenants, each with a PostgreSQL and processes of its own: where a new tenant goes, who moves when a cell gets
//! too full, and what a further cell and a lost one mean. No database takes part; a year is reckoned from one number.
//!
//! | module | role |
//! |---|---|
//! | [`demand`] | what a tenant takes of a cell, hour by hour and on disk |
//! | [`tenants`] | a population by chance: a few are very large, most are small, all grow |
//! | [`fleet`] | the cells, and the one that each tenant lives in |
//! | [`strategy`] | where a tenant goes when it is made |
//! | [`rebalance`] | who moves, so that no cell is above its limit |
//! | [`year`] | a year of all that under one strategy, and what is told of it |
//! | [`report`] | the years of all strategies, as a table |
//!
//! Invariant: a tenant's home is one entry of one list, so no tenant is in two cells, and what a cell carries is always
//! summed up from that list, so no load is lost in a move.

pub mod demand;
pub mod fleet;
pub mod rebalance;
pub mod report;
pub mod strategy;
pub mod tenants;
pub mod year;
