//! What a message looks like: a version, and up to [`MOST_POINTERS`] pointers of fixed length, big-endian.
//!
//! ```text
//! 1 │ tenant (16) │ endpoint (16) │ delivery (16) │ attempt number (4) │ tenant …
//! ```

use uuid::Uuid;

use crate::id::{DeliveryId, EndpointId, TenantId};

/// Pointers in one message. A broker handles each message on its own, so the cost of one is shared by many deliveries;
/// a message stays unacknowledged until the last of them has ended, so not by too many.
pub const MOST_POINTERS: usize = 64;

const VERSION: u8 = 1;
const POINTER_BYTES: usize = 3 * 16 + 4;

/// A delivery that is ready, or will be when the message arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    pub delivery_id: DeliveryId,
    /// Its newest attempt when the message was written: if the row says another number, the message is out of date.
    pub attempt_number: u32,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("the message is empty")]
    Empty,
    #[error(
        "version {0} of the message is unknown; another program, or another version of this one, wrote it"
    )]
    Version(u8),
    #[error("{0} bytes are no whole number of pointers from 1 to {MOST_POINTERS}")]
    Length(usize),
}

/// The messages that name these deliveries, as many as are needed.
pub fn write(pointers: &[Pointer]) -> impl Iterator<Item = Vec<u8>> {
    pointers.chunks(MOST_POINTERS).map(|pointers| {
        let mut bytes = Vec::with_capacity(1 + pointers.len() * POINTER_BYTES);
        bytes.push(VERSION);
        for pointer in pointers {
            bytes.extend_from_slice(pointer.tenant_id.as_uuid().as_bytes());
            bytes.extend_from_slice(pointer.endpoint_id.as_uuid().as_bytes());
            bytes.extend_from_slice(pointer.delivery_id.as_uuid().as_bytes());
            bytes.extend_from_slice(&pointer.attempt_number.to_be_bytes());
        }
        bytes
    })
}

/// Reads a message.
///
/// # Errors
/// Whatever [`write()`] would not have written, by its length or version.
pub fn read(bytes: &[u8]) -> Result<Vec<Pointer>, Unreadable> {
    let (&version, rest) = bytes.split_first().ok_or(Unreadable::Empty)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let (pointers, left) = rest.as_chunks::<POINTER_BYTES>();
    if !left.is_empty() || pointers.is_empty() || pointers.len() > MOST_POINTERS {
        return Err(Unreadable::Length(rest.len()));
    }
    pointers.iter().map(|bytes| pointer(bytes).ok_or(Unreadable::Length(rest.len()))).collect()
}

fn pointer(bytes: &[u8; POINTER_BYTES]) -> Option<Pointer> {
    let (ids, attempt_number) = bytes.split_last_chunk::<4>()?;
    let mut ids = ids.as_chunks::<16>().0.iter().map(|id| Uuid::from_bytes(*id));
    Some(Pointer {
        tenant_id: TenantId::from_uuid(ids.next()?),
        endpoint_id: EndpointId::from_uuid(ids.next()?),
        delivery_id: DeliveryId::from_uuid(ids.next()?),
        attempt_number: u32::from_be_bytes(*attempt_number),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pointer(number: u128) -> Pointer {
        Pointer {
            tenant_id: TenantId::from_uuid(Uuid::from_u128(number)),
            endpoint_id: EndpointId::from_uuid(Uuid::from_u128(number + 1)),
            delivery_id: DeliveryId::from_uuid(Uuid::from_u128(number + 2)),
            attempt_number: u32::try_from(number).unwrap_or(u32::MAX),
        }
    }

    #[test]
    fn what_was_written_is_read_and_long_lists_take_several_messages() {
        for (count, messages) in [(0, 0), (1, 1), (MOST_POINTERS, 1), (MOST_POINTERS + 1, 2)] {
            let pointers: Vec<Pointer> = (0..count as u128).map(pointer).collect();
            let written: Vec<Vec<u8>> = write(&pointers).collect();
            assert_eq!(written.len(), messages);
            let back: Vec<Pointer> =
                written.iter().flat_map(|bytes| read(bytes).expect("a message")).collect();
            assert_eq!(back, pointers);
        }
    }

    #[test]
    fn bytes_of_another_kind_are_refused() {
        let whole = write(&[pointer(7)]).next().expect("a message");
        let too_many: Vec<u8> =
            std::iter::once(VERSION).chain([0; POINTER_BYTES].repeat(MOST_POINTERS + 1)).collect();
        for (bytes, expected) in [
            (&[][..], Unreadable::Empty),
            (&[VERSION], Unreadable::Length(0)),
            (&[2, 1, 2, 3], Unreadable::Version(2)),
            (b"{\"delivery\":1}", Unreadable::Version(b'{')),
            (&whole[..whole.len() - 1], Unreadable::Length(POINTER_BYTES - 1)),
            (&too_many, Unreadable::Length(too_many.len() - 1)),
        ] {
            assert_eq!(read(bytes), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(pointers) = read(&bytes) {
                prop_assert_eq!(write(&pointers).next(), Some(bytes));
            }
        }
    }
}
