//! The cluster's directory: the data, the password, the server's log, and the lock that says whose it is.
//!
//! Invariants: one process at a time holds the lock; only directories that were empty or made here change their
//! mode; what the server's account cannot reach is never half used. The directory stays this process's own, and the
//! server's account owns just the data below it: otherwise that account could put a link in the place of a file that
//! root writes to.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::account::Account;
use crate::binaries::SYSTEM_WIDE;
use crate::cluster::{Error, Place};

/// Names the directory that is used in place of the one that lies beside it.
const ELSEWHERE: &str = "elsewhere";
const LOCK: &str = "lock";
/// Two seconds in all.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Home {
    root: PathBuf,
    /// Held for as long as the home is; the system lets go of it when the process ends, however it ends.
    _lock: File,
    temporary: Option<TempDir>,
}

impl Home {
    /// Finds or makes the directory, and takes the lock on it.
    pub(crate) fn open(place: &Place, account: Account) -> Result<Self, Error> {
        let (root, temporary) = match place {
            Place::Directory(wanted) => (in_directory(wanted, account)?, None),
            Place::Temporary => {
                let directory = make_temporary(account)?;
                (directory.path().to_owned(), Some(directory))
            }
        };
        // Later comparisons are with the working directory of processes, which has no links in it.
        let root = fs::canonicalize(&root).map_err(Error::io("resolve", &root))?;
        let lock = take_lock(&root)?;
        Ok(Self { root, _lock: lock, temporary })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Where a data directory grows until it is whole.
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.root.join("data.unfinished")
    }

    pub(crate) fn password(&self) -> PathBuf {
        self.root.join("password")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("server.log")
    }

    /// The directory that is to be removed with the cluster, if it is.
    pub(crate) fn temporary(&self) -> Option<&Path> {
        self.temporary.as_ref().map(TempDir::path)
    }

    /// Leaves a temporary directory where it is, for somebody else to remove.
    pub(crate) fn keep(&mut self) {
        self.temporary.take().map(TempDir::keep);
    }
}

/// Refuses a directory that another process holds. Makes none, and leaves one as it is.
pub(crate) fn require_free(wanted: &Path) -> Result<(), Error> {
    let note = wanted.join(ELSEWHERE);
    let root = if note.is_file() { PathBuf::from(read(&note)?) } else { wanted.to_owned() };
    if root.join(LOCK).is_file() {
        let root = fs::canonicalize(&root).map_err(Error::io("resolve", &root))?;
        drop(lock(&root)?);
    }
    Ok(())
}

/// The wanted directory, or the one in its place where the account cannot reach it.
fn in_directory(wanted: &Path, account: Account) -> Result<PathBuf, Error> {
    let wanted = std::path::absolute(wanted).map_err(Error::io("resolve", wanted))?;
    fs::create_dir_all(&wanted).map_err(Error::io("create", &wanted))?;
    if wanted.join(ELSEWHERE).is_file() {
        let noted = PathBuf::from(read(&wanted.join(ELSEWHERE))?);
        // Somebody may have removed the other directory to begin anew.
        return if noted.is_dir() { Ok(noted) } else { make_elsewhere(&wanted, account) };
    }
    if wanted.join(LOCK).is_file() {
        return if reaches(account, &wanted)? {
            Ok(wanted)
        } else {
            Err(Error::Unreachable { directory: wanted })
        };
    }
    if fs::read_dir(&wanted).map_err(Error::io("list", &wanted))?.next().is_some() {
        return Err(Error::HoldsOtherFiles { directory: wanted });
    }
    open_up(&wanted, account)?;
    if reaches(account, &wanted)? {
        return Ok(wanted);
    }
    match account {
        Account::Own => Err(Error::Unreachable { directory: wanted }),
        Account::Other { .. } => make_elsewhere(&wanted, account),
    }
}

/// Makes a directory in the place of one that the account cannot reach, and notes it there. Its name tells the path
/// it stands for; the random part makes that a removed and recreated directory begins with an empty cluster.
fn make_elsewhere(wanted: &Path, account: Account) -> Result<PathBuf, Error> {
    let parent = Path::new(SYSTEM_WIDE);
    if !parent.is_dir() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o755))
            .map_err(Error::io("open up", parent))?;
    }
    let prefix = format!("{:016x}-", fingerprint(wanted));
    let made = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(parent)
        .map_err(Error::io("create in", parent))?;
    open_up(made.path(), account)?;
    if !reaches(account, made.path())? {
        return Err(Error::Unreachable { directory: made.path().to_owned() });
    }
    let note = wanted.join(ELSEWHERE);
    fs::write(&note, made.path().as_os_str().as_encoded_bytes()).map_err(Error::io("write", &note))?;
    let made = made.keep();
    for earlier in predecessors(parent, &prefix, &made).map_err(Error::io("list", parent))? {
        tracing::warn!(
            directory = %earlier.display(),
            "an earlier database of the same data directory is still there; if nothing uses it, remove it"
        );
    }
    Ok(made)
}

