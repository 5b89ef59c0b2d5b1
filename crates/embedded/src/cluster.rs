//! One cluster: started, halted and resumed by the process that holds it.
//!
//! Dropping a running cluster ends its server at once, as a power cut would; [`Cluster::stop`] is the orderly way.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;

use crate::account::Account;
use crate::binaries::Binaries;
use crate::guard::{Guard, Watched};
use crate::home::{self, Home};
use crate::initialise;
use crate::postmaster::{self, Orphan};

/// The empty database that a new cluster has besides `postgres`.
pub const DATABASE: &str = "postrider";
/// The role that [`Cluster::url`] names.
pub const SUPERUSER: &str = "postgres";

/// How long a server may take to accept connections: after a crash it first replays its log.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Bytes that the system takes for the path of a Unix socket, and those of `/.s.PGSQL.65535`, its name, which a lock file
/// lengthens by five.
const LONGEST_SOCKET_PATH: usize = 107;
const LONGEST_SOCKET_NAME: usize = 20;
/// How often a start is tried when another process took the port, or the backends of a killed server still end.
const START_TRIES: u32 = 10;
const PAUSE_BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// How much of the server's log an error quotes.
const QUOTED_LOG_BYTES: usize = 2000;

/// Where a cluster lives.
#[derive(Debug, Clone)]
pub enum Place {
    /// Kept. An empty or absent directory gets a new cluster.
    Directory(PathBuf),
    /// Removed with the cluster.
    Temporary,
}

/// What a crash of the machine may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was committed.
    Full,
    /// The whole cluster. Much faster; for tests.
    None,
}

/// How a server is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, everything is written out.
    Fast,
    /// Nothing is written out: the next start replays the log, as after a crash.
    Immediate,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub binaries: Binaries,
    pub place: Place,
    pub durability: Durability,
    /// Further parameters of `postgresql.conf`, which win over the cluster's own.
    pub parameters: Vec<(String, String)>,
}

/// A private PostgreSQL cluster on a free port of 127.0.0.1, for the holder of a random password.
pub struct Cluster {
    settings: Settings,
    account: Account,
    password: String,
    port: u16,
    server: Option<Server>,
    /// Declared last: a temporary directory goes after the server that works in it.
    home: Home,
}

struct Server {
    child: Child,
    guard: Guard,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "PostgreSQL does not run as root, and there is neither an account `postgres` nor `nobody` to run it as. \
         Create one (useradd --system postgres), or start Postrider as an ordinary user"
    )]
    NoAccount,
    #[error(
        "{directory} is in use by the running process {holder}. Stop that one first, or choose another data directory"
    )]
    InUse { directory: PathBuf, holder: String },
    #[error("{directory} holds files that are not a cluster's. Choose an empty or a new data directory")]
    HoldsOtherFiles { directory: PathBuf },
    #[error(
        "the account that runs PostgreSQL cannot enter {directory}. Give it that right, or choose another data \
         directory"
    )]
    Unreachable { directory: PathBuf },
    #[error(
        "the cluster in {directory} was made by PostgreSQL {found}, but the programs in {binaries} are of version \
         {version}. Install PostgreSQL {found} and name its directory of programs, or choose another data directory"
    )]
    OtherVersion { directory: PathBuf, found: String, binaries: PathBuf, version: u32 },
    #[error("{program} could not make a new cluster. It said: {said}")]
    Initialise { program: PathBuf, said: String },
    #[error("the database server did not start. The end of its log, {log}: {said}")]
    DidNotStart { log: PathBuf, said: String },
    #[error(
        "the database server of an earlier run, process {pid}, did not end when asked to. End it, then try again"
    )]
    OrphanStays { pid: u32 },
    #[error("could not {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

