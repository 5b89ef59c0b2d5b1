//! Moments that chance alone seldom brings about, made on purpose: a stale result beside a new lease, a line of claimed
//! deliveries at an endpoint that has become slow, a claim that is heard of too late, and letters that a replay can find.

use std::time::Duration;

use postrider_engine::{limits::LONGEST_WAIT_IN_LINE, worker::LATEST_START};

use postrider_store::replay::Status;

use crate::{
    gate::ProcessId,
    network::Open,
    run::{Run, Stop},
};

/// Enough for the others to see it stand still, to declare it dead, to recover and to claim.
const OVERTAKING_ROUNDS: usize = 8;
const OVERTAKING_PAUSE: Duration = Duration::from_millis(1_900);
/// Rounds that letters may take to die, and time between two of them.
const DYING_ROUNDS: usize = 12;
const DYING_PAUSE: Duration = Duration::from_secs(7);
/// Dead letters that are worth a replay.
const ENOUGH_LETTERS: usize = 6;
/// Statements of a crowded process that are let through before time passes.
const MOST_CROWDED: usize = 60;

impl Run<'_> {
    /// A process freezes with a request under way, for so long that the others take its deliveries over; then it wakes
    /// with an answer in its hands, while those others wait for theirs.
    pub(crate) fn overtake(&mut self) -> Result<(), Stop> {
        let open = self.network.open(self.time.elapsed());
        let awake = self.frozen(false);
        let open: Vec<Open> = open.into_iter().filter(|open| awake.contains(&open.id.process)).collect();
        if open.is_empty() {
            return Ok(());
        }
        let stale = self.chance.choose(&open);
        let id = stale.id.process;
        if let Some(process) = self.processes.get_mut(&id) {
            process.is_frozen = true;
        }
        self.trace.line(format_args!("p{id} freezes for long"));
        self.trace.count("freeze for long");
        for _ in 0..OVERTAKING_ROUNDS {
            self.advance(OVERTAKING_PAUSE)?;
            for (process, number, length) in self.due_timers() {
                self.count_step()?;
                self.end_timer(process, number, length)?;
                while let Some(request) = self.requests().into_iter().find(|request| request.process != id) {
                    self.count_step()?;
                    self.forward(&request)?;
                }
            }
        }
        if self.network.open(self.time.elapsed()).iter().any(|open| open.id == stale.id) {
            self.decide(&stale)?;
        }
        self.thaw(id)
    }

    /// Many events at once through one process, whose receivers answer one request and no more: the rest waits in line
    /// until it has waited too long.
    pub(crate) fn crowd(&mut self) -> Result<(), Stop> {
        let mut ids = self.frozen(false);
        ids.retain(|id| self.takes_events(*id));
        if ids.is_empty() {
            return Ok(());
        }
        let id = self.chance.pick(&ids);
        self.trace.line(format_args!("a crowd at p{id}"));
        self.trace.count("crowd");
        // An endpoint has a line once it has answered, and quickly.
        self.publish(id)?;
        self.let_through(id)?;
        let open = self.open_of(id);
        if let Some(first) = open.first() {
            self.answer(first)?;
        }
        for _ in 0..2 {
            self.publish(id)?;
        }
        self.let_through(id)?;
        self.advance(LONGEST_WAIT_IN_LINE)?;
        self.end_due_timers_of(id)
    }

    /// A claim whose answer comes so late that nothing may be sent with it.
    pub(crate) fn delay(&mut self) -> Result<(), Stop> {
        let late = LATEST_START + Duration::from_millis(self.chance.between(0, 1_500));
        self.trace.count("claim delayed");
        self.advance(late)?;
        // Its heart beats first, so that it is alive and knows it.
        for id in self.frozen(false) {
            self.end_due_timers_of(id)?;
        }
        Ok(())
    }

    /// A stretch in which some letters die, and somebody who sees them and may have them sent again.
    pub(crate) fn wait_for_letters(&mut self) -> Result<(), Stop> {
        if self.away_until.is_some() {
            self.end_outage();
        }
        for _ in 0..DYING_ROUNDS {
            if self.witness.ended.values().filter(|ended| !ended.is_delivered).count() >= ENOUGH_LETTERS {
                break;
            }
            self.settle_down(1)?;
            self.advance(DYING_PAUSE)?;
        }
        self.preview()?;
        if self.chance.one_in(2) {
            self.settle_down(1)?;
            if !self.witness.replays.that_are(&[Status::Previewed]).is_empty() {
                return self.execute();
            }
        }
        Ok(())
    }

    fn let_through(&mut self, id: ProcessId) -> Result<(), Stop> {
        for _ in 0..MOST_CROWDED {
            let next = self.requests().into_iter().find(|request| request.process == id);
            let Some(request) = next else { break };
            self.count_step()?;
            self.forward(&request)?;
        }
        Ok(())
    }

    fn open_of(&self, id: ProcessId) -> Vec<Open> {
        let mut open = self.network.open(self.time.elapsed());
        open.retain(|open| open.id.process == id);
        open
    }

    fn end_due_timers_of(&mut self, id: ProcessId) -> Result<(), Stop> {
        for (process, number, length) in self.due_timers() {
            if process == id {
                self.count_step()?;
                self.end_timer(process, number, length)?;
            }
        }
        Ok(())
    }
}
