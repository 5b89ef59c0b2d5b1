//! The configuration file: TOML, one key per setting, no secrets.

use std::{collections::BTreeMap, fs, path::Path};

use super::{problem::Problem, setting};

/// Values by key, as the text their variable would have.
pub(super) type Values = BTreeMap<String, String>;

/// Reads a file; whatever cannot stand in it is a problem.
pub(super) fn read(path: &Path) -> (Values, Vec<Problem>) {
    let problem = |mend: String| Problem { setting: path.display().to_string(), mend };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return (Values::new(), vec![problem(format!("cannot be read: {error}"))]),
    };
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        // The parser's message would quote the line, which may hold a misplaced secret.
        Err(error) => {
            let error: toml::de::Error = error;
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            return (Values::new(), vec![problem(format!("is not TOML: line {line}: {}", error.message()))]);
        }
    };
    let mut values = Values::new();
    let mut problems = Vec::new();
    for (key, value) in table {
        match checked(&key, &value) {
            Ok(text) => drop(values.insert(key, text)),
            Err(mend) => problems.push(problem(format!("sets `{key}`, {mend}"))),
        }
    }
    (values, problems)
}

fn checked(key: &str, value: &toml::Value) -> Result<String, String> {
    let Some(setting) = setting::ALL.iter().find(|setting| setting.key() == key) else {
        let known: Vec<_> =
            setting::ALL.iter().filter(|known| !known.is_secret).map(|known| known.key()).collect();
        return Err(format!("which is no setting: there are {}", known.join(", ")));
    };
    if setting.is_secret {
        let (variable, file) = (setting.variable, setting.file_variable());
        return Err(format!("a secret, which may not stand here: remove it and set {variable}, or {file}"));
    }
    text_of(value)
        .ok_or_else(|| "which takes a text, a whole number, true or false, or a list of texts".to_owned())
}

fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            items.map(|items| items.join(","))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}
