//! How receivers answer. Each delivery's answers are drawn from the seed, its receiver and how often it came, so they do
//! not depend on what else happens.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::id::DeliveryId;
use postrider_testkit::{answer::Answer, receiver::Request};

use crate::{
    chance::Chance,
    installation::ENDPOINT_TIMEOUT,
    publish::number_in,
    repeats::{AttemptKey, Unanswered},
};

/// A silence that outlasts the patience of every endpoint.
const SILENCE: Duration = ENDPOINT_TIMEOUT.saturating_add(Duration::from_millis(400));

/// What kind of receiver an endpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temper {
    /// Answers at once.
    Steady,
    /// Takes its time.
    Slow,
    /// Often fails, in all ways.
    Moody,
}

impl Temper {
    pub(crate) const ALL: [Self; 3] = [Self::Steady, Self::Slow, Self::Moody];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Slow => "slow",
            Self::Moody => "moody",
        }
    }

    /// Which events come here: one type goes to one endpoint, one to two, one to all three.
    pub(crate) const fn event_types(self) -> &'static [&'static str] {
        match self {
            Self::Steady => &["order.*"],
            Self::Slow => &["order.paid", "order.shipped"],
            Self::Moody => &["order.shipped"],
        }
    }

    pub(crate) fn path(self, tenant: &str) -> String {
        format!("/{tenant}/{}", self.as_str())
    }

    fn of_path(path: &str) -> Self {
        let is_of = |temper: &Self| path.ends_with(temper.as_str());
        Self::ALL.into_iter().find(is_of).unwrap_or(Self::Steady)
    }

    fn reply(self, chance: &mut Chance) -> Reply {
        let milliseconds = Duration::from_millis;
        let answer = match (self, chance.below(100)) {
            (Self::Steady, 0..2) => Answer::ok().late(chance.between(milliseconds(10), milliseconds(60))),
            (Self::Slow, 0..2) => Answer::status(503).header("Retry-After", "1"),
            (Self::Slow, _) => Answer::ok().late(chance.between(milliseconds(10), milliseconds(150))),
            (Self::Moody, 0..6) => Answer::status(500),
            (Self::Moody, 6..9) => Answer::ok().late(SILENCE),
            (Self::Moody, 9..12) => return Reply::Closed(Answer::reset()),
            (Self::Moody, 12..15) => return Reply::Closed(Answer::close()),
            (Self::Moody, 15..17) => Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ncut"),
            (Self::Moody, 17..19) => Answer::raw("HTTP/1.1 2"),
            (Self::Steady | Self::Moody, _) => Answer::ok(),
        };
        Reply::Answered(answer)
    }
}

enum Reply {
    Answered(Answer),
    /// The connection ends instead.
    Closed(Answer),
}

/// What the receivers write down beside the requests.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    /// How often each event came to each receiver.
    times: HashMap<(String, u64), u64>,
    pub(crate) count: usize,
    /// Whose connection was closed instead.
    pub(crate) unanswered: Unanswered,
}

/// The same for all who look.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Visits>>);

impl Book {
    pub(crate) fn open(&self) -> MutexGuard<'_, Visits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The standing answer of the receiver.
pub(crate) fn answers(seed: u64, book: Book) -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    move |request| {
        let path = request.target();
        let number = number_in(&request.body).unwrap_or_default();
        let mut visits = book.open();
        visits.count += 1;
        let times = visits.times.entry((path.to_owned(), number)).or_default();
        *times += 1;
        let receiver = path.bytes().fold(0_u64, |mixed, byte| mixed.wrapping_mul(31) + u64::from(byte));
        match Temper::of_path(path).reply(&mut Chance::of(seed, &[receiver, number, *times])) {
            Reply::Answered(answer) => answer,
            Reply::Closed(answer) => {
                if let Some(key) = attempt_of(request) {
                    *visits.unanswered.entry(key).or_default() += 1;
                }
                answer
            }
        }
    }
}

fn attempt_of(request: &Request) -> Option<AttemptKey> {
    let delivery: DeliveryId = request.header("webhook-id")?.parse().ok()?;
    Some((delivery, attempt_number_of(request)?))
}

/// Which attempt a request says it is of.
pub(crate) fn attempt_number_of(request: &Request) -> Option<i32> {
    request.header("postrider-attempt")?.parse().ok()
}
