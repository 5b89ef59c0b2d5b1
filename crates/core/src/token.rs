//! Bearer tokens: 256 random bits behind a prefix that says what they open, with a checksum against typing errors.
//!
//! `prp_` + 43 characters of base 62 + 6 characters of CRC-32, so that a mistyped token is refused without a lookup and
//! leak scanners find ours with few false alarms. Invariant: only an HMAC of a token under the installation's pepper
//! is ever stored.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

/// Length of every token in characters.
pub const LENGTH: usize = PREFIX_LENGTH + SECRET_LENGTH + CHECKSUM_LENGTH;
/// Shortest pepper in bytes.
pub const MIN_PEPPER_LENGTH: usize = 32;

const PREFIX_LENGTH: usize = 4;
/// 62^43 just exceeds 2^256.
const SECRET_LENGTH: usize = 43;
/// 62^6 exceeds 2^32.
const CHECKSUM_LENGTH: usize = 6;
const BODY_LENGTH: usize = PREFIX_LENGTH + SECRET_LENGTH;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Why a text is not a token, or a pepper not usable. The texts never repeat what was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a token is `prp_` or `prm_` followed by 49 letters and digits")]
    Form,
    #[error("the token's checksum is wrong: a character is missing or mistyped")]
    Checksum,
    #[error("the token pepper has at least {MIN_PEPPER_LENGTH} bytes")]
    PepperTooShort,
}

/// What a token opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Publishing events for one application: `prp_`.
    Publish,
    /// The management API of one tenant: `prm_`.
    Management,
}

impl Kind {
    const fn prefix(self) -> &'static [u8; PREFIX_LENGTH] {
        match self {
            Self::Publish => b"prp_",
            Self::Management => b"prm_",
        }
    }
}

/// A well-formed token. Whether it opens anything is for the one who holds the hashes to say.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Token {
    text: [u8; LENGTH],
    #[zeroize(skip)]
    kind: Kind,
}

impl Token {
    /// Makes a token from 32 random bytes.
    pub fn mint(kind: Kind, mut random: [u8; 32]) -> Self {
        let mut text = [0; LENGTH];
        text[..PREFIX_LENGTH].copy_from_slice(kind.prefix());
        write_base62(&mut random, &mut text[PREFIX_LENGTH..BODY_LENGTH]);
        random.zeroize();
        let checksum = checksum(&text[..BODY_LENGTH]);
        text[BODY_LENGTH..].copy_from_slice(&checksum);
        Self { text, kind }
    }

    /// Reads what a caller presented; refuses everything that [`Self::mint`] cannot have made by form or checksum.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text: [u8; LENGTH] = text.as_bytes().try_into().map_err(|_| Error::Form)?;
        let (prefix, rest) = text.split_at(PREFIX_LENGTH);
        let kind = [Kind::Publish, Kind::Management].into_iter().find(|kind| prefix == kind.prefix());
        let kind = kind.ok_or(Error::Form)?;
        if !rest.iter().all(u8::is_ascii_alphanumeric) {
            return Err(Error::Form);
        }
        if text[BODY_LENGTH..] != checksum(&text[..BODY_LENGTH]) {
            return Err(Error::Checksum);
        }
        Ok(Self { text, kind })
    }

    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The token itself, to be shown to its owner once.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(self.text.iter().map(|&byte| char::from(byte)).collect())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({:?}, redacted)", self.kind)
    }
}

/// The installation's secret that token hashes are keyed with: a stolen database alone cannot test guesses.
#[derive(Clone)]
pub struct Pepper(Hmac<Sha256>);

impl Pepper {
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < MIN_PEPPER_LENGTH {
            return Err(Error::PepperTooShort);
        }
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| Error::PepperTooShort)
    }

    /// What is stored and looked up instead of the token: HMAC-SHA256.
    ///
    /// A lookup by this value needs no constant-time comparison: without the pepper nobody can steer it.
    pub fn hash(&self, token: &Token) -> [u8; 32] {
        self.digest(b"token\0", &token.text)
    }

    /// Eight bytes that tell two peppers apart and say nothing about either: stored once, and compared at each start,
    /// so that a process with the wrong pepper refuses to start instead of refusing every token.
    pub fn fingerprint(&self) -> [u8; 8] {
        let mut fingerprint = [0; 8];
        fingerprint.copy_from_slice(&self.digest(b"fingerprint\0", &[])[..8]);
        fingerprint
    }

    fn digest(&self, label: &[u8], text: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(label).chain_update(text).finalize().into_bytes().into()
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pepper(redacted)")
    }
}

