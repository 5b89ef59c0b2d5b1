//! Every setting there is, by the name of its variable.
//!
//! In the configuration file a setting is called like its variable, in lower case and without `POSTRIDER_`:
//! `POSTRIDER_WORKER_CONCURRENCY` is `worker_concurrency`. A secret cannot stand there; it can come from a file of its
//! own, which the variable with `_FILE` at its end names.

/// One setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) variable: &'static str,
    pub(crate) is_secret: bool,
}

const PREFIX: &str = "POSTRIDER_";
/// How alike two names must be, from 0 to 1, for one to be taken for a misspelling of the other.
const LEAST_LIKENESS: f64 = 0.6;

impl Setting {
    const fn plain(variable: &'static str) -> Self {
        Self { variable, is_secret: false }
    }

    const fn secret(variable: &'static str) -> Self {
        Self { variable, is_secret: true }
    }

    /// Its key in the configuration file.
    pub(crate) fn key(&self) -> String {
        bare(self.variable).to_lowercase()
    }

    /// The variable that names a file which holds the secret.
    pub(crate) fn file_variable(&self) -> String {
        format!("{}_FILE", self.variable)
    }

    fn is_set_by(&self, name: &str) -> bool {
        name == self.variable || self.is_secret && name.strip_suffix("_FILE") == Some(self.variable)
    }
}

// Database URLs count as secrets: they usually carry a password.
pub(crate) const DATABASE_URL: Setting = Setting::secret("DATABASE_URL");
pub(crate) const MIGRATION_DATABASE_URL: Setting = Setting::secret("POSTRIDER_MIGRATION_DATABASE_URL");
pub(crate) const DIRECT_DATABASE_URL: Setting = Setting::secret("POSTRIDER_DIRECT_DATABASE_URL");
pub(crate) const POOLER_KEEPS_STATEMENTS: Setting = Setting::plain("POSTRIDER_POOLER_KEEPS_STATEMENTS");
pub(crate) const DATABASE_POOL: Setting = Setting::plain("POSTRIDER_DATABASE_POOL");
pub(crate) const RABBITMQ_URL: Setting = Setting::secret("POSTRIDER_RABBITMQ_URL");
pub(crate) const RABBITMQ_CA_FILE: Setting = Setting::plain("POSTRIDER_RABBITMQ_CA_FILE");
pub(crate) const REDIS_URL: Setting = Setting::secret("POSTRIDER_REDIS_URL");
pub(crate) const REDIS_CA_FILE: Setting = Setting::plain("POSTRIDER_REDIS_CA_FILE");
pub(crate) const ALLOW_SCHEMA_UPGRADE: Setting = Setting::plain("POSTRIDER_ALLOW_SCHEMA_UPGRADE");
pub(crate) const LISTEN: Setting = Setting::plain("POSTRIDER_LISTEN");
pub(crate) const TRUSTED_PROXIES: Setting = Setting::plain("POSTRIDER_TRUSTED_PROXIES");
pub(crate) const ENCRYPTION_KEY: Setting = Setting::secret("POSTRIDER_ENCRYPTION_KEY");
pub(crate) const ENCRYPTION_KEY_PREVIOUS: Setting = Setting::secret("POSTRIDER_ENCRYPTION_KEY_PREVIOUS");
pub(crate) const ENCRYPTION_KEY_NEXT: Setting = Setting::secret("POSTRIDER_ENCRYPTION_KEY_NEXT");
pub(crate) const BOOTSTRAP_TOKEN: Setting = Setting::secret("POSTRIDER_BOOTSTRAP_TOKEN");
pub(crate) const METRICS_TOKEN: Setting = Setting::secret("POSTRIDER_METRICS_TOKEN");
pub(crate) const JWT_SECRET: Setting = Setting::secret("POSTRIDER_JWT_SECRET");
pub(crate) const JWT_SECRET_PREVIOUS: Setting = Setting::secret("POSTRIDER_JWT_SECRET_PREVIOUS");
pub(crate) const TOKEN_PEPPER: Setting = Setting::secret("POSTRIDER_TOKEN_PEPPER");
pub(crate) const TOKEN_PEPPER_PREVIOUS: Setting = Setting::secret("POSTRIDER_TOKEN_PEPPER_PREVIOUS");
pub(crate) const TOKEN_PEPPER_GENERATION: Setting = Setting::plain("POSTRIDER_TOKEN_PEPPER_GENERATION");
pub(crate) const ALLOW_LOOPBACK_ENDPOINTS: Setting = Setting::plain("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS");
pub(crate) const ALLOWED_CIDRS: Setting = Setting::plain("POSTRIDER_ALLOWED_CIDRS");
pub(crate) const CA_FILE: Setting = Setting::plain("POSTRIDER_CA_FILE");
pub(crate) const WORKER_CONCURRENCY: Setting = Setting::plain("POSTRIDER_WORKER_CONCURRENCY");
pub(crate) const TENANT_RATE: Setting = Setting::plain("POSTRIDER_TENANT_RATE");
pub(crate) const TENANT_BURST: Setting = Setting::plain("POSTRIDER_TENANT_BURST");
pub(crate) const TENANT_HOURLY_EVENT_LIMIT: Setting = Setting::plain("POSTRIDER_TENANT_HOURLY_EVENT_LIMIT");
pub(crate) const TENANT_HOURLY_BYTE_LIMIT: Setting = Setting::plain("POSTRIDER_TENANT_HOURLY_BYTE_LIMIT");
pub(crate) const TENANT_PENDING_LIMIT: Setting = Setting::plain("POSTRIDER_TENANT_PENDING_LIMIT");
pub(crate) const MAX_INFLIGHT_REQUESTS: Setting = Setting::plain("POSTRIDER_MAX_INFLIGHT_REQUESTS");
pub(crate) const MAX_BACKLOG: Setting = Setting::plain("POSTRIDER_MAX_BACKLOG");
/// Read by the telemetry and not by any section.
pub(crate) const LOG: Setting = Setting::plain("POSTRIDER_LOG");
/// Read by `dev` and not by any section.
pub(crate) const POSTGRES_BINARIES: Setting = Setting::plain("POSTRIDER_POSTGRES_BINARIES");

