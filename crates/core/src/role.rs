//! What a management credential may do: `owner` ⊃ `developer` ⊃ `viewer`.

use std::{fmt, str::FromStr};

/// The role of a management credential, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads, and nothing else.
    Viewer,
    /// Also changes resources, rotates secrets and sends dead letters again.
    Developer,
    /// Also issues and revokes credentials.
    Owner,
}

/// Why a text is not a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a role is `owner`, `developer` or `viewer`")]
pub struct Error;

impl Role {
    pub const ALL: &[Self] = &[Self::Viewer, Self::Developer, Self::Owner];

    /// Whether this role includes what `needed` may do.
    pub fn includes(self, needed: Self) -> bool {
        self >= needed
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Developer => "developer",
            Self::Owner => "owner",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.iter().copied().find(|role| role.as_str() == text).ok_or(Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_includes_the_lesser_ones() {
        for (has, needs, expected) in [
            (Role::Owner, Role::Owner, true),
            (Role::Owner, Role::Viewer, true),
            (Role::Developer, Role::Viewer, true),
            (Role::Developer, Role::Owner, false),
            (Role::Viewer, Role::Developer, false),
        ] {
            assert_eq!(has.includes(needs), expected, "{has} does what a {needs} may");
        }
    }

    #[test]
    fn roles_read_back_as_written() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(*role));
        }
        assert_eq!("Owner".parse::<Role>(), Err(Error));
    }
}
