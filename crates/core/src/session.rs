//! Sessions of people who logged in: short-lived tokens that prove who it is, and nothing else. What somebody may do, and
//! in which tenant, is looked up with each request.
//!
//! A token is a JWT (RFC 7519) under HS256. Invariant: only what [`Keys::issue`] writes is taken. The header is compared as
//! a whole with the one or two that are possible, so no algorithm, key id or parameter of the caller's is ever looked at;
//! the encoding is canonical, each claim is there once and has its type, and there is no other.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::id::{SessionId, UserId};

/// How long a session lasts.
pub const LIFE: Duration = Duration::minutes(15);
/// How far the clocks of two processes may differ.
pub const LEEWAY: Duration = Duration::seconds(5);
/// Shortest secret in bytes: as long as the hash (RFC 7518, section 3.2).
pub const MIN_SECRET_LENGTH: usize = 32;
/// Longest token in characters; ours have some 400.
pub const MAX_LENGTH: usize = 1_024;

const ISSUER: &str = "postrider";
const AUDIENCE: &str = "postrider-management";

/// Why a secret is not usable, or a token not taken. The texts never repeat what was given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a session secret has at least {MIN_SECRET_LENGTH} bytes")]
    SecretTooShort,
    #[error("the previous session secret is the same as the current one")]
    SameSecret,
    #[error("the token is not one of ours, or was changed")]
    Forged,
    #[error("the session is over")]
    Expired,
    #[error("the cryptography library refuses")]
    Library(#[source] jsonwebtoken::errors::Error),
}

/// Who logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub user_id: UserId,
    /// Which of the user's credentials it was begun under: a later one ends it.
    pub credential_version: i64,
}

/// A token, to be shown to its owner once.
pub struct Issued {
    pub token: Zeroizing<String>,
    pub expires_at: OffsetDateTime,
}

/// The secrets that sessions are signed with: one that signs, and during a rotation the one before, which still verifies.
pub struct Keys {
    current: Key,
    previous: Option<Key>,
}

struct Key {
    id: String,
    /// The first part of every token under this key, encoded.
    header: String,
    signs: EncodingKey,
    verifies: DecodingKey,
}

/// What a token says. A member that is not listed here is refused, and so is one that is there twice.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: String,
    aud: String,
    sub: UserId,
    jti: SessionId,
    /// Seconds since 1970, whole ones.
    iat: i64,
    exp: i64,
    /// The credential's version.
    ver: i64,
}

impl Keys {
    /// # Errors
    /// Where a secret is too short, or both are the same.
    pub fn new(current: &[u8], previous: Option<&[u8]>) -> Result<Self, Error> {
        if previous == Some(current) {
            return Err(Error::SameSecret);
        }
        Ok(Self { current: Key::new(current)?, previous: previous.map(Key::new).transpose()? })
    }

    /// Begins a session, which lasts for [`LIFE`].
    pub fn issue(&self, session: Session, now: OffsetDateTime) -> Result<Issued, Error> {
        let issued_at = now.unix_timestamp();
        let expires_at = issued_at.saturating_add(LIFE.whole_seconds());
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: AUDIENCE.to_owned(),
            sub: session.user_id,
            jti: session.id,
            iat: issued_at,
            exp: expires_at,
            ver: session.credential_version,
        };
        let token = jsonwebtoken::encode(&header(&self.current.id), &claims, &self.current.signs);
        Ok(Issued {
            token: Zeroizing::new(token.map_err(Error::Library)?),
            expires_at: OffsetDateTime::from_unix_timestamp(expires_at).unwrap_or(now),
        })
    }

    /// Whose session a token is.
    ///
    /// # Errors
    /// Where it is not exactly one of ours, or its time is over.
    pub fn verify(&self, token: &str, now: OffsetDateTime) -> Result<Session, Error> {
        let key = self.key_of(token).ok_or(Error::Forged)?;
        let claims = jsonwebtoken::decode::<Claims>(token, &key.verifies, &validation());
        let claims = claims.map_err(|_refused| Error::Forged)?.claims;
        let is_ours = claims.exp.saturating_sub(claims.iat) == LIFE.whole_seconds();
        let (now, leeway) = (now.unix_timestamp(), LEEWAY.whole_seconds());
        if !is_ours || claims.iat.saturating_sub(leeway) > now {
            return Err(Error::Forged);
        }
        if claims.exp.saturating_add(leeway) <= now {
            return Err(Error::Expired);
        }
        Ok(Session { id: claims.jti, user_id: claims.sub, credential_version: claims.ver })
    }

    fn key_of(&self, token: &str) -> Option<&Key> {
        if token.len() > MAX_LENGTH || token.matches('.').count() != 2 {
            return None;
        }
        let (header, _) = token.split_once('.')?;
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten().find(|key| key.header == header)
    }
}

impl Key {
    fn new(secret: &[u8]) -> Result<Self, Error> {
        if secret.len() < MIN_SECRET_LENGTH {
            return Err(Error::SecretTooShort);
        }
        let id = key_id(secret)?;
        let signs = EncodingKey::from_secret(secret).map_err(Error::Library)?;
        let verifies = DecodingKey::from_secret(secret).map_err(Error::Library)?;
        // A library without its cryptography would panic here, at the start, and not at somebody's login.
        let any = jsonwebtoken::encode(&header(&id), &(), &signs).map_err(Error::Library)?;
        let header = any.split('.').next().unwrap_or_default().to_owned();
        Ok(Self { id, header, signs, verifies })
    }
}

/// Tells secrets apart and says nothing about them.
fn key_id(secret: &[u8]) -> Result<String, Error> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|_refused| Error::SecretTooShort)?;
    let digest = mac.chain_update(b"session key id\0").finalize().into_bytes();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    Ok(format!("{:016x}", u64::from_be_bytes(first)))
}

fn header(key_id: &str) -> Header {
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some(key_id.to_owned());
    header
}

/// The times are compared by the caller, with the clock of this program.
fn validation() -> Validation {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
    validation.set_audience(&[AUDIENCE]);
    validation.set_issuer(&[ISSUER]);
    validation.validate_exp = false;
    validation
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let previous = self.previous.as_ref().map(|key| &key.id);
        formatter
            .debug_struct("Keys")
            .field("current", &self.current.id)
            .field("previous", &previous)
            .finish()
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Issued").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
