//! The processes, where publishers find them, and what became of those that ran before.

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
    process::{Process, Program},
    queue::Queue,
    shape::{Seat, Shape},
};

/// From listening to the first beat, on a machine that has other things to do.
const FIRST_BEAT_LIMIT: Duration = Duration::from_secs(20);
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Where each process listens, as far as publishers can know: a frozen one still does.
pub(crate) type Addresses = Vec<Option<SocketAddr>>;

/// What publishers see of the fleet, and it of them.
#[derive(Debug, Clone)]
pub(crate) struct Doors {
    /// Where events are taken.
    pub(crate) seats: Vec<Seat>,
    /// By seat.
    pub(crate) addresses: watch::Receiver<Addresses>,
    in_flight: Arc<[AtomicUsize]>,
}

/// A request that is on its way, until dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay<'a>(&'a AtomicUsize);

#[derive(Debug)]
pub(crate) struct Fleet {
    shape: Shape,
    program: Program,
    queue: Queue,
    occupants: Vec<Occupant>,
    addresses: watch::Sender<Addresses>,
    in_flight: Arc<[AtomicUsize]>,
    known: HashSet<Uuid>,
    /// Processes that ended without being told to.
    pub(crate) died: Vec<String>,
}

/// Who sits there.
#[derive(Debug, Default)]
struct Occupant {
    process: Option<Process>,
    /// Under which id it is known to the others.
    instance: Option<Uuid>,
    starts: u32,
}

impl Doors {
    pub(crate) fn enter(&self, seat: Seat) -> OnItsWay<'_> {
        let count = &self.in_flight[seat.index];
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
    /// Starts all processes.
    pub(crate) async fn start(shape: Shape, program: Program, queue: Queue) -> Result<Self, Error> {
        let seats = shape.seats();
        let mut fleet = Self {
            shape,
            program,
            queue,
            occupants: seats.iter().map(|_| Occupant::default()).collect(),
            addresses: watch::Sender::new(vec![None; seats.len()]),
            in_flight: seats.iter().map(|_| AtomicUsize::new(0)).collect(),
            known: HashSet::new(),
            died: Vec::new(),
        };
        for seat in seats {
            fleet.launch(*seat).await?;
        }
        Ok(fleet)
    }

    pub(crate) fn doors(&self) -> Doors {
        Doors {
            seats: self.shape.doors(),
            addresses: self.addresses.subscribe(),
            in_flight: Arc::clone(&self.in_flight),
        }
    }

    pub(crate) fn bootstrap_token(&self) -> &str {
        &self.program.bootstrap_token
    }

    /// Any door.
    pub(crate) fn address(&self) -> Result<SocketAddr, Error> {
        let addresses = self.addresses.borrow();
        let address = self.shape.doors().into_iter().find_map(|seat| addresses[seat.index]);
        address.ok_or_else(|| Error::NotUp {
            process: "that takes events".to_owned(),
            said: "none is running".to_owned(),
            log: self.program.logs.clone(),
        })
    }

    pub(crate) fn instance(&self, seat: Seat) -> Option<Uuid> {
        self.occupants[seat.index].instance
    }

    /// Requests of publishers on their way to this process.
    pub(crate) fn requests_in_flight(&self, seat: Seat) -> usize {
        self.in_flight[seat.index].load(Ordering::SeqCst)
    }

    /// Starts a process at a seat and returns when it listens and its heart beats.
    pub(crate) async fn launch(&mut self, seat: Seat) -> Result<(), Error> {
        let occupant = &mut self.occupants[seat.index];
        occupant.starts += 1;
        occupant.instance = None;
        let name = format!("{}-{:03}", seat.name, occupant.starts);
        let process = self.program.start(name, seat.role).await?;
        let address = process.address;
        occupant.process = Some(process);
        self.addresses.send_modify(|addresses| addresses[seat.index] = Some(address));
        self.learn(seat).await
    }

    pub(crate) async fn kill(&mut self, seat: Seat) -> Result<(), Error> {
        let killed = match self.occupants[seat.index].process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        };
        self.addresses.send_modify(|addresses| addresses[seat.index] = None);
        killed
    }

    pub(crate) fn signal(&self, seat: Seat, signal: Signal) -> Result<(), Error> {
        self.occupants[seat.index].process.as_ref().map_or(Ok(()), |process| process.signal(signal))
    }

    /// Waits until the process at this seat lives under an id that nobody has declared dead.
    ///
    /// Faults come one at a time, and so do new ids: one that was not known before is this process's.
    pub(crate) async fn learn(&mut self, seat: Seat) -> Result<(), Error> {
        let looking = async {
            loop {
                // The database may have just come back.
                let living = self.queue.instances(seat.role.as_str()).await.unwrap_or_default();
                let current = self.instance(seat).filter(|current| living.contains(current));
                let fresh = living.iter().find(|id| !self.known.contains(*id)).copied();
                if let Some(instance) = current.or(fresh) {
                    return instance;
                }
                sleep(PAUSE_BETWEEN_LOOKS).await;
            }
        };
        let found = timeout(FIRST_BEAT_LIMIT, looking).await;
        let occupant = &mut self.occupants[seat.index];
        let name = occupant.process.as_ref().map_or_else(String::new, |process| process.name.clone());
        let instance = found.map_err(|_| Error::NoHeartbeat { process: name })?;
        self.known.insert(instance);
        occupant.instance = Some(instance);
        Ok(())
    }

    /// Takes note of processes that ended without being told to, and starts them again as a supervisor would.
    pub(crate) async fn look_after(&mut self) -> Result<(), Error> {
        for seat in self.shape.seats() {
            let Some(process) = &mut self.occupants[seat.index].process else { continue };
            if let Some(status) = process.ended() {
                self.died.push(format!(
                    "{} ended by itself: {status}; {}",
                    process.name,
                    process.log.display()
                ));
                self.launch(*seat).await?;
            }
        }
        Ok(())
    }

    /// Ends all in order; says which did not end well.
    pub(crate) async fn terminate(&mut self) -> Result<(), Error> {
        self.look_after().await?;
        for seat in self.shape.seats() {
            let Some(process) = self.occupants[seat.index].process.take() else { continue };
            let (name, log) = (process.name.clone(), process.log.clone());
            let status = process.terminate().await?;
            if !status.success() {
                self.died.push(format!("{name} did not end well: {status}; {}", log.display()));
            }
        }
        Ok(())
    }
}
