//! Passwords: what a new one must be like, and how it is kept.
//!
//! Length counts and composition does not, as NIST SP 800-63B (section 3.1.1.2) asks: no rules about digits or capitals,
//! no expiry, no hints; what an attacker tries first is refused. Invariant: only an Argon2id hash with a salt of its own
//! leaves this module, and neither it nor the password appears in any `Debug` output.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, PasswordHasher as _, PasswordVerifier as _, Version};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::email::Email;

/// Shortest new password, in characters.
pub const MIN_CHARACTERS: usize = 12;
/// Longest new password, in characters.
pub const MAX_CHARACTERS: usize = 128;
/// Length of a hash's salt in bytes.
pub const SALT_LENGTH: usize = 16;

/// Memory of one hashing in KiB, passes over it and threads: the first set that the OWASP Password Storage Cheat Sheet
/// names for Argon2id with these bounds (19 MiB, 2, 1).
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// What is long enough, and among the first that anybody tries.
const COMMON: &[&str] = &[
    "123456789012",
    "1234567890123",
    "1234567890abc",
    "administrator",
    "changemechangeme",
    "correct horse battery staple",
    "correcthorsebatterystaple",
    "iloveyouiloveyou",
    "letmeinletmein",
    "password1234",
    "password12345",
    "passwordpassword",
    "postriderpostrider",
    "qwertyqwerty",
    "qwertyuiop123",
    "qwertyuiopasdfghjkl",
];

/// Why a new password is refused. The texts never repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a password has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters, any of them")]
    Length,
    #[error("the password is the e-mail address, or a part of it")]
    Email,
    #[error("the password is among the first that anybody would try")]
    Common,
}

/// The hash could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the password could not be hashed")]
pub struct Error(#[source] argon2::password_hash::Error);

/// A password as somebody typed it. Wiped from memory when dropped.
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

/// What is stored of a password: an Argon2id hash with its salt and parameters, as a PHC string.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash(Box<str>);

impl Password {
    /// Whether it may become the password of this person.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, email: &Email) -> Result<(), Refusal> {
        let text = self.0.as_str();
        if !(MIN_CHARACTERS..=MAX_CHARACTERS).contains(&text.chars().count()) {
            return Err(Refusal::Length);
        }
        let domain = email.as_str().rsplit('@').next().unwrap_or_default();
        if [email.as_str(), email.local_part(), domain].iter().any(|part| text.eq_ignore_ascii_case(part)) {
            return Err(Refusal::Email);
        }
        let mut characters = text.chars();
        let first = characters.next();
        let is_one_repeated = characters.all(|other| Some(other) == first);
        if is_one_repeated || COMMON.iter().any(|common| text.eq_ignore_ascii_case(common)) {
            return Err(Refusal::Common);
        }
        Ok(())
    }

    /// Takes tens of milliseconds of a core and 19 MiB.
    ///
    /// # Errors
    /// Where the memory cannot be had.
    pub fn hash(&self, salt: [u8; SALT_LENGTH]) -> Result<Hash, Error> {
        let hash = hasher().hash_password_with_salt(self.0.as_bytes(), &salt).map_err(Error)?;
        Ok(Hash(hash.to_string().into()))
    }

    /// Whether this is the password of that hash, in a time that depends on the hash's parameters alone. Takes as much
    /// as [`Self::hash`].
    pub fn is_of(&self, hash: &Hash) -> bool {
        let parsed = argon2::PasswordHash::new(&hash.0);
        parsed.is_ok_and(|parsed| hasher().verify_password(self.0.as_bytes(), &parsed).is_ok())
    }
}

/// The lengths are within their bounds, which a test proves, so the defaults never stand in.
fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None).unwrap_or(Params::DEFAULT);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

impl Hash {
    /// As it was stored.
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    /// To be stored, and shown to nobody.
    pub fn to_stored(&self) -> &str {
        &self.0
    }

    /// A hash that no known password has, for whoever has no account: comparing with it takes as long as with
    /// somebody's.
    pub fn of_nobody() -> Self {
        let (salt, output) = ("A".repeat(22), "A".repeat(43));
        Self(format!("$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${salt}${output}").into())
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Password {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Password(redacted)")
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hash(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_passwords_are_long_and_not_the_first_that_anybody_tries() {
        let email: Email = "ada.lovelace.1815@longdomain.example".parse().expect("address");
        for (text, expected) in [
            ("twelve chars", Ok(())),
            ("correct battery horse", Ok(())),
            ("ääääääääääöö", Ok(())),
            ("            .", Ok(())),
            (&"xy".repeat(64), Ok(())),
            ("", Err(Refusal::Length)),
            ("eleven char", Err(Refusal::Length)),
            ("ääääääääääö", Err(Refusal::Length)),
            (&"xy".repeat(65), Err(Refusal::Length)),
            ("Ada.Lovelace.1815@longdomain.example", Err(Refusal::Email)),
            ("ada.lovelace.1815", Err(Refusal::Email)),
            ("longdomain.EXAMPLE", Err(Refusal::Email)),
            ("PasswordPassword", Err(Refusal::Common)),
            ("aaaaaaaaaaaa", Err(Refusal::Common)),
        ] {
            assert_eq!(Password::from(text).check(&email), expected, "{text:?}");
        }
        for common in COMMON {
            assert!(common.chars().count() >= MIN_CHARACTERS, "{common} is refused for its length");
        }
    }

    #[test]
    fn a_hash_names_its_parameters_and_opens_with_its_password_alone() {
        let password = Password::from("twelve chars");
        let hash = password.hash([7; SALT_LENGTH]).expect("a hash");
        let prefix = "$argon2id$v=19$m=19456,t=2,p=1$";
        assert!(hash.to_stored().starts_with(prefix), "{}", hash.to_stored());
        assert!(password.is_of(&Hash::from_stored(hash.to_stored().to_owned())));
        assert!(!Password::from("twelve chart").is_of(&hash));
        assert_ne!(password.hash([8; SALT_LENGTH]).expect("a hash"), hash, "the salt counts");

        let nobody = Hash::of_nobody();
        assert!(nobody.to_stored().starts_with(prefix), "it takes as long");
        argon2::PasswordHash::new(nobody.to_stored())
            .expect("it is compared with, and not refused beforehand");
        assert!(!password.is_of(&nobody));
        assert!(!password.is_of(&Hash::from_stored("damaged".to_owned())));
        assert_eq!(format!("{password:?} {hash:?}"), "Password(redacted) Hash(redacted)");
    }
}