/// Directories that were made before in the place of the same path. They are named, not removed: a wanted directory that
/// was moved takes its note along, and its database with it.
fn predecessors(parent: &Path, prefix: &str, made: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) && entry.path() != made {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn make_temporary(account: Account) -> Result<TempDir, Error> {
    let parents = [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    for parent in &parents {
        let Ok(made) = tempfile::Builder::new().prefix("postrider-postgresql-").tempdir_in(parent) else {
            continue;
        };
        open_up(made.path(), account)?;
        if reaches(account, made.path())? {
            return Ok(made);
        }
    }
    let [directory, ..] = parents;
    Err(Error::Unreachable { directory })
}

fn open_up(directory: &Path, account: Account) -> Result<(), Error> {
    fs::set_permissions(directory, fs::Permissions::from_mode(account.passage_mode()))
        .map_err(Error::io("set the mode of", directory))
}

fn reaches(account: Account, directory: &Path) -> Result<bool, Error> {
    account.can_enter(directory).map_err(Error::io("look into", directory))
}

fn take_lock(root: &Path) -> Result<File, Error> {
    let mut lock = lock(root)?;
    note_holder(&mut lock).map_err(Error::io("write", &root.join(LOCK)))?;
    Ok(lock)
}

fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join(LOCK);
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let mut lock = options.open(&path).map_err(Error::io("open", &path))?;
    match try_for_a_while(&lock) {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            lock.read_to_string(&mut holder).map_err(Error::io("read", &path))?;
            Err(Error::InUse { directory: root.to_owned(), holder })
        }
        Err(TryLockError::Error(error)) => Err(Error::io("lock", &path)(error)),
    }
}

/// A process that is just ending may hold its lock for a moment longer than it is seen to run.
fn try_for_a_while(lock: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            decided => return decided,
        }
    }
    lock.try_lock()
}

/// Only for the message that another process gets.
fn note_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    write!(lock, "{}", std::process::id())
}

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// FNV-1a: the name must be the same in every release, which the standard library's hash does not promise.
fn fingerprint(path: &Path) -> u64 {
    path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{ELSEWHERE, Home, fingerprint, predecessors, require_free};
    use crate::account::Account;
    use crate::cluster::{Error, Place};
    use std::path::Path;

    #[test]
    fn fingerprints_are_those_of_fnv_1a() {
        assert_eq!(fingerprint(Path::new("")), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(Path::new("foobar")), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn predecessors_are_those_of_the_same_path() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["0a-new", "0a-old", "0b-other", "postgresql"] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        let found = predecessors(parent.path(), "0a-", &parent.path().join("0a-new")).unwrap();
        assert_eq!(found, [parent.path().join("0a-old")]);
    }

    #[test]
    fn a_home_has_one_holder_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let place = Place::Directory(parent.path().join("home"));
        let first = Home::open(&place, Account::Own).unwrap();
        let refused = Home::open(&place, Account::Own).unwrap_err();
        let holder = std::process::id().to_string();
        assert!(matches!(&refused, Error::InUse { holder: named, .. } if *named == holder), "{refused}");
        drop(first);
        Home::open(&place, Account::Own).unwrap();
    }

    #[test]
    fn whether_a_home_is_held_can_be_asked_without_making_one() {
        let parent = tempfile::tempdir().unwrap();
        let [home, other] = ["home", "other"].map(|name| parent.path().join(name));
        require_free(&home).unwrap();
        assert!(!home.exists());

        let held = Home::open(&Place::Directory(home.clone()), Account::Own).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join(ELSEWHERE), home.to_str().unwrap()).unwrap();
        let refused = require_free(&other).unwrap_err();
        assert!(matches!(refused, Error::InUse { .. }), "{refused}");
        drop(held);
        for directory in [&home, &other] {
            require_free(directory).unwrap();
        }
        Home::open(&Place::Directory(home), Account::Own).unwrap();
    }

    #[test]
    fn a_directory_with_other_files_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("letter.txt"), "dear").unwrap();
        let refused = Home::open(&Place::Directory(parent.path().to_owned()), Account::Own).unwrap_err();
        assert!(matches!(refused, Error::HoldsOtherFiles { .. }), "{refused}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
