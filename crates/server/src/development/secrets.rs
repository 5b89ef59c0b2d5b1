//! The secrets of a development server, in a file that only its owner can read and that a shell can source.
//!
//! Invariant: the file is whole at every moment: it is replaced, never written in place.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use zeroize::Zeroizing;

use crate::{configuration::setting, environment::Environment};

const FILE_NAME: &str = "secrets.env";
const HEADER: &str = "# Secrets of a development server, made by `postrider dev`. Not for production.\n";

/// The tenant of the example.
pub(crate) const TENANT: &str = "EXAMPLE_TENANT";
/// The token of the example tenant's owner.
pub(crate) const OWNER_TOKEN: &str = "OWNER_TOKEN";
/// The token that the example application publishes with.
pub(crate) const PUBLISH_TOKEN: &str = "PUBLISH_TOKEN";
/// The secret that requests to the simulator are signed with.
pub(crate) const SIGNING_SECRET: &str = "SIGNING_SECRET";
/// The id of the key of that secret: another one in a request means that the endpoint's secret was rotated.
pub(crate) const SIGNING_KEY_ID: &str = "SIGNING_KEY_ID";
/// Where the private database is while the server runs: for commands such as `postrider apply`.
pub(crate) const DATABASE: &str = "DATABASE_URL";
/// Address of the simulator at the last start, by which an endpoint that leads to it is known.
pub(crate) const SIMULATOR: &str = "EXAMPLE_SIMULATOR";

/// The settings that are secrets, made up at the first start that knows of them.
const GENERATED: [&setting::Setting; 5] = [
    &setting::ENCRYPTION_KEY,
    &setting::TOKEN_PEPPER,
    &setting::JWT_SECRET,
    &setting::BOOTSTRAP_TOKEN,
    &setting::METRICS_TOKEN,
];

/// The secrets, and where they lie.
pub(crate) struct SecretsFile {
    path: PathBuf,
    values: BTreeMap<String, Zeroizing<String>>,
}

impl std::fmt::Debug for SecretsFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SecretsFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SecretsFile {
    /// Reads the file in a directory, and makes up what is missing.
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(FILE_NAME);
        let values = match fs::read_to_string(&path) {
            Ok(text) => {
                parse(&Zeroizing::new(text)).with_context(|| format!("reading {}", path.display()))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        let mut file = Self { path, values };
        for setting in GENERATED {
            if !file.values.contains_key(setting.variable) {
                file.values.insert(setting.variable.to_owned(), random_hex()?);
            }
        }
        file.write()?;
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|value| value.as_str())
    }

    /// Keeps a secret, on disk before this returns.
    pub(crate) fn put(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        if !is_plain(value) {
            bail!("the value of {name} cannot be kept in {}", self.path.display());
        }
        self.values.insert(name.to_owned(), Zeroizing::new(value.to_owned()));
        self.write()
    }

    /// Drops secrets that are of no use any more.
    pub(crate) fn forget(&mut self, names: &[&str]) -> anyhow::Result<()> {
        self.values.retain(|name, _| !names.contains(&name.as_str()));
        self.write()
    }

    /// Sets the made-up settings, whatever else the environment says about them.
    pub(crate) fn apply(&self, environment: &mut Environment) {
        for setting in GENERATED {
            environment.remove(&setting.file_variable());
            if let Some(value) = self.get(setting.variable) {
                environment.set(setting.variable, value);
            }
        }
    }

