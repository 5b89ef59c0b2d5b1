//! Finds PostgreSQL's server programs.
//!
//! Invariant: what is found has been run once, as the account that will run the server, and said that it is new
//! enough. A directory that only this process can enter is therefore passed over.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::account::Account;

/// The oldest major version with everything that Postrider's statements use.
pub const OLDEST_VERSION: u32 = 15;

/// Where packages put the programs: one directory for each major version, none of them on the path.
const PACKAGED: &str = "/usr/lib/postgresql";

/// Where Postrider's own set-up puts the programs when root cannot get a package. Also the parent of clusters whose
/// wanted directory the server's account cannot reach.
pub(crate) const SYSTEM_WIDE: &str = "/var/lib/postrider";

/// A directory with `initdb` and `postgres`, and the major version they are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
    major_version: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no PostgreSQL server ({OLDEST_VERSION} or newer) found on PATH, under {PACKAGED} or under {SYSTEM_WIDE}. \
         Install one (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: \
         brew install postgresql), or name the directory that holds initdb and postgres"
    )]
    NotFound,
    #[error(
        "the newest PostgreSQL server found is {version}, in {directory}; Postrider needs {OLDEST_VERSION} or newer. \
         Install a newer one, or name the directory that holds its initdb and postgres"
    )]
    TooOld { directory: PathBuf, version: u32 },
    #[error("{directory} was named as the directory of PostgreSQL's programs, but {reason}")]
    Configured { directory: PathBuf, reason: Unusable },
    #[error(
        "PostgreSQL does not run as root, and there is neither an account `postgres` nor `nobody` to run it as. \
         Create one (useradd --system postgres), or start Postrider as an ordinary user"
    )]
    NoAccount,
}

/// Why a directory does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it holds no `{0}`")]
    Missing(&'static str),
    #[error("its `postgres` cannot be run by the account that would run the server: {0}")]
    CannotRun(io::Error),
    #[error("its `postgres` did not say its version but {0:?}")]
    NoVersion(String),
    #[error("its version is {0}; {OLDEST_VERSION} or newer is needed")]
    TooOld(u32),
}

impl Binaries {
    /// Takes the configured directory, or the first that serves of: the directories on `PATH` (links followed), the
    /// packaged ones, newest first, and Postrider's own. A configured directory that does not serve is an error:
    /// silently taking another server would surprise.
    pub fn find(configured: Option<&Path>) -> Result<Self, Error> {
        let account = Account::for_server().ok_or(Error::NoAccount)?;
        if let Some(directory) = configured {
            return Self::examine(directory, account)
                .map_err(|reason| Error::Configured { directory: directory.to_owned(), reason });
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the search path is how programs are found, not a setting"
        )]
        let path = env::var_os("PATH").unwrap_or_default();
        first_that_serves(&candidates(&path), account)
    }

    /// The major version, such as 15.
    pub fn major_version(&self) -> u32 {
        self.major_version
    }

    /// The directory that holds the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn initdb(&self) -> PathBuf {
        self.directory.join("initdb")
    }

    pub(crate) fn postgres(&self) -> PathBuf {
        self.directory.join("postgres")
    }

    fn examine(directory: &Path, account: Account) -> Result<Self, Unusable> {
        for program in ["postgres", "initdb"] {
            if !directory.join(program).is_file() {
                return Err(Unusable::Missing(program));
            }
        }
        let output = account
            .command(&directory.join("postgres"))
            .arg("--version")
            .output()
            .map_err(Unusable::CannotRun)?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match major_version(&said) {
            None => Err(Unusable::NoVersion(said)),
            Some(version) if version < OLDEST_VERSION => Err(Unusable::TooOld(version)),
            Some(major_version) => Ok(Self { directory: directory.to_owned(), major_version }),
        }
    }
}

fn first_that_serves(candidates: &[PathBuf], account: Account) -> Result<Binaries, Error> {
    let mut too_old: Option<(PathBuf, u32)> = None;
    for directory in candidates {
        match Binaries::examine(directory, account) {
            Ok(binaries) => return Ok(binaries),
            Err(Unusable::TooOld(version)) => {
                if too_old.as_ref().is_none_or(|(_, other)| *other < version) {
                    too_old = Some((directory.clone(), version));
                }
            }
            Err(reason @ (Unusable::Missing(_) | Unusable::CannotRun(_) | Unusable::NoVersion(_))) => {
                tracing::debug!(directory = %directory.display(), %reason, "passed over");
            }
        }
    }
    Err(too_old.map_or(Error::NotFound, |(directory, version)| Error::TooOld { directory, version }))
}

fn candidates(path: &OsStr) -> Vec<PathBuf> {
    // `postgres` on the path is often a link: the programs and files it needs lie beside what it points to.
    let on_path = env::split_paths(path)
        .filter_map(|directory| fs::canonicalize(directory.join("postgres")).ok())
        .filter_map(|program| program.parent().map(Path::to_owned));
    on_path.chain(versions_below(Path::new(PACKAGED), "")).chain(system_wide()).collect()
}

fn system_wide() -> Vec<PathBuf> {
    versions_below(Path::new(SYSTEM_WIDE), "postgresql-")
}

/// The `bin` directories below directories called `<prefix><number>`, highest number first.
fn versions_below(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path().join("bin")))
        })
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, directory)| directory).collect()
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian …)`, and `18beta1` of a pre-release.
fn major_version(said: &str) -> Option<u32> {
    let version = said.strip_prefix("postgres (PostgreSQL) ")?;
    let digits = version.split(|character: char| !character.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{major_version, versions_below};
    use std::fs;

    #[test]
    fn versions_are_read() {
        let check = |said, expected| assert_eq!(major_version(said), expected, "{said:?}");
        check("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some(15));
        check("postgres (PostgreSQL) 17.10", Some(17));
        check("postgres (PostgreSQL) 18beta1", Some(18));
        check("postgres (PostgreSQL) 9.6.24", Some(9));
        check("postgres (PostgreSQL) devel", None);
        check("postgres (EnterpriseDB) 15.1", None);
        check("", None);
    }

    #[test]
    fn newest_packaged_version_comes_first() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["9", "15", "17", "common", "postgresql-18"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let expected: Vec<_> =
            ["17", "15", "9"].iter().map(|name| parent.path().join(name).join("bin")).collect();
        assert_eq!(versions_below(parent.path(), ""), expected);
        assert_eq!(versions_below(parent.path(), "postgresql-"), [parent.path().join("postgresql-18/bin")]);
        assert!(versions_below(&parent.path().join("absent"), "").is_empty());
    }
}
