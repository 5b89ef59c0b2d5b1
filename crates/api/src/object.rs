//! A JSON object and nothing else.
//!
//! Invariant: members are told by their names alone. A derived reader would take a list, too, as the members in the order
//! in which they are declared, which nobody means and nobody documents.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::change::Change;

/// What was read from an object.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData)).map(Self)
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

/// A member that is an object, and not `null`: `#[serde(default, deserialize_with = "given")]`.
pub(crate) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| Some(value))
}

/// A member of a patch that is an object: `#[serde(default, deserialize_with = "changed")]`.
pub(crate) fn changed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Change<T>, D::Error> {
    Change::deserialize(deserializer).map(|change| change.map(|Object(value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        size: u8,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default, deserialize_with = "given")]
        given: Option<Inner>,
        #[serde(default, deserialize_with = "changed")]
        changed: Change<Inner>,
    }

    #[test]
    fn objects_are_taken_and_lists_are_not() {
        let check = |text: &str, expected: Option<Outer>| {
            let read = serde_json::from_str::<Object<Outer>>(text);
            assert_eq!(read.ok().map(|Object(outer)| outer), expected, "{text}");
        };
        check(" {} ", Some(Outer { given: None, changed: Change::Keep }));
        check(
            r#"{"given":{"size":1},"changed":{"size":2}}"#,
            Some(Outer { given: Some(Inner { size: 1 }), changed: Change::Set(Inner { size: 2 }) }),
        );
        check(r#"{"changed":null}"#, Some(Outer { given: None, changed: Change::Remove }));
        for text in [
            "[]",
            r#"[{"size":1},{"size":2}]"#,
            "null",
            r#"{"given":null}"#,
            r#"{"given":[1]}"#,
            r#"{"changed":[1]}"#,
            r#"{"changed":{"size":1,"more":1}}"#,
        ] {
            check(text, None);
        }
    }
}
