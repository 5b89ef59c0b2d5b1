//! The difference between what is and what is declared: endpoint by endpoint, setting by setting.

use std::collections::BTreeSet;

use super::{Endpoint, Endpoints};
use crate::{
    bucket::Rate,
    header::CustomHeaders,
    method::Method,
    name::Name,
    pacing::{DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT},
    retry::Policy,
    success_codes::SuccessCodes,
};

/// What is to become of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub endpoint: Name,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Added(Box<Endpoint>),
    Changed {
        to: Box<Endpoint>,
        fields: Vec<Field>,
        /// It leads to another scheme, host or port than before.
        is_repointed: bool,
    },
    Removed,
}

/// A setting before and after, as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// As the file spells it.
    pub name: &'static str,
    pub from: String,
    pub to: String,
}

/// What would have to change for `current` to become `declared`, in the order of the endpoints' names.
pub fn diff(current: &Endpoints, declared: &Endpoints) -> Vec<Change> {
    let removed = current.keys().filter(|name| !declared.contains_key(*name));
    let removed = removed.map(|name| Change { endpoint: name.clone(), kind: Kind::Removed });
    let mut changes: Vec<Change> = declared
        .iter()
        .filter_map(|(name, to)| {
            let kind = match current.get(name) {
                None => Kind::Added(Box::new(to.clone())),
                Some(from) if from == to => return None,
                Some(from) => Kind::Changed {
                    fields: fields(from, to),
                    is_repointed: from.origin() != to.origin(),
                    to: Box::new(to.clone()),
                },
            };
            Some(Change { endpoint: name.clone(), kind })
        })
        .chain(removed)
        .collect();
    changes.sort_by(|one, other| one.endpoint.cmp(&other.endpoint));
    changes
}

/// The settings of a new endpoint that are not what they would be if the file said nothing of them, as the file spells them.
pub fn chosen(endpoint: &Endpoint) -> Vec<&'static str> {
    let silent = Endpoint {
        url: String::new(),
        query: None,
        allow_query: false,
        method: Method::Post,
        success_codes: SuccessCodes::DEFAULT,
        retry: Policy::DEFAULT,
        rate: None,
        max_in_flight: DEFAULT_MAX_IN_FLIGHT,
        timeout: DEFAULT_TIMEOUT,
        headers: CustomHeaders::default(),
        credential: None,
        applications: BTreeSet::new(),
    };
    fields(&silent, endpoint).into_iter().map(|field| field.name).collect()
}

fn fields(from: &Endpoint, to: &Endpoint) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut compare = |name, from: String, to: String| {
        if from != to {
            fields.push(Field { name, from, to });
        }
    };
    compare("url", from.url.clone(), to.url.clone());
    compare("allowQuery", from.allow_query.to_string(), to.allow_query.to_string());
    compare("method", from.method.to_string(), to.method.to_string());
    compare("successCodes", from.success_codes.to_string(), to.success_codes.to_string());
    compare("retry", retry(&from.retry), retry(&to.retry));
    compare("rateLimit", rate(from.rate), rate(to.rate));
    compare("maxInFlight", from.max_in_flight.to_string(), to.max_in_flight.to_string());
    compare("timeoutMs", from.timeout.as_millis().to_string(), to.timeout.as_millis().to_string());
    compare("credential", name(from.credential.as_ref()), name(to.credential.as_ref()));
    compare("applications", list(from.applications.iter()), list(to.applications.iter()));
    if from.query != to.query {
        fields.push(Field {
            name: "query",
            from: presence(from.query.is_some(), "a query"),
            to: presence(to.query.is_some(), if from.query.is_some() { "another query" } else { "a query" }),
        });
    }
    if from.headers != to.headers {
        let (before, after) = (list(sorted(&from.headers)), list(sorted(&to.headers)));
        let after = if before == after { format!("{after}, with other values") } else { after };
        fields.push(Field { name: "headers", from: before, to: after });
    }
    fields
}

fn presence(is_there: bool, what: &str) -> String {
    if is_there { what.to_owned() } else { "none".to_owned() }
}

fn name(name: Option<&Name>) -> String {
    name.map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn retry(policy: &Policy) -> String {
    format!(
        "{} attempts within {} s, {} to {} ms apart",
        policy.max_attempts(),
        policy.max_age().as_secs(),
        policy.initial_delay().as_millis(),
        policy.max_delay().as_millis()
    )
}

fn rate(rate: Option<Rate>) -> String {
    rate.map_or_else(
        || "none".to_owned(),
        |rate| format!("{} per second, {} at once", rate.per_second, rate.burst),
    )
}

fn sorted(headers: &CustomHeaders) -> impl Iterator<Item = &str> {
    let mut names: Vec<&str> = headers.names().collect();
    names.sort_unstable();
    names.into_iter()
}

fn list(items: impl Iterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