pub(crate) const ALL: &[&Setting] = &[
    &DATABASE_URL,
    &MIGRATION_DATABASE_URL,
    &DIRECT_DATABASE_URL,
    &DATABASE_POOL,
    &POOLER_KEEPS_STATEMENTS,
    &RABBITMQ_URL,
    &RABBITMQ_CA_FILE,
    &REDIS_URL,
    &REDIS_CA_FILE,
    &ALLOW_SCHEMA_UPGRADE,
    &LISTEN,
    &TRUSTED_PROXIES,
    &ENCRYPTION_KEY,
    &ENCRYPTION_KEY_PREVIOUS,
    &ENCRYPTION_KEY_NEXT,
    &BOOTSTRAP_TOKEN,
    &METRICS_TOKEN,
    &JWT_SECRET,
    &JWT_SECRET_PREVIOUS,
    &TOKEN_PEPPER,
    &TOKEN_PEPPER_PREVIOUS,
    &TOKEN_PEPPER_GENERATION,
    &ALLOW_LOOPBACK_ENDPOINTS,
    &ALLOWED_CIDRS,
    &CA_FILE,
    &WORKER_CONCURRENCY,
    &TENANT_RATE,
    &TENANT_BURST,
    &TENANT_HOURLY_EVENT_LIMIT,
    &TENANT_HOURLY_BYTE_LIMIT,
    &TENANT_PENDING_LIMIT,
    &MAX_INFLIGHT_REQUESTS,
    &MAX_BACKLOG,
    &LOG,
    &POSTGRES_BINARIES,
];

/// Whether a variable looks like one of ours and sets nothing.
pub(crate) fn is_unknown(name: &str) -> bool {
    name.starts_with(PREFIX) && !ALL.iter().any(|setting| setting.is_set_by(name))
}

/// The variable that somebody meant who wrote this one, if one is so alike.
pub(crate) fn closest(name: &str) -> Option<String> {
    let secret_files = ALL.iter().filter(|setting| setting.is_secret).map(|setting| setting.file_variable());
    let variables = ALL.iter().map(|setting| setting.variable.to_owned()).chain(secret_files);
    let likeness = |variable: &str| strsim::normalized_damerau_levenshtein(bare(name), bare(variable));
    let alike = variables.map(|variable| (likeness(&variable), variable));
    let closest = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    closest.filter(|(likeness, _)| *likeness >= LEAST_LIKENESS).map(|(_, variable)| variable)
}

/// The prefix is in nearly all names, and makes them no more alike.
fn bare(variable: &str) -> &str {
    variable.strip_prefix(PREFIX).unwrap_or(variable)
}
