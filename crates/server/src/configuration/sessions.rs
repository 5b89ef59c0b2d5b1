//! What sessions of people who log in are signed with.

use std::sync::Arc;

use postrider_core::session::{Keys, MIN_SECRET_LENGTH};

use super::{
    setting,
    source::{Recorded, Secret, Source},
};

const SECRET_WANTED: &str = "give 32 bytes or more, for example from `openssl rand -hex 32`";

#[derive(Debug)]
pub(crate) struct Sessions {
    /// Without them nobody can log in.
    pub(crate) keys: Option<Arc<Keys>>,
}

impl Sessions {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let current = source.optional(&setting::JWT_SECRET, secret);
        let previous = source.optional(&setting::JWT_SECRET_PREVIOUS, secret);
        let (current, previous) = (current?, previous?);
        let Some(current) = current else {
            return match previous {
                None => Ok(Self { keys: None }),
                Some(_) => Err(source.record(
                    &setting::JWT_SECRET_PREVIOUS,
                    format!("is set, but {} is not: set both, or neither", setting::JWT_SECRET.variable),
                )),
            };
        };
        let previous = previous.as_ref().map(|secret| secret.reveal().as_bytes());
        let keys = Keys::new(current.reveal().as_bytes(), previous);
        keys.map(|keys| Self { keys: Some(Arc::new(keys)) })
            .map_err(|error| source.record(&setting::JWT_SECRET_PREVIOUS, format!("cannot be used: {error}")))
    }
}

fn secret(text: &str) -> Result<Secret, String> {
    if text.len() >= MIN_SECRET_LENGTH {
        Ok(Secret::from(text.to_owned()))
    } else {
        Err(format!("is shorter than {MIN_SECRET_LENGTH} bytes: {SECRET_WANTED}"))
    }
}
