//! The open loop's timetable: an event is due every so often, whatever became of those before it.

use std::{io, time::Duration};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::clock;

const NS_PER_S: u64 = 1_000_000_000;

/// When each event is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    start_ns: u64,
    interval_ns: u64,
}

/// Wakes at the due times. A timer of the kernel's, because the runtime's own counts in milliseconds.
#[derive(Debug)]
pub(crate) struct Ticker {
    timer: AsyncFd<rustix::fd::OwnedFd>,
}

impl Schedule {
    /// From now on, so many per second.
    pub(crate) fn starting_now(per_second: u32) -> Self {
        Self { start_ns: clock::now_ns(), interval_ns: NS_PER_S / u64::from(per_second.max(1)) }
    }

    /// The first event is due one interval after the start.
    pub(crate) fn due_ns(self, place: u32) -> u64 {
        self.start_ns + self.interval_ns * (u64::from(place) + 1)
    }

    /// Counts from the start, whenever it is made: what is due by then is told at once.
    pub(crate) fn ticker(self) -> io::Result<Ticker> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let every = Itimerspec { it_interval: time(self.interval_ns)?, it_value: time(self.due_ns(0))? };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &every)?;
        #[expect(
            deprecated,
            reason = "its successor asks for unsafe code; an owned descriptor cannot be closed too early"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Ticker { timer })
    }
}

fn time(ns: u64) -> io::Result<Timespec> {
    Timespec::try_from(Duration::from_nanos(ns)).map_err(io::Error::other)
}

impl Ticker {
    /// Waits for the next due time; tells how many have come since the last call.
    pub(crate) async fn tick(&self) -> io::Result<u64> {
        let read = |timer: &rustix::fd::OwnedFd| {
            let mut count = [0; size_of::<u64>()];
            rustix::io::read(timer, &mut count)?;
            Ok(u64::from_ne_bytes(count))
        };
        self.timer.async_io(Interest::READABLE, read).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_due_at_even_distances() {
        let schedule = Schedule { start_ns: 1_000, interval_ns: 500 };
        assert_eq!([0, 1, 2, 10].map(|place| schedule.due_ns(place)), [1_500, 2_000, 2_500, 6_500]);
        assert_eq!(Schedule::starting_now(4_000).interval_ns, 250_000);
    }

    #[tokio::test]
    async fn a_ticker_that_is_made_late_tells_what_was_due_before() {
        let started = Schedule::starting_now(2_000);
        let schedule = Schedule { start_ns: started.start_ns - 1_000_000_000, ..started };
        assert!(schedule.ticker().unwrap().tick().await.unwrap() >= 2_000);
    }

    #[tokio::test]
    async fn every_due_time_is_told_once_and_none_early() {
        let schedule = Schedule::starting_now(2_000);
        let ticker = schedule.ticker().unwrap();
        let mut told: u32 = 0;
        while told < 100 {
            told += u32::try_from(ticker.tick().await.unwrap()).unwrap();
            assert!(clock::now_ns() >= schedule.due_ns(told - 1));
        }
    }
}