    /// The secrets that the environment sets otherwise, which is of no use here.
    pub(crate) fn overruled<'a>(
        &'a self,
        environment: &'a Environment,
    ) -> impl Iterator<Item = &'static str> {
        let sets_otherwise = |setting: &&setting::Setting| {
            let set = environment.get(setting.variable);
            set.is_some_and(|value| self.get(setting.variable) != Some(value))
                || environment.get(&setting.file_variable()).is_some()
        };
        GENERATED.into_iter().filter(sets_otherwise).map(|setting| setting.variable)
    }

    fn write(&self) -> anyhow::Result<()> {
        let mut text = Zeroizing::new(HEADER.to_owned());
        for (name, value) in &self.values {
            text.extend([name.as_str(), "=", value, "\n"]);
        }
        let unfinished = self.path.with_extension("env.unfinished");
        let written = replace(&unfinished, &self.path, text.as_bytes());
        written.with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

fn replace(unfinished: &Path, path: &Path, content: &[u8]) -> std::io::Result<()> {
    // An earlier run may have been killed here; its file could have another mode.
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<String, Zeroizing<String>>> {
    let lines = text.lines().map(str::trim).enumerate();
    let assignments = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    assignments
        .map(|(index, line)| {
            let (name, value) =
                line.split_once('=').filter(|(_, value)| is_plain(value)).ok_or_else(|| {
                    anyhow!(
                        "line {} is not NAME=value; mend it, or remove the file to make new secrets",
                        index + 1
                    )
                })?;
            Ok((name.to_owned(), Zeroizing::new(value.to_owned())))
        })
        .collect()
}

/// Whether a shell reads the value as it stands, without quotes.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-+/=.:[]@".contains(&byte))
}

fn random_hex() -> anyhow::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|error| anyhow!("no random bytes: {error}"))?;
    Ok(Zeroizing::new(hex::encode(bytes.as_slice())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_made_once_kept_privately_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = SecretsFile::open(directory.path()).unwrap();
        first.put(SIGNING_SECRET, "whsec_AB+/==").unwrap();
        let key = first.get("POSTRIDER_ENCRYPTION_KEY").unwrap().to_owned();
        assert_eq!(key.len(), 64);
        assert_ne!(first.get("POSTRIDER_BOOTSTRAP_TOKEN"), first.get("POSTRIDER_METRICS_TOKEN"));
        let mode = fs::metadata(first.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        // As if killed while writing.
        fs::write(directory.path().join("secrets.env.unfinished"), "half").unwrap();
        let mut second = SecretsFile::open(directory.path()).unwrap();
        assert_eq!(second.get("POSTRIDER_ENCRYPTION_KEY"), Some(key.as_str()));
        assert_eq!(second.get(SIGNING_SECRET), Some("whsec_AB+/=="));
        assert!(second.put(OWNER_TOKEN, "$(rm)").is_err());
    }

    #[test]
    fn a_directory_of_an_earlier_version_gets_the_secrets_that_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let first = SecretsFile::open(directory.path()).unwrap();
        let pepper = first.get("POSTRIDER_TOKEN_PEPPER").unwrap().to_owned();
        let text = fs::read_to_string(first.path()).unwrap();
        let older: String = text.split_inclusive('\n').filter(|line| !line.contains("_JWT_")).collect();
        assert_ne!(older, text);
        fs::write(first.path(), older).unwrap();
        let second = SecretsFile::open(directory.path()).unwrap();
        assert_eq!(second.get("POSTRIDER_JWT_SECRET").map(str::len), Some(64));
        assert_eq!(second.get("POSTRIDER_TOKEN_PEPPER"), Some(pepper.as_str()), "what is there stays");
    }

    #[test]
    fn a_broken_file_is_named_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE_NAME), "# ok\n\nOWNER_TOKEN\n").unwrap();
        let error = format!("{:#}", SecretsFile::open(directory.path()).unwrap_err());
        assert!(error.contains("secrets.env") && error.contains("line 3"), "{error}");
    }

    #[test]
    fn made_up_settings_win_over_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = SecretsFile::open(directory.path()).unwrap();
        let mut environment = Environment::default();
        environment.set("POSTRIDER_METRICS_TOKEN_FILE", "/elsewhere");
        environment.set("POSTRIDER_ENCRYPTION_KEY", "other");
        environment.set("POSTRIDER_TOKEN_PEPPER", secrets.get("POSTRIDER_TOKEN_PEPPER").unwrap());
        let overruled: Vec<_> = secrets.overruled(&environment).collect();
        assert_eq!(overruled, ["POSTRIDER_ENCRYPTION_KEY", "POSTRIDER_METRICS_TOKEN"]);
        secrets.apply(&mut environment);
        assert_eq!(secrets.overruled(&environment).count(), 0, "what holds is what the file says");
        assert_eq!(environment.get("POSTRIDER_METRICS_TOKEN_FILE"), None);
        assert_eq!(environment.get("POSTRIDER_ENCRYPTION_KEY"), secrets.get("POSTRIDER_ENCRYPTION_KEY"));
    }
}
