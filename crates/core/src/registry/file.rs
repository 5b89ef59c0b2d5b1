//! The file's text, in YAML, as far as its shape goes.
//!
//! Read with `serde-saphyr`: it parses without `unsafe`, keeps to a budget, tells the line, and is maintained. Anchors,
//! aliases and merge keys are refused, so nothing in the file stands for more than it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::{
    Error, Options, Spanned, budget, options,
    options::{DuplicateKeyPolicy, MergeKeyPolicy},
};

use super::{MAX_ENDPOINTS, MAX_FILE_BYTES, Refusal, spelling, strict};
use crate::{method::Method, name::Name, success_codes::SuccessCodes};

/// Deepest nesting that a file has a use for.
const MAX_DEPTH: usize = 8;
/// Most keys, values and lists that the largest file has a use for.
const MAX_NODES: usize = 200 * MAX_ENDPOINTS;
/// What `serde_path_to_error` cannot name.
const UNNAMED: &str = ".?";
/// `Spanned` reads as an object of which this member is what it wraps: `tenants.acme.endpoints.sms.value.url`.
const SPAN_STEP: &str = "value";
const SPAN_PLACE: usize = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(deserialize_with = "strict::map")]
    pub(super) tenants: BTreeMap<Name, Tenant>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tenant {
    #[serde(deserialize_with = "strict::map")]
    pub(super) endpoints: BTreeMap<Name, Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) url: String,
    #[serde(default, deserialize_with = "strict::flag")]
    pub(super) allow_query: bool,
    #[serde(default, deserialize_with = "parsed")]
    pub(super) method: Option<Method>,
    #[serde(default)]
    pub(super) success_codes: Option<Codes>,
    #[serde(default)]
    pub(super) retry: Retry,
    pub(super) rate_limit: Option<RateLimit>,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) max_in_flight: Option<u16>,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) timeout_ms: Option<u32>,
    #[serde(default, deserialize_with = "strict::map")]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) credential: Option<Name>,
    #[serde(default, deserialize_with = "strict::set")]
    pub(super) applications: BTreeSet<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Retry {
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) max_attempts: Option<u16>,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) max_age_seconds: Option<u32>,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) initial_delay_ms: Option<u32>,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) max_delay_ms: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateLimit {
    #[serde(deserialize_with = "strict::number")]
    pub(super) per_second: f64,
    #[serde(default, deserialize_with = "strict::whole")]
    pub(super) burst: Option<u32>,
}

/// A list of codes and ranges.
#[derive(Debug)]
pub(super) struct Codes(pub(super) SuccessCodes);

impl fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Entry").finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for Codes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = strict::list::<D, String>(deserializer)?;
        texts.join(",").parse().map(Self).map_err(D::Error::custom)
    }
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Method>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    word.map(|word| word.parse().map_err(D::Error::custom)).transpose()
}

/// Reads the text.
pub(super) fn read(text: &str) -> Result<File, Refusal> {
    let mut path = String::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
        File::deserialize(tracked).inspect_err(|_error| path = track.path().to_string())
    });
    let file = read.map_err(|error| Refusal {
        line: error.location().map(|location| location.line()).filter(|line| *line > 0),
        path: named(&path),
        reason: reason(&error),
    })?;
    spelling::check(text)?;
    Ok(file)
}

fn options() -> Options {
    options! {
        budget: budget! {
            max_reader_input_bytes: Some(MAX_FILE_BYTES),
            max_anchors: 0,
            max_aliases: 0,
            max_documents: 1,
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_FILE_BYTES,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        // A line of the file may hold a secret.
        with_snippet: false,
    }
}

/// The path as far as it has names, without the step into what keeps the line of an endpoint.
fn named(path: &str) -> String {
    let path = path.strip_suffix(UNNAMED).unwrap_or(path);
    let steps = path.split('.').enumerate();
    let steps = steps.filter(|(place, step)| !(*place == SPAN_PLACE && *step == SPAN_STEP));
    let steps: Vec<&str> = steps.map(|(_, step)| step).filter(|step| !step.is_empty()).collect();
    steps.join(".")
}

/// What is wrong, without what stands there: it may be a secret.
fn reason(error: &Error) -> String {
    match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("unknown key `{field}`; it is one of {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => format!("`{field}` is missing"),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("this is not {expected}")
        }
        Error::InvalidScalar { ty, .. } => format!("this is not a valid {ty}"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` is given twice"),
        Error::DuplicateMappingKey { key: None, .. } => "a key is given twice".to_owned(),
        Error::MergeKeyNotAllowed { .. } => "merge keys (`<<`) are not taken; write it out".to_owned(),
        Error::Budget { .. } => {
            "the file is too large or too deep, or uses an anchor (`&`), an alias (`*`) or several documents"
                .to_owned()
        }
        // Texts of our own, which repeat no value.
        Error::Message { msg, .. } => msg.clone(),
        Error::MultipleDocuments { .. } => "the file is one document".to_owned(),
        Error::Eof { .. } => "the file is empty or ends too early".to_owned(),
        Error::Unexpected { expected, .. } => format!("expected {expected}"),
        Error::InvalidBooleanStrict { .. } => "this is not `true` or `false`".to_owned(),
        Error::NullIntoString { .. } => "a value is missing".to_owned(),
        // The parser's list is open.
        _ => "this is not YAML of the registry's shape".to_owned(),
    }
}
