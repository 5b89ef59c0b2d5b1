//! The installation's own secrets: what seals secrets at rest, what tokens are hashed with, who may bootstrap.

use std::sync::Arc;

use postrider_core::{
    pepper::{FIRST_GENERATION, Peppers},
    seal::{KEY_LENGTH, Keyring},
    token::{MIN_PEPPER_LENGTH, Pepper},
};
use zeroize::Zeroizing;

use super::{
    setting,
    source::{Recorded, Secret, Source, number},
};

/// Shortest operator token, in characters.
const LEAST_TOKEN_LENGTH: usize = 32;
const KEY_WANTED: &str =
    "give 32 bytes as 64 hexadecimal characters, for example from `openssl rand -hex 32`";
const PEPPER_WANTED: &str = "give 32 bytes or more, for example from `openssl rand -hex 32`";
const TOKEN_WANTED: &str = "give 32 characters or more, for example from `openssl rand -hex 32`";

pub(crate) struct Secrets {
    /// Seals secrets; opens what the previous key and the one to come sealed, too.
    pub(crate) keyring: Arc<Keyring>,
    /// Hashes tokens; during a rotation there are two.
    pub(crate) peppers: Peppers,
    /// Creates tenants; without one, nobody can.
    pub(crate) bootstrap_token: Option<Secret>,
    /// Reads `/metrics`; without one, nobody can.
    pub(crate) metrics_token: Option<Secret>,
}

impl Secrets {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let keyring = keyring(source);
        let peppers = peppers(source);
        let bootstrap_token = source.optional(&setting::BOOTSTRAP_TOKEN, operator_token);
        let metrics_token = source.optional(&setting::METRICS_TOKEN, operator_token);
        let secrets = Self {
            keyring: Arc::new(keyring?),
            peppers: peppers?,
            bootstrap_token: bootstrap_token?,
            metrics_token: metrics_token?,
        };
        secrets.validate(source)?;
        Ok(secrets)
    }

    /// One token must not open what the other is for.
    fn validate(&self, source: &mut Source<'_>) -> Result<(), Recorded> {
        match (&self.bootstrap_token, &self.metrics_token) {
            (Some(bootstrap), Some(metrics)) if bootstrap.reveal() == metrics.reveal() => {
                let other = setting::BOOTSTRAP_TOKEN.variable;
                Err(source.record(
                    &setting::METRICS_TOKEN,
                    format!("is the same as {other}: give them different values"),
                ))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// The encryption keys.
pub(crate) fn keyring(source: &mut Source<'_>) -> Result<Keyring, Recorded> {
    let current = source.required(&setting::ENCRYPTION_KEY, KEY_WANTED, encryption_key);
    let previous = source.optional(&setting::ENCRYPTION_KEY_PREVIOUS, encryption_key);
    let next = source.optional(&setting::ENCRYPTION_KEY_NEXT, encryption_key);
    let (current, previous, next) = (current?, previous?, next?);
    let keyring = Keyring::new(*current, previous.map(|key| *key));
    let mut unusable = |setting, error| source.record(setting, format!("cannot be used: {error}"));
    let keyring = keyring.map_err(|error| unusable(&setting::ENCRYPTION_KEY_PREVIOUS, error))?;
    match next {
        None => Ok(keyring),
        Some(next) => {
            keyring.with_next(*next).map_err(|error| unusable(&setting::ENCRYPTION_KEY_NEXT, error))
        }
    }
}

/// The peppers.
pub(crate) fn peppers(source: &mut Source<'_>) -> Result<Peppers, Recorded> {
    let current = source.required(&setting::TOKEN_PEPPER, PEPPER_WANTED, pepper);
    let previous = source.optional(&setting::TOKEN_PEPPER_PREVIOUS, pepper);
    let generation = source.or_default(&setting::TOKEN_PEPPER_GENERATION, FIRST_GENERATION, |text| {
        number(text, &(FIRST_GENERATION..=i32::MAX))
    });
    Peppers::new(generation?, current?, previous?).map_err(|error| {
        let counted = setting::TOKEN_PEPPER_GENERATION.variable;
        source.record(
            &setting::TOKEN_PEPPER_PREVIOUS,
            format!(
                "cannot be used: {error}. Give it together with a new pepper, and raise {counted} by one"
            ),
        )
    })
}

fn pepper(text: &str) -> Result<Pepper, String> {
    Pepper::new(text.as_bytes())
        .map_err(|_| format!("is shorter than {MIN_PEPPER_LENGTH} bytes: {PEPPER_WANTED}"))
}

fn encryption_key(text: &str) -> Result<Zeroizing<[u8; KEY_LENGTH]>, String> {
    let mut key = Zeroizing::new([0; KEY_LENGTH]);
    match hex::decode_to_slice(text, key.as_mut_slice()) {
        Ok(()) => Ok(key),
        Err(_) => Err(format!("is not a key: {KEY_WANTED}")),
    }
}

fn operator_token(text: &str) -> Result<Secret, String> {
    let is_long_enough = text.len() >= LEAST_TOKEN_LENGTH;
    // Other characters cannot be sent in an Authorization header.
    if is_long_enough && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::from(text.to_owned()))
    } else {
        Err(format!(
            "is shorter than {LEAST_TOKEN_LENGTH} characters or has others than visible ASCII: {TOKEN_WANTED}"
        ))
    }
}
