//! Where PostgreSQL is, and what may be done to its schema.

use std::ops::RangeInclusive;

use postrider_store::pool::Way;

use super::{
    setting::{self, Setting},
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
    /// The pooler of `url` gives each transaction another session, but lets it seem the same to prepared statements.
    pub(crate) keeps_statements: bool,
    pub(crate) pool: u32,
    pub(crate) allow_schema_upgrade: bool,
}

impl Database {
    /// How connections of `url` come to PostgreSQL: past a pooler goes only what has a reason to.
    pub(crate) const fn way(&self) -> Way {
        match self.direct_url {
            Some(_) if !self.keeps_statements => Way::ForgetsStatements,
            Some(_) | None => Way::KeepsStatements,
        }
    }

    /// The URL past any pooler, and the setting it comes from.
    pub(crate) fn direct(&self) -> (&Secret, &'static Setting) {
        match &self.direct_url {
            Some(url) => (url, &setting::DIRECT_DATABASE_URL),
            None => (&self.url, &setting::DATABASE_URL),
        }
    }

    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let url = source.required(&setting::DATABASE_URL, WANTED, postgres_url);
        let migration_url = source.optional(&setting::MIGRATION_DATABASE_URL, postgres_url);
        let direct_url = source.optional(&setting::DIRECT_DATABASE_URL, postgres_url);
        let keeps_statements = source.switch(&setting::POOLER_KEEPS_STATEMENTS);
        let pool =
            source.or_default(&setting::DATABASE_POOL, DEFAULT_POOL, |text| number(text, &POOL_BOUNDS));
        let allow_schema_upgrade = source.switch(&setting::ALLOW_SCHEMA_UPGRADE);
        Ok(Self {
            url: url?,
            migration_url: migration_url?,
            direct_url: direct_url?,
            keeps_statements: keeps_statements?,
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
