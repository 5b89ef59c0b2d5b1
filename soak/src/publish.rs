//! The publishers: each event under its own key, sent again under it until somebody says that it is accepted.
//!
//! Invariant: what is noted as accepted was answered so; a publisher gives up on no event, unless it gets an answer that
//! no publisher should get.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use postrider_core::name::IdempotencyKey;
use postrider_testkit::ledger::Accepted;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    chance::Chance,
    clock,
    connection::{Answer, Connection, Head},
    fleet::Doors,
    installation::Application,
    shape::Seat,
};

const BODY_BYTES: usize = 300;
const PUBLISHERS: u64 = 64;
/// A process that is frozen answers later, or never.
const PATIENCE: Duration = Duration::from_secs(2);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Of a hundred accepted events, how many are published once more, as by a publisher that forgot the answer.
const REPEATED_PERCENT: u64 = 3;
/// One goes to one endpoint, one to two, one to three.
const EVENT_TYPES: [&str; 3] = ["order.created", "order.paid", "order.shipped"];

/// Lets publishers send as many events as the faults' schedule has room for.
#[derive(Debug)]
pub(crate) struct Pace {
    permits: Semaphore,
    next: AtomicUsize,
    events: usize,
}

impl Pace {
    pub(crate) fn new(events: usize) -> Self {
        Self { permits: Semaphore::new(0), next: AtomicUsize::new(0), events }
    }

    pub(crate) fn allow(&self, events: usize) {
        self.permits.add_permits(events);
    }

    /// Lets publishers that wait for more find out that there is no more.
    pub(crate) fn end(&self) {
        self.permits.close();
    }

    /// The number of an event to publish; none once all were handed out.
    async fn next(&self) -> Option<u64> {
        // A closed semaphore gives none: by then every event was allowed, and what is left may go at once.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        (number < self.events).then(|| u64::try_from(number).unwrap_or(u64::MAX))
    }
}

/// What the publishers write down.
#[derive(Debug, Default)]
pub(crate) struct Books {
    accepted: Mutex<Vec<Accepted>>,
    unexpected: Mutex<Vec<String>>,
    pub(crate) unavailable: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) cut: AtomicU64,
    pub(crate) unanswered: AtomicU64,
    longest_wait_ms: AtomicU64,
}

impl Books {
    /// Every 2xx answer.
    pub(crate) fn accepted(&self) -> MutexGuard<'_, Vec<Accepted>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers that no publisher should get.
    pub(crate) fn unexpected(&self) -> MutexGuard<'_, Vec<String>> {
        self.unexpected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the first try of an event to the answer that it is accepted.
    pub(crate) fn longest_wait(&self) -> Duration {
        Duration::from_millis(self.longest_wait_ms.load(Ordering::SeqCst))
    }

