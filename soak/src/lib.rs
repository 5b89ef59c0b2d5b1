//! The soak: processes on one database, under load, killed, frozen and deprived by chance of their database and of what
//! they share beside it, until the ledgers are compared.
//!
//! | part | role |
//! |---|---|
//! | `shape` | which processes there are: two that do everything, or a fleet with a broker and a Redis |
//! | `plan` | what happens, drawn from the seed |
//! | `chaos` | does it, amid the publishers' requests |
//! | `fleet`, `process` | the processes |
//! | `dependencies` | the broker and the Redis of a fleet |
//! | `publish`, `receive` | both ends, and their books |
//! | `drain` | waits until everything has ended |
//! | `verdict`, `repeats`, `report` | the books against the database, and the printed ledger |
//! | `workplace` | the directory of it all, and what is left in it as evidence |
//!
//! Invariant: whatever a soak starts, it ends: its processes by their ids, its servers, its directory. Only a
//! soak that fails leaves its directory behind.

mod chance;
mod chaos;
mod clock;
mod connection;
mod dependencies;
mod drain;
mod error;
mod fleet;
mod installation;
mod plan;
mod process;
mod publish;
mod queue;
mod receive;
mod repeats;
mod report;
mod shape;
mod verdict;
mod workplace;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings};
use postrider_testkit::{
    ledger::{Evidence, Ledger},
    receiver::Receiver,
};
use sqlx::postgres::PgPoolOptions;
use tokio::time::timeout;

pub use crate::{
    chaos::Faults,
    error::Error,
    queue::Redelivered,
    repeats::Repeats,
    report::{Hit, Outcome, Publishing},
    shape::Shape,
    verdict::Bar,
};

use crate::{
    chaos::{Chaos, Done},
    dependencies::{Dependencies, Unrest},
    drain::Drained,
    fleet::Fleet,
    process::Program,
    publish::{Books, Pace},
    queue::Queue,
    receive::Book,
    verdict::Arrival,
    workplace::Workplace,
};

/// Four pools of 16, a dozen lanes each, and what killed processes leave behind for a moment.
const DATABASE_CONNECTIONS: &str = "300";

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that is put to the test.
    pub postrider: PathBuf,
    pub shape: Shape,
    pub events: usize,
    pub kills: usize,
    pub seed: u64,
    pub longest: Duration,
}

/// A soak that came to an end.
#[derive(Debug)]
pub struct Ended {
    pub result: Result<Outcome, Error>,
    /// Where the evidence is, if it failed.
    pub kept: Option<PathBuf>,
}

/// Runs a soak. Dropping the future ends whatever it started.
pub async fn run(options: &Options) -> Ended {
    let workplace = match Workplace::make() {
        Ok(workplace) => workplace,
        Err(error) => return Ended { result: Err(error), kept: None },
    };
    let soaked = timeout(options.longest, soak(options, &workplace)).await;
    let result = soaked.unwrap_or(Err(Error::TooLong(options.longest)));
    let is_sound = result.as_ref().is_ok_and(Outcome::is_sound);
    let kept = (!is_sound).then(|| workplace.keep());
    Ended { result, kept }
}

