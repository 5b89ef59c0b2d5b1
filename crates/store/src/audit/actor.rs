//! Who does what the audit log remembers.

use postrider_core::{
    id::{ApplicationId, ManagementKeyId, UserId},
    name::Name,
};
use uuid::Uuid;

/// Who acts. The name is the one of the moment, since keys and users go and the log stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Whoever holds the bootstrap token.
    Bootstrap,
    /// Whoever holds the metrics token.
    Metrics,
    ManagementKey {
        id: ManagementKeyId,
        name: Name,
    },
    User {
        id: UserId,
        email: String,
    },
    Application {
        id: ApplicationId,
        name: Name,
    },
    /// Whoever runs commands on the installation's machine.
    CommandLine,
    /// The program itself.
    Process,
    /// Nobody known: a login that failed.
    Anonymous,
}

/// What kind of actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorKind {
    Bootstrap,
    Metrics,
    ManagementKey,
    User,
    Application,
    CommandLine,
    Process,
    Anonymous,
}

impl Actor {
    pub const fn kind(&self) -> ActorKind {
        match self {
            Self::Bootstrap => ActorKind::Bootstrap,
            Self::Metrics => ActorKind::Metrics,
            Self::ManagementKey { .. } => ActorKind::ManagementKey,
            Self::User { .. } => ActorKind::User,
            Self::Application { .. } => ActorKind::Application,
            Self::CommandLine => ActorKind::CommandLine,
            Self::Process => ActorKind::Process,
            Self::Anonymous => ActorKind::Anonymous,
        }
    }

    pub(crate) fn id(&self) -> Option<Uuid> {
        match self {
            Self::ManagementKey { id, .. } => Some(id.as_uuid()),
            Self::User { id, .. } => Some(id.as_uuid()),
            Self::Application { id, .. } => Some(id.as_uuid()),
            Self::Bootstrap | Self::Metrics | Self::CommandLine | Self::Process | Self::Anonymous => None,
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::ManagementKey { name, .. } | Self::Application { name, .. } => Some(name.as_str()),
            Self::User { email, .. } => Some(email),
            Self::Bootstrap | Self::Metrics | Self::CommandLine | Self::Process | Self::Anonymous => None,
        }
    }
}

impl ActorKind {
    pub const ALL: &[Self] = &[
        Self::Bootstrap,
        Self::Metrics,
        Self::ManagementKey,
        Self::User,
        Self::Application,
        Self::CommandLine,
        Self::Process,
        Self::Anonymous,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Metrics => "metrics",
            Self::ManagementKey => "management_key",
            Self::User => "user",
            Self::Application => "application",
            Self::CommandLine => "command_line",
            Self::Process => "process",
            Self::Anonymous => "anonymous",
        }
    }
}
