//! What is wrong with a configuration, said so that the reader can mend it.

use std::fmt;

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The variable, the file's key, or the file itself.
    pub(crate) setting: String,
    /// What is wrong and what to do; never the value, which may be a secret.
    pub(crate) mend: String,
}

/// Everything that is wrong at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.setting, self.mend)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the configuration cannot be used:")?;
        self.0.iter().try_for_each(|problem| write!(formatter, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
