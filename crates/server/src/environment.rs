//! The environment the process was started in, read once.
//!
//! Invariant: nothing else in the product reads environment variables as settings, so a test hands over a map.

use std::collections::BTreeMap;

/// Variables by name.
#[derive(Clone, Default)]
pub(crate) struct Environment(BTreeMap<String, String>);

impl std::fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values are often secrets.
        formatter.debug_list().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// The process's own. A value that is no UTF-8 is read with replacement characters, so that the setting it is for
    /// refuses it by name.
    pub(crate) fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// A variable's value; an empty one counts as not set, as in `VARIABLE= command`.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}
