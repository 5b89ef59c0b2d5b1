//! Seals secrets for the database: AES-256-GCM (NIST SP 800-38D) in an envelope that names its key.
//!
//! Envelope: version byte, 4 bytes of key id, 12 bytes of nonce, ciphertext with its 16-byte tag. Invariant: what is
//! sealed for one purpose, tenant and row opens nowhere else, because all three and the envelope's head are
//! authenticated with it. Nonces are random and come in as values: 96 random bits are safe for 2^32 seals per key.

use std::fmt;

use aes_gcm::{
    Aes256Gcm, KeyInit as _,
    aead::{Aead as _, Payload},
};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use zeroize::{Zeroize as _, Zeroizing};

use crate::id::TenantId;

/// Length of a key in bytes.
pub const KEY_LENGTH: usize = 32;
/// Length of a nonce in bytes.
pub const NONCE_LENGTH: usize = 12;

const VERSION: u8 = 1;
const KEY_ID_LENGTH: usize = 4;
const HEAD_LENGTH: usize = 1 + KEY_ID_LENGTH;
const CIPHERTEXT_START: usize = HEAD_LENGTH + NONCE_LENGTH;
const TAG_LENGTH: usize = 16;

/// Why an envelope does not open. The texts never repeat what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("sealed under encryption key {0}, which this process does not hold; start it with that key")]
    UnknownKey(KeyId),
    #[error("the sealed value is damaged, or was moved from another row")]
    Damaged,
    #[error("the sealed value has a form this version does not know")]
    UnknownVersion,
    #[error("two encryption keys are the same, or have the same key id")]
    KeysCollide,
}

/// What an envelope calls its key: the beginning of the key's SHA-256. Says nothing about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; KEY_ID_LENGTH]);

/// What kind of secret an envelope holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A key that requests to an endpoint are signed with; the row is the signing key's.
    SigningSecret,
    /// An endpoint's custom headers; the row is the endpoint's.
    EndpointHeaders,
    /// What a vendor wants to see; the row is the credential's.
    Credential,
    /// The query of an endpoint's URL; the row is the endpoint's.
    EndpointQuery,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::SigningSecret => b"signing-secret\0",
            Self::EndpointHeaders => b"endpoint-headers\0",
            Self::Credential => b"credential\0",
            Self::EndpointQuery => b"endpoint-query\0",
        }
    }
}

/// Where a sealed value belongs. It opens only under the context it was sealed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    pub purpose: Purpose,
    pub tenant: TenantId,
    pub row: Uuid,
}

/// The encryption keys of this installation: one that seals, and while it is replaced others that only open: the one
/// before, and the one to come, under which processes seal that were started anew already.
pub struct Keyring {
    current: Key,
    previous: Option<Key>,
    next: Option<Key>,
}

struct Key {
    id: KeyId,
    cipher: Aes256Gcm,
}

impl Keyring {
    /// Takes the keys over and wipes them. Two keys whose ids are the same are refused: an envelope could not say
    /// which one it needs.
    pub fn new(current: [u8; KEY_LENGTH], previous: Option<[u8; KEY_LENGTH]>) -> Result<Self, Error> {
        let (current, previous) = (Key::new(current), previous.map(Key::new));
        match &previous {
            Some(previous) if previous.id == current.id => Err(Error::KeysCollide),
            Some(_) | None => Ok(Self { current, previous, next: None }),
        }
    }

    /// Also opens what is sealed under the key to come.
    pub fn with_next(self, next: [u8; KEY_LENGTH]) -> Result<Self, Error> {
        let next = Key::new(next);
        if self.keys().any(|key| key.id == next.id) {
            return Err(Error::KeysCollide);
        }
        Ok(Self { next: Some(next), ..self })
    }

    /// The key that seals.
    pub const fn current_id(&self) -> KeyId {
        self.current.id
    }

    /// Whether what this key sealed can be opened.
    pub fn holds(&self, id: KeyId) -> bool {
        self.keys().any(|key| key.id == id)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        [Some(&self.current), self.previous.as_ref(), self.next.as_ref()].into_iter().flatten()
    }