impl Cluster {
    /// Starts the cluster, making it first if need be, and returns once it accepts connections.
    ///
    /// A server that an earlier run left behind in the same directory is ended first.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let account = Account::for_server().ok_or(Error::NoAccount)?;
        let home = Home::open(&settings.place, account)?;
        initialise::ensure(&home, &settings.binaries, account, settings.durability).await?;
        let data = home.data();
        match postmaster::end_orphan(&data).await.map_err(Error::io("end the server of", &data))? {
            Orphan::None | Orphan::Ended => {}
            Orphan::Stays(pid) => return Err(Error::OrphanStays { pid }),
        }
        let password = home::read(&home.password())?;
        let mut cluster = Self { settings, account, password, port: 0, server: None, home };
        cluster.launch(free_port).await?;
        Ok(cluster)
    }

    /// Refuses a directory whose cluster another process holds, and changes nothing: for callers that would rather know
    /// before they begin with anything else. Only [`Self::start`] keeps others out.
    pub fn require_free(directory: &Path) -> Result<(), Error> {
        home::require_free(directory)
    }

    /// The URL of a database of this cluster. It contains the password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// The same for processes of this machine: over a Unix socket, which costs less per round trip, unless the
    /// directory's path does not suit one.
    pub fn local_url(&self, database: &str) -> String {
        let Some(directory) = self.socket_directory() else { return self.url(database) };
        let encoded =
            directory.bytes().fold(String::new(), |encoded, byte| encoded + &format!("%{byte:02X}"));
        format!("postgres://{SUPERUSER}:{}@localhost:{}/{database}?host={encoded}", self.password, self.port)
    }

    /// Where the socket lies: in the data directory, which only the server's account and root can enter.
    fn socket_directory(&self) -> Option<String> {
        let data = self.home.data().into_os_string().into_string().ok()?;
        // In the server's parameter a comma would begin another directory, and a quote would quote.
        let is_plain = !data.contains([',', '"']);
        (is_plain && data.len() + LONGEST_SOCKET_NAME <= LONGEST_SOCKET_PATH).then_some(data)
    }

    /// The directory that is really used: not the wanted one where the server's account could not reach that.
    pub fn data_dir(&self) -> &Path {
        self.home.root()
    }

    /// The server's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.child.id())
    }

    /// Ends the server in order.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.halt(Shutdown::Fast).await
    }

    /// Ends the server but keeps the cluster, to be resumed.
    pub async fn halt(&mut self, shutdown: Shutdown) -> Result<(), Error> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let (signal, limit) = match shutdown {
            Shutdown::Fast => (Signal::INT, postmaster::FAST_LIMIT),
            Shutdown::Immediate => (Signal::QUIT, postmaster::IMMEDIATE_LIMIT),
        };
        let ended = match postmaster::end(&mut server.child, signal, limit).await {
            Ok(true) => Ok(()),
            Ok(false) => postmaster::end_now(&mut server.child),
            Err(error) => Err(error),
        };
        server.guard.call_off();
        ended.map_err(Error::io("end the server of", self.home.root()))
    }

    /// Starts a halted cluster's server again, on the same port, so that its URLs stay right.
    pub async fn resume(&mut self) -> Result<(), Error> {
        let port = self.port;
        self.launch(|| Ok(port)).await
    }

    /// Lets the server outlive this value and this process: it ends, and a temporary directory goes, once the
    /// process `until` has ended. `companion` is a directory of the caller's that goes with it.
    pub fn detach(mut self, until: u32, companion: Option<&Path>) -> Result<(), Error> {
        if let Some(server) = &self.server {
            let data = self.home.data();
            let removed: Vec<&Path> = self.home.temporary().into_iter().chain(companion).collect();
            let watched = Watched { pid: server.child.id(), data: &data, remove: &removed };
            Guard::for_process(until, watched).map_err(Error::io("guard", &data))?;
        }
        if let Some(server) = self.server.take() {
            server.guard.call_off();
        }
        self.home.keep();
        Ok(())
    }

    /// Starts the server. A port that somebody else took meanwhile, or backends of a killed server that have not
    /// ended yet, are a reason to try again.
    async fn launch(&mut self, port: impl Fn() -> io::Result<u16>) -> Result<(), Error> {
        let log = self.home.log();
        let mut said = String::new();
        for _ in 0..START_TRIES {
            self.port = port().map_err(Error::io("find a free port on", Path::new("127.0.0.1")))?;
            let Some(complaint) =
                self.try_launch(&log).await.map_err(Error::io("start the server of", &log))?
            else {
                return Ok(());
            };
            said = complaint;
            if !passes(&said) {
                break;
            }
            tokio::time::sleep(PAUSE_BETWEEN_TRIES).await;
        }
        Err(Error::DidNotStart { log, said })
    }

    /// Starts the server once. `Ok(Some(_))`: it did not come up, and said why.
    async fn try_launch(&mut self, log_path: &Path) -> io::Result<Option<String>> {
        let log = postmaster::open_log(log_path)?;
        let log_start = log.metadata()?.len();
        let data = self.home.data();
        let mut child = self.command(&data).stdout(log.try_clone()?).stderr(log).spawn()?;
        let removed: Vec<&Path> = self.home.temporary().into_iter().collect();
        let guard = match Guard::for_owner(Watched { pid: child.id(), data: &data, remove: &removed }) {
            Ok(guard) => guard,
            Err(error) => {
                postmaster::end_now(&mut child)?;
                return Err(error);
            }
        };
        // Held by `self` from here on, so that giving up the wait ends the server.
        let server = self.server.insert(Server { child, guard });
        if postmaster::becomes_ready(&mut server.child, &data, START_LIMIT).await? {
            return Ok(None);
        }
        if let Some(mut server) = self.server.take() {
            postmaster::end_now(&mut server.child)?;
            server.guard.call_off();
        }
        tail(log_path, log_start).map(Some)
    }

    fn command(&self, data: &Path) -> Command {
        let mut command = self.account.command(&self.settings.binaries.postgres());
        command.arg("-D").arg(data).args(["-p", &self.port.to_string()]);
        let mut parameter = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        parameter("listen_addresses", "127.0.0.1");
        let sockets = self.socket_directory().unwrap_or_default();
        parameter("unix_socket_directories", &sockets);
        parameter("logging_collector", "off");
        parameter("log_destination", "stderr");
        match self.settings.durability {
            Durability::Full => {}
            Durability::None => {
                parameter("fsync", "off");
                parameter("synchronous_commit", "off");
                parameter("full_page_writes", "off");
            }
        }
        for (name, value) in &self.settings.parameters {
            parameter(name, value);
        }
        // A group of its own: the interrupt key of a terminal reaches this process, which drains before it stops the
        // database.
        command.process_group(0);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        if let Err(error) = postmaster::end_now(&mut server.child) {
            tracing::warn!(%error, pid = server.child.id(), "could not end the database server");
        }
        server.guard.call_off();
    }
}

impl fmt::Debug for Cluster {
    /// Leaves out the password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.home.root();
        formatter
            .debug_struct("Cluster")
            .field("data_dir", &directory)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Whether what the server complained of goes away by itself. Its messages are in English: it runs in locale C.
fn passes(said: &str) -> bool {
    ["could not bind IPv4 address", "pre-existing shared memory block"].iter().any(|text| said.contains(text))
}

/// The system hands out a port that nobody uses. Another process may take it before the server does.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The end of what was written to the log since `start`.
fn tail(log: &Path, start: u64) -> io::Result<String> {
    let log = std::fs::File::open(log)?;
    let end = log.metadata()?.len();
    let from = start.max(end.saturating_sub(QUOTED_LOG_BYTES as u64));
    let mut bytes = vec![0; QUOTED_LOG_BYTES];
    let read = log.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
