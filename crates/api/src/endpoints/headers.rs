//! Custom request headers. Their values may be credentials: they are sealed for the row of their endpoint and never
//! shown again; reads show names only.

use std::fmt;

use http::HeaderMap;
use postrider_core::{
    header::CustomHeaders,
    id::{EndpointId, TenantId},
    seal::{Context, Purpose},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::{problem::Problem, random, state::State};

const FIELD: &str = "headers";

/// Members of a JSON object in the order they came, repeated ones included: a name given twice is refused rather than
/// decided by whichever came last. A `null` removes.
#[derive(Default)]
pub(crate) struct HeaderChanges(Vec<(String, Option<String>)>);

impl fmt::Debug for HeaderChanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Whose headers they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) tenant_id: TenantId,
    pub(crate) endpoint_id: EndpointId,
}

impl Owner {
    const fn context(self) -> Context {
        Context { purpose: Purpose::EndpointHeaders, tenant: self.tenant_id, row: self.endpoint_id.as_uuid() }
    }
}

/// Opens the headers of an endpoint.
pub(crate) fn open(owner: Owner, sealed: Option<&[u8]>, state: &State) -> Result<CustomHeaders, Problem> {
    let Some(sealed) = sealed else {
        return Ok(CustomHeaders::default());
    };
    let stored = state.keyring.open(&owner.context(), sealed).map_err(|error| Problem::internal(&error))?;
    CustomHeaders::from_stored(&stored).map_err(|error| Problem::internal(&error))
}

/// Seals headers for the database; `None` where there are none.
pub(super) fn seal(owner: Owner, headers: &CustomHeaders, state: &State) -> Result<Option<Vec<u8>>, Problem> {
    if headers.is_empty() {
        return Ok(None);
    }
    Ok(Some(state.keyring.seal(random::bytes()?, &owner.context(), &headers.to_stored())))
}

impl HeaderChanges {
    /// The headers after the change: those that it names are set or removed, the others stay.
    pub(super) fn apply(&self, current: &CustomHeaders) -> Result<CustomHeaders, Problem> {
        let mut kept = HeaderMap::new();
        current.append_to(&mut kept);
        for (name, _) in &self.0 {
            kept.remove(name.as_str());
        }
        let kept = kept.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let set = self.0.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)));
        CustomHeaders::from_pairs(kept.chain(set))
            .map_err(|refusal| Problem::invalid_field(FIELD, refusal.to_string()))
    }

    /// Refuses to send values that were meant for one URL to another: they may be credentials, so whoever changes where
    /// requests go must know them. A host may be shared, and whoever has another path on it could read them there.
    pub(super) fn require_all_of(&self, current: &CustomHeaders) -> Result<(), Problem> {
        let is_named = |name: &str| self.0.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let silent: Vec<&str> = current.names().filter(|name| !is_named(name)).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(Problem::invalid_field(
            FIELD,
            format!(
                "they were given for the URL before: give these headers a value again, or null to remove them: {}",
                silent.join(", ")
            ),
        ))
    }
}

impl<'de> Deserialize<'de> for HeaderChanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = HeaderChanges;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of header names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderChanges, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(HeaderChanges(members))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::problem::Code;

    use super::*;

    fn changes(text: &str) -> HeaderChanges {
        serde_json::from_str(text).expect(text)
    }

    #[test]
    fn a_change_sets_removes_and_keeps() {
        let current = CustomHeaders::from_pairs([("x-a", "1"), ("x-b", "2")]).expect("headers");
        let check = |text: &str, expected: &[(&str, &str)]| {
            let expected = CustomHeaders::from_pairs(expected.iter().copied()).expect("headers");
            assert_eq!(changes(text).apply(&current).expect(text), expected, "{text}");
        };
        check("{}", &[("x-a", "1"), ("x-b", "2")]);
        check(r#"{"X-A":"3"}"#, &[("x-b", "2"), ("x-a", "3")]);
        check(r#"{"x-a":null,"x-b":null,"x-c":"4"}"#, &[("x-c", "4")]);
        check(r#"{"x-unknown":null}"#, &[("x-a", "1"), ("x-b", "2")]);
    }

    #[test]
    fn names_given_twice_are_refused_and_values_are_not_repeated() {
        for text in [
            r#"{"x-c":"hidden","x-c":"hidden"}"#,
            r#"{"x-c":"hidden","X-C":"hidden"}"#,
            r#"{"Host":"hidden"}"#,
        ] {
            let problem = changes(text).apply(&CustomHeaders::default()).expect_err(text);
            assert_eq!(problem.code(), Code::InvalidField, "{text}");
            assert!(!format!("{problem:?}").contains("hidden"), "{text}");
        }
    }

    #[test]
    fn another_url_needs_every_value_again() {
        let current = CustomHeaders::from_pairs([("x-a", "1"), ("x-b", "2")]).expect("headers");
        for (text, accepted) in
            [(r#"{"X-A":"1","x-b":null}"#, true), (r#"{"x-a":"1"}"#, false), ("{}", false)]
        {
            assert_eq!(changes(text).require_all_of(&current).is_ok(), accepted, "{text}");
        }
    }
}
