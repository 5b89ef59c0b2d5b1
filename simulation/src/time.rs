//! Simulated time: one for all, shown to each process by a clock of its own whose time of day may be wrong.
//!
//! Invariant: no timer ends by itself. Time moves only when the run moves it, and a timer that is due ends only when the
//! run ends it: late timers are how a slow machine is simulated.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::future::BoxFuture;
use postrider_engine::clock::Clock;
use time::{OffsetDateTime, macros::datetime};

/// When every run begins.
const BEGINNING: OffsetDateTime = datetime!(2026-07-01 12:00 UTC);

/// The time since the beginning; clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Time(Arc<Mutex<Duration>>);

impl Time {
    pub fn elapsed(&self) -> Duration {
        *lock(&self.0)
    }

    pub fn now(&self) -> OffsetDateTime {
        BEGINNING + self.elapsed()
    }

    pub fn advance(&self, duration: Duration) {
        *lock(&self.0) += duration;
    }
}

/// The clock of one process.
#[derive(Debug, Clone)]
pub struct ProcessClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    time: Time,
    skew: time::Duration,
    timers: Mutex<Timers>,
}

#[derive(Debug, Default)]
struct Timers {
    next: u64,
    running: BTreeMap<u64, Timer>,
}

#[derive(Debug)]
struct Timer {
    due: Duration,
    length: Duration,
    has_ended: bool,
    waker: Waker,
}

/// A timer that may end now.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    pub number: u64,
    pub length: Duration,
}

impl ProcessClock {
    pub fn new(time: Time, skew: time::Duration) -> Self {
        Self(Arc::new(Inner { time, skew, timers: Mutex::default() }))
    }

    /// The timers that are due, the oldest first.
    pub fn due(&self) -> Vec<Due> {
        let now = self.0.time.elapsed();
        let timers = lock(&self.0.timers);
        let due = timers.running.iter().filter(|(_, timer)| !timer.has_ended && timer.due <= now);
        due.map(|(number, timer)| Due { number: *number, length: timer.length }).collect()
    }

    /// How long until the next timer is due that is not due yet.
    pub fn until_next(&self) -> Option<Duration> {
        let now = self.0.time.elapsed();
        let timers = lock(&self.0.timers);
        timers
            .running
            .values()
            .filter_map(|timer| timer.due.checked_sub(now))
            .filter(|left| !left.is_zero())
            .min()
    }

    /// Ends a timer.
    pub fn end(&self, number: u64) {
        let waker = lock(&self.0.timers).running.get_mut(&number).map(|timer| {
            timer.has_ended = true;
            timer.waker.clone()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> OffsetDateTime {
        self.0.time.now() + self.0.skew
    }

    fn monotonic(&self) -> Duration {
        self.0.time.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let due = self.0.time.elapsed() + duration;
        Box::pin(Sleep { clock: Arc::clone(&self.0), due, length: duration, number: None })
    }
}

struct Sleep {
    clock: Arc<Inner>,
    due: Duration,
    length: Duration,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.length.is_zero() {
            return Poll::Ready(());
        }
        let clock = Arc::clone(&self.clock);
        let mut timers = lock(&clock.timers);
        if let Some(timer) = self.number.and_then(|number| timers.running.get_mut(&number)) {
            if timer.has_ended {
                return Poll::Ready(());
            }
            timer.waker.clone_from(context.waker());
        } else {
            let number = timers.next;
            timers.next += 1;
            let waker = context.waker().clone();
            let timer = Timer { due: self.due, length: self.length, has_ended: false, waker };
            timers.running.insert(number, timer);
            self.number = Some(number);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            lock(&self.clock.timers).running.remove(&number);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
