//! Where PostgreSQL is, and what may be done to its schema.

use std::ops::RangeInclusive;

use super::{
    setting,
    source::{Recorded, Secret, Source, number},
};

/// Connections of the shared pool unless set otherwise; the engine's lanes have their own beside it.
const DEFAULT_POOL: u32 = 16;
const POOL_BOUNDS: RangeInclusive<u32> = 2..=500;
const WANTED: &str =
    "give the URL of a PostgreSQL 15 or newer, such as postgresql://USER:PASSWORD@HOST:5432/DATABASE";

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) url: Secret,
    /// A role that may alter the schema, where `url`'s may not.
    pub(crate) migration_url: Option<Secret>,
    /// For `LISTEN` and session state, where `url` goes through a pooler.
    pub(crate) direct_url: Option<Secret>,
    pub(crate) pool: u32,
    pub(crate) allow_schema_upgrade: bool,
}

impl Database {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let url = source.required(&setting::DATABASE_URL, WANTED, postgres_url);
        let migration_url = source.optional(&setting::MIGRATION_DATABASE_URL, postgres_url);
        let direct_url = source.optional(&setting::DIRECT_DATABASE_URL, postgres_url);
        let pool =
            source.or_default(&setting::DATABASE_POOL, DEFAULT_POOL, |text| number(text, &POOL_BOUNDS));
        let allow_schema_upgrade = source.switch(&setting::ALLOW_SCHEMA_UPGRADE);
        Ok(Self {
            url: url?,
            migration_url: migration_url?,
            direct_url: direct_url?,
            pool: pool?,
            allow_schema_upgrade: allow_schema_upgrade?,
        })
    }
}

fn postgres_url(text: &str) -> Result<Secret, String> {
    let is_postgres =
        url::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "postgres" | "postgresql"));
    if is_postgres {
        Ok(Secret::from(text.to_owned()))
    } else {
        Err(format!("is not a PostgreSQL URL: {WANTED}"))
    }
}