/// Compares two secrets of the operator's own choosing, such as the bootstrap token, in a time that tells neither
/// their content nor their length: their hashes are compared.
pub fn same_secret(presented: &str, expected: &str) -> bool {
    Sha256::digest(presented).ct_eq(&Sha256::digest(expected)).into()
}

/// Writes a big-endian number in base 62, most significant digit first, with leading zeros; uses up `number`.
fn write_base62(number: &mut [u8], into: &mut [u8]) {
    for digit in into.iter_mut().rev() {
        let mut remainder = 0_u16;
        for byte in number.iter_mut() {
            let value = remainder << 8 | u16::from(*byte);
            let [_, quotient] = (value / 62).to_be_bytes();
            *byte = quotient;
            remainder = value % 62;
        }
        *digit = ALPHABET[usize::from(remainder)];
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    let mut text = [0; CHECKSUM_LENGTH];
    write_base62(&mut crc32(body).to_be_bytes(), &mut text);
    text
}

/// CRC-32 as in gzip (RFC 1952 section 8).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| CRC_TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ crc >> 8;
    !bytes.iter().fold(u32::MAX, step)
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0_u32;
    while index < 256 {
        let (mut value, mut bit) = (index, 0);
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[index as usize] = value;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let check = |random, expected: &str| {
            assert_eq!(Token::mint(Kind::Publish, random).reveal()[..BODY_LENGTH], *expected);
        };
        check([0; 32], "prp_0000000000000000000000000000000000000000000");
        let mut one = [0; 32];
        one[31] = 63;
        check(one, "prp_0000000000000000000000000000000000000000011");
    }

    #[test]
    fn refused_texts() {
        let good = Token::mint(Kind::Management, [7; 32]).reveal();
        assert_eq!(Token::parse(&good).expect("own token").kind(), Kind::Management);
        let other_kind = good.replacen("prm_", "prp_", 1);
        let longer = format!("{}0", *good);
        let dashed = good.replacen(&good[10..11], "-", 1);
        for (text, expected) in [
            ("", Error::Form),
            (&good[1..], Error::Form),
            (longer.as_str(), Error::Form),
            (dashed.as_str(), Error::Form),
            (other_kind.as_str(), Error::Checksum),
        ] {
            assert_eq!(Token::parse(text).err(), Some(expected), "{text}");
        }
    }

    #[test]
    fn peppers() {
        assert_eq!(Pepper::new(&[1; 31]).err(), Some(Error::PepperTooShort));
        let (one, two) = (Pepper::new(&[1; 32]).expect("pepper"), Pepper::new(&[2; 100]).expect("pepper"));
        let token = Token::mint(Kind::Publish, [7; 32]);
        assert_ne!(one.hash(&token), two.hash(&token));
        assert_ne!(one.fingerprint(), two.fingerprint());
        assert_eq!(one.hash(&token), one.clone().hash(&Token::parse(&token.reveal()).expect("own token")));
        assert_eq!(format!("{one:?} {token:?}"), "Pepper(redacted) Token(Publish, redacted)");
    }

    #[test]
    fn secrets_of_the_operator() {
        for (presented, expected, same) in
            [("a", "a", true), ("a", "b", false), ("", "a", false), ("a", "", false), ("a", "aa", false)]
        {
            assert_eq!(same_secret(presented, expected), same, "{presented:?} {expected:?}");
        }
    }

    proptest! {
        #[test]
        fn any_single_typing_error_is_noticed(random: [u8; 32], place in 0..LENGTH, typed in "[0-9A-Za-z]") {
            let token = Token::mint(Kind::Publish, random).reveal();
            prop_assert_eq!(Token::parse(&token).expect("own token").reveal(), token.clone());
            let mut mistyped = token.to_string();
            mistyped.replace_range(place..=place, &typed);
            prop_assert_eq!(Token::parse(&mistyped).is_ok(), mistyped == *token);
        }
    }
}
