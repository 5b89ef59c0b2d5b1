//! Makes a new data directory with an empty database in it.
//!
//! Invariant: a directory called `data` is whole. It grows under another name and is renamed at the end, so that an
//! interrupted start is simply done again.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::account::Account;
use crate::binaries::Binaries;
use crate::cluster::{DATABASE, Durability, Error, SUPERUSER};
use crate::home::{Home, read};

/// How long `initdb` may take: a second is usual, a slow disk needs more.
const LIMIT: Duration = Duration::from_secs(180);

/// 256 bits: nobody guesses it, so that the number of hash rounds does not matter.
const PASSWORD_BYTES: usize = 32;

/// Makes the data directory unless there is one of the right version.
pub(crate) async fn ensure(
    home: &Home,
    binaries: &Binaries,
    account: Account,
    durability: Durability,
) -> Result<(), Error> {
    let version_file = home.data().join("PG_VERSION");
    if version_file.is_file() {
        return check_version(&read(&version_file)?, home, binaries);
    }
    let unfinished = home.unfinished();
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(Error::io("remove", &unfinished))?;
    }
    make_data_directory(&unfinished, account).map_err(Error::io("create", &unfinished))?;
    let password_file = home.password();
    write_password(&password_file, account).map_err(Error::io("write", &password_file))?;

    run(initdb(home, binaries, account, durability)).await?;
    run(create_database(home, binaries, account, durability)?).await?;

    fs::rename(&unfinished, home.data()).map_err(Error::io("rename", &unfinished))?;
    File::open(home.root())
        .and_then(|directory| directory.sync_all())
        .map_err(Error::io("flush", home.root()))
}

fn check_version(found: &str, home: &Home, binaries: &Binaries) -> Result<(), Error> {
    let found = found.trim();
    if found == binaries.major_version().to_string() {
        return Ok(());
    }
    Err(Error::OtherVersion {
        directory: home.root().to_owned(),
        found: found.to_owned(),
        binaries: binaries.directory().to_owned(),
        version: binaries.major_version(),
    })
}

fn make_data_directory(path: &Path, account: Account) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    account.own(path)
}

fn write_password(path: &Path, account: Account) -> io::Result<()> {
    let mut random = [0; PASSWORD_BYTES];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let password: String = hex::encode(random);
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(password.as_bytes())?;
    file.sync_all()?;
    account.own(path)
}

fn initdb(home: &Home, binaries: &Binaries, account: Account, durability: Durability) -> Command {
    let mut command = account.command(&binaries.initdb());
    command.arg("--pgdata").arg(home.unfinished()).arg("--pwfile").arg(home.password());
    command.args(["--username", SUPERUSER, "--auth", "scram-sha-256"]);
    // The one locale that exists everywhere and sorts the same everywhere.
    command.args(["--encoding", "UTF8", "--locale", "C", "--no-instructions"]);
    match durability {
        Durability::Full => {}
        Durability::None => {
            command.arg("--no-sync");
        }
    }
    command
}

/// Uses the single-user server, so that the database is there before anybody can connect.
fn create_database(
    home: &Home,
    binaries: &Binaries,
    account: Account,
    durability: Durability,
) -> Result<Command, Error> {
    let mut input = tempfile::tempfile().map_err(Error::io("create", Path::new("a temporary file")))?;
    writeln!(input, "CREATE DATABASE {DATABASE};")
        .and_then(|()| input.rewind())
        .map_err(Error::io("write", Path::new("a temporary file")))?;
    let mut command = account.command(&binaries.postgres());
    // A statement that fails then ends the server with an error, instead of waiting for the next one.
    command.args(["--single", "-c", "exit_on_error=on"]);
    command.arg("-D").arg(home.unfinished());
    match durability {
        Durability::Full => {}
        Durability::None => {
            command.arg("-F");
        }
    }
    command.arg("postgres").stdin(Stdio::from(input));
    Ok(command)
}

async fn run(command: Command) -> Result<(), Error> {
    let program = Path::new(command.get_program()).to_owned();
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    let Ok(output) = tokio::time::timeout(LIMIT, command.output()).await else {
        return Err(Error::Initialise {
            program,
            said: format!("nothing within {} seconds", LIMIT.as_secs()),
        });
    };
    let output = output.map_err(Error::io("run", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(Error::Initialise { program, said: String::from_utf8_lossy(&said).trim().to_owned() })
}
