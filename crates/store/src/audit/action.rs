//! What can be done that the audit log remembers.

use std::str::FromStr;

/// Why a text is not an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an action is written like `endpoint.created`; the API guide lists them")]
pub struct Unknown;

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What was done, or tried.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[$doc])* $name,)*
        }

        impl Action {
            /// Every action, for documentation and tests.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The stable identifier, as it is stored and shown.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

actions! {
    TenantCreated = "tenant.created",
    TenantChanged = "tenant.changed",
    ApplicationCreated = "application.created",
    ApplicationChanged = "application.changed",
    ApplicationTokenRotated = "application.token_rotated",
    EndpointCreated = "endpoint.created",
    EndpointChanged = "endpoint.changed",
    EndpointDeleted = "endpoint.deleted",
    EndpointSecretRotated = "endpoint.secret_rotated",
    /// The receiver answered `410 Gone`.
    EndpointGone = "endpoint.gone",
    /// A tenant's part of the registry became a new version.
    RegistryApplied = "registry.applied",
    CredentialCreated = "credential.created",
    CredentialReplaced = "credential.replaced",
    CredentialDeleted = "credential.deleted",
    SubscriptionCreated = "subscription.created",
    SubscriptionChanged = "subscription.changed",
    SubscriptionDeleted = "subscription.deleted",
    KeyIssued = "key.issued",
    KeyRevoked = "key.revoked",
    UserCreated = "user.created",
    UserChanged = "user.changed",
    UserDeleted = "user.deleted",
    LoginSucceeded = "login.succeeded",
    LoginRefused = "login.refused",
    LoginThrottled = "login.throttled",
    DeliveryRetried = "delivery.retried",
    ReplayPreviewed = "replay.previewed",
    ReplayStarted = "replay.started",
    ReplayCancelled = "replay.cancelled",
    /// It came to its end by itself.
    ReplayFinished = "replay.finished",
    ApplicationTokenRevoked = "application.token_revoked",
    EncryptionKeyRotationBegun = "encryption_key.rotation_begun",
    EncryptionKeyRotated = "encryption_key.rotated",
    PepperRotated = "pepper.rotated",
    PepperRotationCancelled = "pepper.rotation_cancelled",
    PepperRotationFinished = "pepper.rotation_finished",
    /// A known credential without the right to do it, or of another tenant.
    AccessRefused = "access.refused",
}

impl FromStr for Action {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Self::ALL.iter().copied().find(|action| action.as_str() == text).ok_or(Unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn actions_are_distinct_and_read_back_as_written() {
        let texts: HashSet<_> = Action::ALL.iter().map(|action| action.as_str()).collect();
        assert_eq!(texts.len(), Action::ALL.len());
        for action in Action::ALL {
            assert_eq!(action.as_str().parse(), Ok(*action));
        }
        assert_eq!("endpoint.exploded".parse::<Action>(), Err(Unknown));
    }
}
