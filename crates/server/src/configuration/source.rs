//! Reads settings from the environment and the file, and gathers what is wrong on the way.
//!
//! Invariant: a secret's value never gets into a problem's text.

use std::{fmt, fs, ops::RangeInclusive, path::Path};

use zeroize::Zeroizing;

use super::{
    file,
    problem::Problem,
    setting::{self, Setting},
};
use crate::environment::Environment;

/// Longest file a secret is read from, in bytes.
const MAX_SECRET_FILE_BYTES: u64 = 64 * 1024;

/// A value that is never printed and is wiped when dropped.
#[derive(Clone)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(redacted)")
    }
}

/// Says that a setting could not be used; what is wrong lies in the [`Source`] that said so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recorded {
    _private: (),
}

/// Where settings come from.
#[derive(Debug)]
pub(crate) struct Source<'e> {
    environment: &'e Environment,
    file: file::Values,
    problems: Vec<Problem>,
}

impl<'e> Source<'e> {
    pub(super) fn new(environment: &'e Environment, file: Option<&Path>) -> Self {
        let (file, problems) = file.map(file::read).unwrap_or_default();
        Self { environment, file, problems }
    }

    /// A setting that may be left out. `parse` says what is wrong and how to mend it, without the value.
    pub(crate) fn optional<T>(
        &mut self,
        setting: &Setting,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Recorded> {
        let Some(text) = self.text(setting)? else { return Ok(None) };
        match parse(text.reveal()) {
            Ok(value) => Ok(Some(value)),
            Err(mend) => Err(self.record(setting, mend)),
        }
    }

    /// A setting with a default.
    pub(crate) fn or_default<T>(
        &mut self,
        setting: &Setting,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Recorded> {
        self.optional(setting, parse).map(|value| value.unwrap_or(default))
    }

    /// A setting without which nothing works; `wanted` says what to set it to.
    pub(crate) fn required<T>(
        &mut self,
        setting: &Setting,
        wanted: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Recorded> {
        match self.optional(setting, parse)? {
            Some(value) => Ok(value),
            None => Err(self.record(setting, format!("is not set: {wanted}"))),
        }
    }

    /// A switch: off unless set to `1` or `true`.
    pub(crate) fn switch(&mut self, setting: &Setting) -> Result<bool, Recorded> {
        self.or_default(setting, false, |text| match text {
            "1" | "true" => Ok(true),
            "0" | "false" => Ok(false),
            _ => Err("is a switch: set it to 1, or leave it out".to_owned()),
        })
    }

    /// Writes down what is wrong with a setting.
    pub(crate) fn record(&mut self, setting: &Setting, mend: impl Into<String>) -> Recorded {
        self.problems.push(Problem { setting: setting.variable.to_owned(), mend: mend.into() });
        Recorded { _private: () }
    }

    /// Our variables that set nothing: most likely misspelt.
    pub(super) fn unknown_variables(&self) -> Vec<Problem> {
        let unknown = self.environment.names().filter(|name| setting::is_unknown(name));
        let problem = |name: &str| {
            let guess = match setting::closest(name) {
                Some(meant) => format!(": did you mean {meant}?"),
                None => "; is it misspelt?".to_owned(),
            };
            Problem { setting: name.to_owned(), mend: format!("is set but is no setting{guess}") }
        };
        unknown.map(problem).collect()
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    fn text(&mut self, setting: &Setting) -> Result<Option<Secret>, Recorded> {
        let direct = self.environment.get(setting.variable);
        let in_file = setting.is_secret.then(|| self.environment.get(&setting.file_variable())).flatten();
        match (direct, in_file) {
            (Some(_), Some(_)) => {
                let mend = format!("and {} are both set: keep one", setting.file_variable());
                Err(self.record(setting, mend))
            }
            (Some(text), None) => Ok(Some(Secret::from(text.to_owned()))),
            (None, Some(path)) => match read_secret(Path::new(path)) {
                Ok(secret) => Ok(Some(secret)),
                Err(mend) => {
                    self.problems.push(Problem { setting: setting.file_variable(), mend });
                    Err(Recorded { _private: () })
                }
            },
            (None, None) => Ok(self.file.get(&setting.key()).cloned().map(Secret::from)),
        }
    }
}

/// A number within bounds.
pub(crate) fn number<T>(text: &str, bounds: &RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + fmt::Display,
{
    let parsed = text.parse::<T>().ok().filter(|number| bounds.contains(number));
    parsed.ok_or_else(|| format!("takes a whole number from {} to {}", bounds.start(), bounds.end()))
}

fn read_secret(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let length =
        fs::metadata(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?.len();
    if length > MAX_SECRET_FILE_BYTES {
        return Err(format!(
            "names {shown}, which has more than {MAX_SECRET_FILE_BYTES} bytes: that is no secret"
        ));
    }
    let text =
        fs::read_to_string(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    let secret = Zeroizing::new(text);
    let trimmed = secret.trim_end_matches(['\r', '\n']);
    if trimmed.is_empty() {
        return Err(format!("names {shown}, which is empty"));
    }
    Ok(Secret::from(trimmed.to_owned()))
}