    /// Seals under the current key. `nonce` must be fresh random bytes: a repeated one breaks the cipher.
    pub fn seal(&self, nonce: [u8; NONCE_LENGTH], context: &Context, plaintext: &[u8]) -> Vec<u8> {
        let mut envelope = Vec::with_capacity(CIPHERTEXT_START + plaintext.len() + TAG_LENGTH);
        envelope.push(VERSION);
        envelope.extend_from_slice(&self.current.id.0);
        envelope.extend_from_slice(&nonce);
        let associated = context.associated_data(&envelope[..HEAD_LENGTH]);
        // AES-GCM refuses only plaintexts beyond 64 GiB; an envelope without ciphertext would fail to open as
        // `Damaged`, never show plaintext.
        let ciphertext = encrypt(&self.current.cipher, nonce, &associated, plaintext).unwrap_or_default();
        envelope.extend_from_slice(&ciphertext);
        envelope
    }

    /// Opens an envelope of any key on the ring.
    pub fn open(&self, context: &Context, envelope: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        if envelope.len() < CIPHERTEXT_START + TAG_LENGTH {
            return Err(Error::Damaged);
        }
        let (head, rest) = envelope.split_at(HEAD_LENGTH);
        let (nonce, ciphertext) = rest.split_at(NONCE_LENGTH);
        if head[0] != VERSION {
            return Err(Error::UnknownVersion);
        }
        let (Ok(key_id), Ok(nonce)) = (KeyId::try_from(&head[1..]), nonce.try_into()) else {
            return Err(Error::Damaged);
        };
        let key = self.keys().find(|key| key.id == key_id).ok_or(Error::UnknownKey(key_id))?;
        let opened = decrypt(&key.cipher, nonce, &context.associated_data(head), ciphertext);
        opened.map(Zeroizing::new).ok_or(Error::Damaged)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |key: &Key| key.id.to_string();
        formatter
            .debug_struct("Keyring")
            .field("current", &text(&self.current))
            .field("previous", &self.previous.as_ref().map(text))
            .field("next", &self.next.as_ref().map(text))
            .finish_non_exhaustive()
    }
}

impl Key {
    fn new(mut bytes: [u8; KEY_LENGTH]) -> Self {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let cipher = Aes256Gcm::new(&bytes.into());
        bytes.zeroize();
        let [first, second, third, fourth, ..] = digest;
        Self { id: KeyId([first, second, third, fourth]), cipher }
    }
}