async fn soak(options: &Options, workplace: &Workplace) -> Result<Outcome, Error> {
    let began = clock::monotonic();
    let mut cluster = start_database(workplace).await?;
    let url = cluster.url(postrider_embedded::cluster::DATABASE);
    let queue = Queue(PgPoolOptions::new().max_connections(4).connect_lazy(&url)?);
    let mut dependencies = match options.shape {
        Shape::Pair => None,
        Shape::Fleet => Some(Dependencies::start(&workplace.logs()).await?),
    };
    let (receiver, book) = (Receiver::start().await, Book::default());
    receiver.answer_with(receive::answers(options.seed, book.clone()));
    let mut variables = dependencies.as_ref().map_or_else(Vec::new, Dependencies::variables);
    variables.push(("DATABASE_URL", url));
    let program = Program::new(&options.postrider, workplace.logs(), variables);
    let mut fleet = Fleet::start(options.shape, program, queue.clone()).await?;
    let applications =
        installation::make(fleet.address()?, fleet.bootstrap_token(), |path| receiver.url(path)).await?;

    let (books, pace) = (Arc::<Books>::default(), Arc::new(Pace::new(options.events)));
    let mut publishers = publish::start(publish::Publishing {
        seed: options.seed,
        applications,
        doors: fleet.doors(),
        pace: Arc::clone(&pace),
        books: Arc::clone(&books),
    });
    let chaos = Chaos {
        cluster: &mut cluster,
        fleet: &mut fleet,
        dependencies: dependencies.as_mut(),
        queue: &queue,
        pace: &pace,
        book: &book,
        done: Done::default(),
    };
    let plan = plan::draw(options.shape, options.seed, options.kills, options.events);
    let done = chaos.carry_out(&plan).await?;
    while let Some(ended) = publishers.join_next().await {
        ended?;
    }
    let drained = drain::drain(&queue, &mut fleet).await?;
    let unrest = match &mut dependencies {
        Some(dependencies) => dependencies.come_to_rest(&queue, options.shape.seats().len()).await?,
        None => Unrest::default(),
    };
    fleet.terminate().await?;

    let arrivals: Vec<Arrival> = receiver.requests().iter().map(Arrival::of).collect();
    let findings =
        Findings { options, books: &books, book: &book, fleet: &fleet, done, drained, unrest, arrivals };
    let mut outcome = judge(findings, &queue).await?;
    outcome.took = began.elapsed();
    if !outcome.is_sound() {
        workplace.write_evidence(&outcome)?;
    }
    queue.0.close().await;
    cluster.stop().await?;
    Ok(outcome)
}

async fn start_database(workplace: &Workplace) -> Result<Cluster, Error> {
    let settings = Settings {
        binaries: Binaries::find(None)?,
        place: Place::Directory(workplace.database()),
        durability: Durability::Full,
        parameters: vec![("max_connections".to_owned(), DATABASE_CONNECTIONS.to_owned())],
    };
    Ok(Cluster::start(settings).await?)
}

struct Findings<'a> {
    options: &'a Options,
    books: &'a Books,
    book: &'a Book,
    fleet: &'a Fleet,
    done: Done,
    drained: Drained,
    unrest: Unrest,
    arrivals: Vec<Arrival>,
}

async fn judge(findings: Findings<'_>, queue: &Queue) -> Result<Outcome, Error> {
    let Findings { options, books, book, fleet, done, drained, unrest, arrivals } = findings;
    let evidence = Evidence::read(&queue.0).await?;
    let redelivered = queue.redelivered(&done.cut).await?;
    let received = arrivals.iter().map(|arrival| arrival.received.clone()).collect();
    let ledger = Ledger { accepted: books.accepted().clone(), received, ..Ledger::default() };
    let (of_ledgers, report) = verdict::of_ledgers(&ledger, &arrivals, &evidence);
    let hit = done.hit();
    let (of_repeats, repeats) = repeats::explain(&arrivals, &book.open().unanswered, &evidence, &hit);
    let stuck = [done.overdue, drained.stuck].concat();
    let bars = [
        vec![
            Bar::all("events accepted", report.events, options.events),
            Bar::all("deliveries of what was accepted", report.deliveries(), ledger.promised_deliveries()),
            Bar::all("kills", done.faults.kills(), options.kills),
            verdict::of_stuck(&stuck),
        ],
        of_ledgers,
        of_repeats,
        vec![
            Bar::none("answers that no publisher should get", books.unexpected().clone()),
            Bar::none("processes that ended by themselves, or badly", fleet.died.clone()),
        ],
        match options.shape {
            Shape::Pair => Vec::new(),
            Shape::Fleet => verdict::of_dependencies(unrest, done.silences),
        },
    ]
    .concat();
    let hit = Hit {
        requests: done.requests_hit,
        at_kills: done.cut.len(),
        at_stops: done.frozen.len(),
        at_restarts: done.stranded.len(),
        attempts: hit.len(),
    };
    Ok(Outcome {
        seed: options.seed,
        took: Duration::ZERO,
        faults: done.faults,
        hit,
        redelivered,
        drain: drained.took,
        publishing: publishing(books),
        received: ledger.received.len(),
        ledger: report,
        repeats,
        bars,
    })
}

fn publishing(books: &Books) -> Publishing {
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    Publishing {
        unavailable: count(&books.unavailable),
        refused: count(&books.refused),
        cut: count(&books.cut),
        unanswered: count(&books.unanswered),
        longest_wait: books.longest_wait(),
    }
}