    fn note_error(&self, error: &io::Error) {
        let count = match error.kind() {
            io::ErrorKind::ConnectionRefused => &self.refused,
            io::ErrorKind::TimedOut => &self.unanswered,
            _ => &self.cut,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// What all publishers share.
#[derive(Debug)]
pub(crate) struct Publishing {
    pub(crate) seed: u64,
    pub(crate) applications: Vec<Application>,
    pub(crate) doors: Doors,
    pub(crate) pace: Arc<Pace>,
    pub(crate) books: Arc<Books>,
}

/// Starts the publishers; they end when every event is accepted.
pub(crate) fn start(publishing: Publishing) -> JoinSet<()> {
    let shared = Arc::new(publishing);
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHERS {
        let chance = Chance::of(shared.seed, &[1, number]);
        let connections = shared.doors.seats.iter().map(|_| None).collect();
        let publisher = Publisher { shared: Arc::clone(&shared), chance, connections };
        publishers.spawn(publisher.run());
    }
    publishers
}

struct Publisher {
    shared: Arc<Publishing>,
    chance: Chance,
    /// By door.
    connections: Vec<Option<Kept>>,
}

/// A connection to the process that listened there.
struct Kept {
    address: SocketAddr,
    connection: Connection,
}

struct Event<'a> {
    application: &'a Application,
    path: String,
    key: IdempotencyKey,
    body: Bytes,
}

enum Sent {
    Accepted(Accepted),
    Again,
    /// Something is wrong with the product or with the soak.
    Unexpected(String),
}

impl Publisher {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(number) = shared.pace.next().await {
            let event = event(&shared.applications, number);
            self.publish(&event).await;
            if self.chance.percent(REPEATED_PERCENT) {
                self.publish(&event).await;
            }
        }
    }

    async fn publish(&mut self, event: &Event<'_>) {
        let began = clock::monotonic();
        let mut pause = SHORTEST_PAUSE;
        let doors = self.shared.doors.seats.len();
        let mut door = usize::try_from(self.chance.below(doors as u64)).unwrap_or_default();
        loop {
            match self.try_once(event, door).await {
                Sent::Accepted(accepted) => {
                    let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.shared.books.longest_wait_ms.fetch_max(waited, Ordering::SeqCst);
                    self.shared.books.accepted().push(accepted);
                    return;
                }
                Sent::Unexpected(answer) => {
                    self.shared.books.unexpected().push(answer);
                    return;
                }
                Sent::Again => {
                    door = (door + 1) % doors;
                    sleep(pause.mul_f64(0.5) + self.chance.between(Duration::ZERO, pause / 2)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// One try, at the preferred door or the next one whose process is up.
    async fn try_once(&mut self, event: &Event<'_>, preferred: usize) -> Sent {
        let shared = Arc::clone(&self.shared);
        let doors = &shared.doors;
        let Some((door, seat, address)) = open_door(doors, preferred) else { return Sent::Again };
        let on_its_way = doors.enter(seat);
        let kept = self.connections[door].take().filter(|kept| kept.address == address);
        let answered = exchange(address, kept, event).await;
        drop(on_its_way);
        match answered {
            Ok((answer, kept)) => {
                self.connections[door] = kept;
                judge(event, &answer, &shared.books)
            }
            Err(error) => {
                shared.books.note_error(&error);
                Sent::Again
            }
        }
    }
}

fn open_door(doors: &Doors, preferred: usize) -> Option<(usize, Seat, SocketAddr)> {
    let addresses = doors.addresses.borrow();
    let all = doors.seats.iter().enumerate().cycle().skip(preferred).take(doors.seats.len());
    all.into_iter().find_map(|(door, seat)| Some((door, *seat, addresses[seat.index]?)))
}

/// Also returns the connection, if it is of more use.
async fn exchange(
    address: SocketAddr,
    kept: Option<Kept>,
    event: &Event<'_>,
) -> io::Result<(Answer, Option<Kept>)> {
    let mut connection = match kept {
        Some(kept) => kept.connection,
        // A process that stands still accepts connections only as long as the system has room for those that wait.
        None => timeout(PATIENCE, Connection::open(address)).await??,
    };
    let token = &event.application.publish_token;
    let head = Head { method: "POST", path: &event.path, token, key: Some(event.key.as_str()) };
    let answer = connection.exchange(head, &event.body, PATIENCE).await?;
    let kept = (!answer.is_last).then_some(Kept { address, connection });
    Ok((answer, kept))
}

fn judge(event: &Event<'_>, answer: &Answer, books: &Books) -> Sent {
    let Answer { status, body, .. } = answer;
    match status {
        200 | 202 => {
            let event_id = body["id"].as_str().and_then(|id| id.parse().ok());
            let deliveries = body["deliveries"].as_u64().and_then(|count| u32::try_from(count).ok());
            let (Some(event_id), Some(deliveries)) = (event_id, deliveries) else {
                return Sent::Unexpected(format!("{} was answered {status} with {body}", event.key));
            };
            let key = Some((event.application.name.clone(), event.key.clone()));
            Sent::Accepted(Accepted { event_id, key, deliveries, body: event.body.clone() })
        }
        // The request was on its way when its process was frozen, or the process or its database is going away.
        408 | 503 => {
            books.unavailable.fetch_add(1, Ordering::SeqCst);
            Sent::Again
        }
        _ => Sent::Unexpected(format!("{} was answered {status} with {body}", event.key)),
    }
}

fn event(applications: &[Application], number: u64) -> Event<'_> {
    let index = usize::try_from(number).unwrap_or_default();
    let application = &applications[index % applications.len()];
    let event_type = EVENT_TYPES[(index / applications.len()) % EVENT_TYPES.len()];
    let Application { tenant, name, .. } = application;
    let key = format!("soak-{number}").parse().expect("a short key of plain letters is valid");
    Event {
        application,
        path: format!("/api/tenants/{tenant}/applications/{name}/events/{event_type}"),
        key,
        body: body(number),
    }
}

const NUMBER: &str = "{\"number\":";

fn body(number: u64) -> Bytes {
    let start = format!("{NUMBER}{number},\"filling\":\"");
    let end = "\"}";
    let filling = "x".repeat(BODY_BYTES.saturating_sub(start.len() + end.len()));
    Bytes::from(format!("{start}{filling}{end}"))
}

/// The number of the event with this body.
pub(crate) fn number_in(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?.strip_prefix(NUMBER)?;
    text.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_its_length_and_its_number() {
        for number in [0, 7, 49_999] {
            assert_eq!(body(number).len(), BODY_BYTES);
            assert_eq!(number_in(&body(number)), Some(number));
        }
        assert_eq!(number_in(b"{}"), None);
    }
}
