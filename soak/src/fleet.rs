//! The two processes, where publishers find them, and what became of those that ran before.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::{
    error::Error,
    plan::Side,
    process::{Process, Program},
    queue::Queue,
};

/// From listening to the first beat, on a machine that has other things to do.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(20);
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Where each process listens, as far as publishers can know: a frozen one still does.
pub(crate) type Addresses = [Option<SocketAddr>; 2];

/// What publishers see of the fleet, and it of them.
#[derive(Debug, Clone)]
pub(crate) struct Doors {
    pub(crate) addresses: watch::Receiver<Addresses>,
    in_flight: Arc<[AtomicUsize; 2]>,
}

/// A request that is on its way, until dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay<'a>(&'a AtomicUsize);

#[derive(Debug)]
pub(crate) struct Fleet {
    program: Program,
    queue: Queue,
    seats: [Seat; 2],
    addresses: watch::Sender<Addresses>,
    in_flight: Arc<[AtomicUsize; 2]>,
    known: HashSet<Uuid>,
    /// Processes that ended without being told to.
    pub(crate) died: Vec<String>,
}

#[derive(Debug, Default)]
struct Seat {
    process: Option<Process>,
    /// Under which id it is known to the others.
    instance: Option<Uuid>,
    starts: u32,
}

impl Doors {
    pub(crate) fn enter(&self, side: Side) -> OnItsWay<'_> {
        let count = &self.in_flight[side.index()];
        count.fetch_add(1, Ordering::SeqCst);
        OnItsWay(count)
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fleet {
    /// Starts both processes.
    pub(crate) async fn start(program: Program, queue: Queue) -> Result<Self, Error> {
        let mut fleet = Self {
            program,
            queue,
            seats: <[Seat; 2]>::default(),
            addresses: watch::Sender::new([None; 2]),
            in_flight: Arc::default(),
            known: HashSet::new(),
            died: Vec::new(),
        };
        for side in Side::BOTH {
            fleet.launch(side).await?;
        }
        Ok(fleet)
    }

    pub(crate) fn doors(&self) -> Doors {
        Doors { addresses: self.addresses.subscribe(), in_flight: Arc::clone(&self.in_flight) }
    }

    pub(crate) fn bootstrap_token(&self) -> &str {
        &self.program.bootstrap_token
    }

    pub(crate) fn address(&self, side: Side) -> Result<SocketAddr, Error> {
        let address = self.addresses.borrow()[side.index()];
        address.ok_or_else(|| Error::NotUp {
            process: side.as_str().to_owned(),
            said: "it is not running".to_owned(),
            log: self.program.logs.clone(),
        })
    }

    /// The id under which the process on this side holds its leases.
    pub(crate) fn instance(&self, side: Side) -> Option<Uuid> {
        self.seats[side.index()].instance
    }

    /// Requests of publishers that this side has not answered.
    pub(crate) fn requests_in_flight(&self, side: Side) -> usize {
        self.in_flight[side.index()].load(Ordering::SeqCst)
    }

    /// Starts the process of a side and returns when it listens and its heart beats.
    pub(crate) async fn launch(&mut self, side: Side) -> Result<(), Error> {
        let seat = &mut self.seats[side.index()];
        seat.starts += 1;
        seat.instance = None;
        let name = format!("{}-{:03}", side.as_str(), seat.starts);
        let process = self.program.start(name).await?;
        let address = process.address;
        seat.process = Some(process);
        self.addresses.send_modify(|addresses| addresses[side.index()] = Some(address));
        self.learn(side).await
    }

    pub(crate) async fn kill(&mut self, side: Side) -> Result<(), Error> {
        let killed = match self.seats[side.index()].process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        };
        self.addresses.send_modify(|addresses| addresses[side.index()] = None);
        killed
    }

    pub(crate) fn signal(&self, side: Side, signal: Signal) -> Result<(), Error> {
        self.seats[side.index()].process.as_ref().map_or(Ok(()), |process| process.signal(signal))
    }

    /// Waits until the process of this side lives under an id that nobody has declared dead.
    ///
    /// Faults come one at a time, and so do new ids: one that was not known before is this side's.
    pub(crate) async fn learn(&mut self, side: Side) -> Result<(), Error> {
        let looking = async {
            loop {
                // The database may have just come back.
                let living = self.queue.instances().await.unwrap_or_default();
                let current = self.instance(side).filter(|current| living.contains(current));
                let fresh = living.iter().find(|id| !self.known.contains(*id)).copied();
                if let Some(instance) = current.or(fresh) {
                    return instance;
                }
                sleep(PAUSE_BETWEEN_LOOKS).await;
            }
        };
        let found = timeout(FIRST_BEAT_LIMIT, looking).await;
        let seat = &mut self.seats[side.index()];
        let name = seat.process.as_ref().map_or_else(String::new, |process| process.name.clone());
        let instance = found.map_err(|_| Error::NoHeartbeat { process: name })?;
        self.known.insert(instance);
        seat.instance = Some(instance);
        Ok(())
    }

    /// Takes note of processes that ended without being told to, and starts them again as a supervisor would.
    pub(crate) async fn look_after(&mut self) -> Result<(), Error> {
        for side in Side::BOTH {
            let Some(process) = &mut self.seats[side.index()].process else { continue };
            if let Some(status) = process.ended() {
                self.died.push(format!(
                    "{} ended by itself: {status}; {}",
                    process.name,
                    process.log.display()
                ));
                self.launch(side).await?;
            }
        }
        Ok(())
    }

    /// Ends both in order; says which did not end well.
    pub(crate) async fn terminate(&mut self) -> Result<(), Error> {
        self.look_after().await?;
        for side in Side::BOTH {
            let Some(process) = self.seats[side.index()].process.take() else { continue };
            let (name, log) = (process.name.clone(), process.log.clone());
            let status = process.terminate().await?;
            if !status.success() {
                self.died.push(format!("{name} did not end well: {status}; {}", log.display()));
            }
        }
        Ok(())
    }
}
