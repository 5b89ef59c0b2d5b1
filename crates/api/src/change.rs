//! One member of a JSON merge patch (RFC 7396): left out, `null`, or a value.

use serde::{Deserialize, Deserializer};

/// What a patch says about one member. Declare it with `#[serde(default)]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Change<T> {
    /// Left out: keep what is there.
    #[default]
    Keep,
    /// `null`: remove it, which for a setting means back to the default.
    Remove,
    Set(T),
}

impl<T> Change<T> {
    /// Whether the patch says anything about the member.
    pub(crate) const fn is_given(&self) -> bool {
        !matches!(self, Self::Keep)
    }

    /// The value after the change.
    pub(crate) fn apply(self, current: T, default: T) -> T {
        match self {
            Self::Keep => current,
            Self::Remove => default,
            Self::Set(value) => value,
        }
    }

    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Self::Keep => Change::Keep,
            Self::Remove => Change::Remove,
            Self::Set(value) => Change::Set(convert(value)),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Remove, Self::Set))
    }
}

/// The names of those members that were given, for the audit log.
pub(crate) fn names_of_given<const N: usize>(members: [(&'static str, bool); N]) -> Vec<&'static str> {
    members.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
}

/// A member that can be left out but not removed: `null` is refused. For `#[serde(default, deserialize_with)]`.
pub(crate) fn not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Patch {
        #[serde(default)]
        size: Change<u8>,
        #[serde(default, deserialize_with = "not_null")]
        enabled: Option<bool>,
    }

    #[test]
    fn absent_null_and_value_are_three_things() {
        for (text, expected) in
            [("{}", Change::Keep), (r#"{"size":null}"#, Change::Remove), (r#"{"size":3}"#, Change::Set(3))]
        {
            let patch: Patch = serde_json::from_str(text).expect(text);
            assert_eq!((patch.size, patch.enabled), (expected, None), "{text}");
        }
        assert_eq!(
            [Change::Keep, Change::Remove, Change::Set(3)].map(|change| change.apply(1, 2)),
            [1, 2, 3]
        );
        assert!(serde_json::from_str::<Patch>(r#"{"enabled":null}"#).is_err());
    }
}