impl KeyId {
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for KeyId {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl Context {
    /// The label ends in a zero byte and the rest has a fixed length, so no two contexts read the same.
    fn associated_data(&self, head: &[u8]) -> Vec<u8> {
        [head, self.purpose.label(), self.tenant.as_uuid().as_bytes(), self.row.as_bytes()].concat()
    }
}

fn encrypt(
    cipher: &Aes256Gcm,
    nonce: [u8; NONCE_LENGTH],
    associated: &[u8],
    plaintext: &[u8],
) -> Option<Vec<u8>> {
    cipher.encrypt(&nonce.into(), Payload { msg: plaintext, aad: associated }).ok()
}

fn decrypt(
    cipher: &Aes256Gcm,
    nonce: [u8; NONCE_LENGTH],
    associated: &[u8],
    ciphertext: &[u8],
) -> Option<Vec<u8>> {
    cipher.decrypt(&nonce.into(), Payload { msg: ciphertext, aad: associated }).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn context(purpose: Purpose, tenant: u128, row: u128) -> Context {
        Context { purpose, tenant: TenantId::from_uuid(Uuid::from_u128(tenant)), row: Uuid::from_u128(row) }
    }

    #[test]
    fn opens_only_where_it_was_sealed() {
        let keyring = Keyring::new([1; 32], None).expect("keyring");
        let here = context(Purpose::SigningSecret, 1, 2);
        let envelope = keyring.seal([9; 12], &here, b"secret");
        assert_eq!(keyring.open(&here, &envelope).expect("opens").as_slice(), b"secret");
        for elsewhere in [
            context(Purpose::EndpointHeaders, 1, 2),
            context(Purpose::Credential, 1, 2),
            context(Purpose::SigningSecret, 2, 2),
            context(Purpose::SigningSecret, 1, 3),
            context(Purpose::SigningSecret, 2, 1),
        ] {
            assert_eq!(keyring.open(&elsewhere, &envelope), Err(Error::Damaged), "{elsewhere:?}");
        }
    }

    #[test]
    fn a_rotation_opens_both_and_seals_with_the_new_key() {
        let before = Keyring::new([1; 32], None).expect("keyring");
        let during = Keyring::new([2; 32], Some([1; 32])).expect("keyring");
        let after = Keyring::new([2; 32], None).expect("keyring");
        let place = context(Purpose::SigningSecret, 1, 2);
        let old = before.seal([3; 12], &place, b"old");
        assert!(during.open(&place, &old).is_ok());
        assert_eq!(after.open(&place, &old), Err(Error::UnknownKey(before.current.id)));
        let new = during.seal([4; 12], &place, b"new");
        assert!(after.open(&place, &new).is_ok());
        assert_eq!(before.open(&place, &new), Err(Error::UnknownKey(after.current.id)));
        assert_eq!(Keyring::new([1; 32], Some([1; 32])).err(), Some(Error::KeysCollide));
    }

    #[test]
    fn the_key_to_come_opens_and_does_not_seal() {
        let ring =
            |current, next| Keyring::new([current; 32], None).and_then(|ring| ring.with_next([next; 32]));
        let (ahead, after) = (ring(1, 2).expect("keyring"), Keyring::new([2; 32], None).expect("keyring"));
        let place = context(Purpose::SigningSecret, 1, 2);
        assert!(ahead.open(&place, &after.seal([3; 12], &place, b"new")).is_ok());
        assert_eq!(
            after.open(&place, &ahead.seal([4; 12], &place, b"old")),
            Err(Error::UnknownKey(ahead.current_id()))
        );
        assert!(ahead.holds(after.current_id()) && !after.holds(ahead.current_id()));
        assert_eq!(ring(1, 1).err(), Some(Error::KeysCollide));
        let both = Keyring::new([1; 32], Some([2; 32])).and_then(|ring| ring.with_next([2; 32]));
        assert_eq!(both.err(), Some(Error::KeysCollide));
    }

    #[test]
    fn debug_output_shows_ids_only() {
        let shown = format!("{:?}", Keyring::new([1; 32], None).expect("keyring"));
        assert_eq!(shown, "Keyring { current: \"72cd6e84\", previous: None, next: None, .. }");
    }

    #[test]
    fn published_vectors() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../../../cases/signature-vectors.json")).expect("JSON");
        let bytes = |vector: &serde_json::Value, field: &str| {
            ::hex::decode(vector[field].as_str().unwrap_or_default()).expect("hexadecimal")
        };
        let vectors = file["vectors"].as_array().expect("vectors");
        let mut checked = 0;
        for vector in vectors.iter().filter(|vector| vector["scheme"] == "aes-256-gcm") {
            let key: [u8; 32] = bytes(vector, "key_hex").try_into().expect("key");
            let cipher = Aes256Gcm::new(&key.into());
            let nonce: [u8; 12] = bytes(vector, "nonce_hex").try_into().expect("nonce");
            let sealed = [bytes(vector, "ciphertext_hex"), bytes(vector, "tag_hex")].concat();
            let (associated, plaintext) = (bytes(vector, "aad_hex"), bytes(vector, "plaintext_hex"));
            let opened = decrypt(&cipher, nonce, &associated, &sealed);
            if vector["expect"] == "valid" {
                assert_eq!(opened, Some(plaintext.clone()), "{}", vector["id"]);
                assert_eq!(
                    encrypt(&cipher, nonce, &associated, &plaintext),
                    Some(sealed),
                    "{}",
                    vector["id"]
                );
            } else {
                assert_eq!(opened, None, "{}", vector["id"]);
            }
            checked += 1;
        }
        assert!(checked >= 2, "the file holds AES-GCM vectors");
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(plaintext: Vec<u8>, nonce: [u8; 12], place: prop::sample::Index, bit in 0..8u32) {
            let keyring = Keyring::new([1; 32], None).expect("keyring");
            let context = context(Purpose::SigningSecret, 1, 2);
            let mut envelope = keyring.seal(nonce, &context, &plaintext);
            let opened = keyring.open(&context, &envelope).expect("opens");
            prop_assert_eq!(&*opened, &plaintext);
            let place = place.index(envelope.len());
            prop_assert!(keyring.open(&context, &envelope[..place]).is_err());
            envelope[place] ^= 1 << bit;
            prop_assert!(keyring.open(&context, &envelope).is_err());
        }
    }
}
