//! A proxy between a program and PostgreSQL that breaks connections at a chosen moment.
//!
//! Invariant: where no fault is set every byte passes as it came, in order. Connections must be plain, since faults wait
//! for what the program says: a proxy cannot read TLS.

mod connection;
mod message;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sqlx::postgres::PgConnectOptions;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What happens to the connection on which a statement is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut before the server hears the statement.
    CutBefore,
    /// The server hears the statement and answers; the answer is dropped and the connection cut.
    SwallowReply,
}

/// Waits until a statement with these words is executed, on any connection, and happens once.
#[derive(Debug, Clone, Copy)]
struct Trap {
    statement: &'static str,
    fault: Fault,
}

/// What applies to every connection.
#[derive(Debug, Clone, Copy)]
struct Weather {
    is_stalled: bool,
    /// Connections up to this number are cut.
    cut_up_to: u64,
}

/// A running proxy; cuts everything when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    traps: Mutex<Vec<Trap>>,
    weather: watch::Sender<Weather>,
    /// Traps that have sprung.
    sprung: watch::Sender<usize>,
    /// Connections taken so far; each has its number.
    connections: watch::Sender<u64>,
}

impl Proxy {
    /// Listens on a free loopback port and leads to the server of a database's URL.
    pub async fn before(database_url: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            upstream: Mutex::new(server_of(database_url)),
            traps: Mutex::default(),
            weather: watch::Sender::new(Weather { is_stalled: false, cut_up_to: 0 }),
            sprung: watch::Sender::new(0),
            connections: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _tasks: tasks }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a database as it is reached through here.
    pub fn url(&self, database_url: &str) -> String {
        database_url.replacen(&server_of(database_url).to_string(), &self.address.to_string(), 1)
    }

    /// Later connections lead to the server of this URL, as after a failover; running ones stay where they are.
    pub fn lead_to(&self, database_url: &str) {
        *lock(&self.shared.upstream) = server_of(database_url);
    }

    /// Does something to the connection that next executes a statement with these words. Several such faults wait
    /// for one statement each, in the order in which they were set.
    pub fn set(&self, statement: &'static str, fault: Fault) {
        lock(&self.shared.traps).push(Trap { statement, fault });
    }

    /// Waits until so many faults that were [`Proxy::set`] have happened.
    pub async fn happened(&self, count: usize) {
        let mut sprung = self.shared.sprung.subscribe();
        sprung.wait_for(|so_far| *so_far >= count).await.expect("the proxy outlives its waiters");
    }

    /// Cuts every connection there is.
    pub fn cut_all(&self) {
        let newest = *self.shared.connections.borrow();
        self.shared.weather.send_modify(|weather| weather.cut_up_to = newest);
    }

    /// Nothing passes any more, on connections new and old, and nobody is told.
    pub fn stall(&self) {
        self.shared.weather.send_modify(|weather| weather.is_stalled = true);
    }
}

impl Shared {
    /// What is to happen to a connection that says this, if anything; it then waits no longer.
    fn spring(&self, statement: &str) -> Option<Fault> {
        let mut traps = lock(&self.traps);
        let at = traps.iter().position(|trap| statement.contains(trap.statement))?;
        Some(traps.remove(at).fault)
    }

    fn has_sprung(&self) {
        self.sprung.send_modify(|count| *count += 1);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("a loopback listener accepts");
        let mut number = 0;
        shared.connections.send_modify(|count| {
            *count += 1;
            number = *count;
        });
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let upstream = *lock(&shared.upstream);
            // Where nobody listens the client's connection just ends.
            if let Ok(server) = TcpStream::connect(upstream).await {
                connection::carry(client, server, number, &shared).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Where the server of a database's URL listens; servers of tests do so on loopback.
fn server_of(database_url: &str) -> SocketAddr {
    let options: PgConnectOptions = database_url.parse().expect("a database URL");
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), options.get_port())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
