//! Typed ids: a UUID with a printed prefix, so that a delivery's id cannot be taken for an event's.
//!
//! Most are UUIDv7 (RFC 9562): sorted by the millisecond they were made in. An event's id leaves its last 16 bits
//! zero; its deliveries take the numbers that follow, so they lie beside each other in every index and each names
//! its event without a lookup.

use std::{fmt, str::FromStr};

use uuid::Uuid;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an id such as `{prefix}_` followed by 32 hexadecimal digits")]
pub struct Error {
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Takes a UUID as an id of this kind; for values read from the database.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "_{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                parse(text, $prefix).map(Self)
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(/// A customer of this installation. Every business row carries one.
    TenantId, "ten");
id!(/// A publisher within a tenant.
    ApplicationId, "app");
id!(/// A destination with a URL.
    EndpointId, "end");
id!(/// Which event types of which application go to which endpoint.
    SubscriptionId, "sub");
id!(/// A credential for the management API.
    ManagementKeyId, "key");
id!(/// A secret that requests to one endpoint are signed with; receivers see it as `Postrider-Key-Id`.
    SigningKeyId, "sig");
id!(/// A person who logs in.
    UserId, "usr");
id!(/// One login of a user.
    SessionId, "ses");
id!(/// One entry of the audit log.
    AuditId, "aud");
id!(/// A secret that endpoints name, to be sent to vendors.
    CredentialId, "crd");
id!(/// One accepted event.
    EventId, "evt");
id!(/// One event on its way to one endpoint; stable over retries and replays, so receivers dedupe by it.
    DeliveryId, "dlv");
id!(/// Many dead letters that are sent again together.
    ReplayId, "rpl");
id!(/// One running process.
    InstanceId, "ins");
id!(/// The fencing token of a lease: whoever writes a result must still hold it.
    LeaseToken, "lea");

/// Deliveries one event can have at most: its places are numbered in 16 bits.
pub const MAX_DELIVERIES_PER_EVENT: u16 = u16::MAX;

const PLACE_MASK: u128 = 0xffff;

impl EventId {
    /// Makes an event's id from a fresh UUIDv7 by clearing the bits that number its deliveries.
    pub const fn from_fresh(uuid: Uuid) -> Self {
        Self(Uuid::from_u128(uuid.as_u128() & !PLACE_MASK))
    }

    /// The delivery in the given place of the fan-out plan, counted from 1.
    pub const fn delivery(self, place: std::num::NonZeroU16) -> DeliveryId {
        DeliveryId(Uuid::from_u128(self.0.as_u128() | place.get() as u128))
    }

    /// The last id a delivery of this event can have; with `self` it bounds the event's deliveries.
    pub const fn last_delivery(self) -> DeliveryId {
        DeliveryId(Uuid::from_u128(self.0.as_u128() | PLACE_MASK))
    }
}

impl DeliveryId {
    /// The event this delivery carries.
    pub const fn event(self) -> EventId {
        EventId(Uuid::from_u128(self.0.as_u128() & !PLACE_MASK))
    }
}

fn parse(text: &str, prefix: &'static str) -> Result<Uuid, Error> {
    let error = Error { prefix };
    let digits = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')).ok_or(error.clone())?;
    let is_canonical = digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !is_canonical {
        return Err(error);
    }
    Uuid::try_parse(digits).map_err(|_| error)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_print_their_kind_and_refuse_another() {
        let id = EventId::from_uuid(Uuid::from_u128(0x0192_f3a0_0000_7000_8000_0000_0001_0000));
        assert_eq!(id.to_string(), "evt_0192f3a0000070008000000000010000");
        assert_eq!("evt_0192f3a0000070008000000000010000".parse(), Ok(id));
        for wrong in [
            "dlv_0192f3a0000070008000000000010000",
            "0192f3a0000070008000000000010000",
            "evt_0192F3A0000070008000000000010000",
            "evt_0192f3a0-0000-7000-8000-000000010000",
            "evt_0192f3a000007000800000000001000",
            "evt_",
            "",
        ] {
            assert!(wrong.parse::<EventId>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_delivery_knows_its_event(fresh: u128, place in 1..=u16::MAX) {
            let event = EventId::from_fresh(Uuid::from_u128(fresh));
            let delivery = event.delivery(NonZeroU16::new(place).expect("places start at 1"));
            prop_assert_eq!(delivery.event(), event);
            prop_assert!(delivery.as_uuid() > event.as_uuid());
            prop_assert!(delivery <= event.last_delivery());
            prop_assert_eq!(delivery.to_string().parse(), Ok(delivery));
        }
    }
}
