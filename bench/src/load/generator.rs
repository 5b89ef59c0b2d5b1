//! The generator: publishes numbered events over kept connections. It has a thread of its own.
//!
//! Closed loop: each connection sends, reads the answer and goes on, until the common budget of events is used up.
//! Open loop: events are due by a timetable; whichever connection is free sends the next one, late if none was free, and
//! its latency counts from the due time all the same.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

use super::{
    ledger::Ledger,
    message::{Request, Target},
    schedule::Schedule,
    wire::Incoming,
};
use crate::clock;

/// An event sent later than this after its due time counts as late.
const LATE_NS: u64 = 1_000_000;

/// How fast.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As fast as answers come.
    Closed,
    Open {
        per_second: u32,
    },
}

/// What to send.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// All of one address; events go to each in turn.
    pub(crate) targets: Vec<Target>,
    pub(crate) connections: u16,
    /// The number of the first event; the others follow.
    pub(crate) first: u32,
    pub(crate) events: u32,
    pub(crate) pace: Pace,
}

/// What was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// Right before the first request.
    pub(crate) began_ns: u64,
    /// Right after the last answer.
    pub(crate) ended_ns: u64,
    pub(crate) late: u32,
    pub(crate) latest_ns: u64,
}

/// What the connections of one load share.
struct Shared {
    load: Load,
    ledger: Arc<Ledger>,
    next: AtomicU32,
    schedule: Option<Schedule>,
    due: Semaphore,
    late: AtomicU32,
    latest_ns: AtomicU64,
}

impl Load {
    /// Sends everything. Any answer but a success is an error: a measurement in which events are refused measures
    /// something else.
    pub(crate) async fn run(self, ledger: Arc<Ledger>) -> anyhow::Result<Sent> {
        let (tell, told) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("generator".to_owned()).spawn(move || {
            let sent = runtime.block_on(send(self, ledger));
            drop(tell.send(sent));
        })?;
        told.await.context("the generator has panicked")?
    }
}

async fn send(load: Load, ledger: Arc<Ledger>) -> anyhow::Result<Sent> {
    let address = load.targets.first().context("a load needs a target")?.address;
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(address).await.context("the generator cannot connect")?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let schedule = match load.pace {
        Pace::Closed => None,
        Pace::Open { per_second } => Some(Schedule::starting_now(per_second)),
    };
    let began_ns = clock::now_ns();
    let shared = Arc::new(Shared {
        load,
        ledger,
        next: AtomicU32::new(0),
        schedule,
        due: Semaphore::new(0),
        late: AtomicU32::new(0),
        latest_ns: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn(connection(stream, Arc::clone(&shared)));
    }
    if let Some(schedule) = schedule {
        tasks.spawn(tick(schedule, Arc::clone(&shared)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let (late, latest_ns) = (shared.late.load(Relaxed), shared.latest_ns.load(Relaxed));
    Ok(Sent { began_ns, ended_ns: clock::now_ns(), late, latest_ns })
}

/// Lets the connections know that events have become due.
async fn tick(schedule: Schedule, shared: Arc<Shared>) -> anyhow::Result<()> {
    let ticker = schedule.ticker()?;
    let mut left = usize::try_from(shared.load.events)?;
    while left > 0 {
        let due = usize::try_from(ticker.tick().await?)?.min(left);
        shared.due.add_permits(due);
        left -= due;
    }
    Ok(())
}

async fn connection(mut stream: TcpStream, shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut requests: Vec<Request> = shared.load.targets.iter().map(Request::new).collect();
    let turns = requests.len();
    let mut incoming = Incoming::new();
    while let Some(number) = shared.next().await? {
        let request = &mut requests[usize::try_from(number)? % turns];
        request.set_number(number);
        stream.write_all(request.bytes()).await?;
        let Some(answer) = incoming.next(&mut stream).await? else {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof))
                .context("the server closed a connection");
        };
        match answer.status() {
            Some(200..=299) => shared.ledger.note_accepted(number, clock::now_ns()),
            Some(_) | None => bail!("event {number} was refused: {answer}"),
        }
    }
    Ok(())
}

impl Shared {
    /// The next event's number, once it is due.
    async fn next(&self) -> anyhow::Result<Option<u32>> {
        let place = self.next.fetch_add(1, Relaxed);
        if place >= self.load.events {
            return Ok(None);
        }
        let number = self.load.first + place;
        let Some(schedule) = self.schedule else {
            self.ledger.note_due(number, clock::now_ns());
            return Ok(Some(number));
        };
        let due_ns = schedule.due_ns(place);
        self.ledger.note_due(number, due_ns);
        self.due.acquire().await?.forget();
        let behind_ns = clock::now_ns().saturating_sub(due_ns);
        self.latest_ns.fetch_max(behind_ns, Relaxed);
        if behind_ns > LATE_NS {
            self.late.fetch_add(1, Relaxed);
        }
        Ok(Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::sink::Sink;

    async fn run(path: &str, pace: Pace) -> (Arc<Ledger>, anyhow::Result<Sent>) {
        let ledger = Arc::new(Ledger::new(150, 1));
        let sink = Sink::start(Arc::clone(&ledger)).unwrap();
        let target = Target { address: sink.address, path: path.to_owned(), token: "token".to_owned() };
        let load = Load { targets: vec![target], connections: 4, first: 50, events: 100, pace };
        let sent = load.run(Arc::clone(&ledger)).await;
        (ledger, sent)
    }

    #[tokio::test]
    async fn every_event_is_sent_once_at_either_pace() {
        for pace in [Pace::Closed, Pace::Open { per_second: 2_000 }] {
            let (ledger, sent) = run("/ok/0", pace).await;
            let sent = sent.unwrap();
            assert!(sent.began_ns < ledger.last_received_ns() && ledger.last_received_ns() < sent.ended_ns);
            assert_eq!((ledger.received(), ledger.repeated(), ledger.unknown()), (100, 0, 0), "{pace:?}");
            assert!(ledger.answer_latency(50..150).unwrap().is_some());
            assert!(ledger.answer_latency(0..50).unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn the_open_loop_keeps_to_its_timetable() {
        let (_, sent) = run("/ok/0", Pace::Open { per_second: 1_000 }).await;
        let sent = sent.unwrap();
        assert!(sent.ended_ns - sent.began_ns >= 100_000_000, "{sent:?}");
    }

    #[tokio::test]
    async fn a_refused_event_fails_the_run() {
        let (_, sent) = run("/fail", Pace::Closed).await;
        assert!(sent.unwrap_err().to_string().contains("500"));
    }
}
