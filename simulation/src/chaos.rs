//! The middle of a run: at each step the seed chooses what happens next, and now and then it is something bad.

use std::time::Duration;

use postrider_store::failpoint::Point;

use crate::{
    gate::{ProcessId, Request},
    label,
    run::{Doom, PEOPLE, Run, Stop},
};

/// Processes alive at once, beyond which none is started.
const MOST_ENGINES: usize = 3;
/// Processes that are to stop at a failpoint, at once.
const MOST_DOOMED: usize = 2;
/// Where a process may come to stand before it dies, and how often it does.
const POINTS: [(usize, Point); 9] = [
    (1, Point::DeliverAnswered),
    (1, Point::DeliverConcluded),
    (4, Point::SettleGathered),
    (4, Point::SettleWritten),
    (2, Point::IngestCommitted),
    (2, Point::TakeClaimed),
    (2, Point::IngestWritten),
    (2, Point::ReplayMoved),
    (1, Point::ReplayCommitted),
];

#[derive(Debug, Clone, Copy)]
enum Choice {
    Statement,
    Timer,
    Answer,
    Wake,
    Publish,
    PublishMore,
    PublishAgain,
    Time,
    People,
    Fault,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash,
    CrashBefore,
    CrashAfter,
    CrashAnswered,
    StandAndDie,
    Freeze,
    Overtake,
    Crowd,
    Delay,
    Thaw,
    Start,
    LoseStatement,
    LoseAnswer,
    Outage,
    LoseWake,
}

impl Run<'_> {
    pub(crate) fn chaos(&mut self) -> Result<(), Stop> {
        self.count_step()?;
        self.let_the_doomed_die()?;
        let requests = self.requests();
        let due = self.due_timers();
        let open = self.network.open(self.time.elapsed());
        let storing = storing(&requests);
        let is_settling = requests.iter().any(|request| request.label == "settle");
        let choices = [
            (if requests.is_empty() { 0 } else { 120 }, Choice::Statement),
            (if due.is_empty() { 0 } else { 20 }, Choice::Timer),
            (if open.is_empty() { 0 } else { 25 }, Choice::Answer),
            (if self.laboratory.gate.wakes.is_empty() { 0 } else { 5 }, Choice::Wake),
            (6, Choice::Publish),
            (if storing.is_empty() { 0 } else { 12 }, Choice::PublishMore),
            (1, Choice::PublishAgain),
            (if requests.is_empty() { 12 } else { 3 }, Choice::Time),
            (self.model.habits.weight(), Choice::People),
            (if is_settling { 20 } else { 8 }, Choice::Fault),
        ];
        match self.chance.weighted(&choices).unwrap_or(Choice::Time) {
            Choice::Statement => {
                let request = self.chance.choose(&requests);
                self.forward(&request)
            }
            Choice::Timer => {
                let (process, number, length) = self.chance.pick(&due);
                self.end_timer(process, number, length)
            }
            Choice::Answer => {
                let open = self.chance.choose(&open);
                self.answer(&open)
            }
            Choice::Wake => self.wake(),
            Choice::Publish => {
                let engines: Vec<ProcessId> =
                    self.engines().into_iter().filter(|id| self.takes_events(*id)).collect();
                if engines.is_empty() {
                    return Ok(());
                }
                let process = self.chance.pick(&engines);
                self.publish(process)
            }
            Choice::PublishMore => {
                let process = self.chance.pick(&storing);
                if self.takes_events(process) { self.publish(process) } else { Ok(()) }
            }
            Choice::PublishAgain => self.publish_once_more(),
            Choice::Time => self.some_time(),
            Choice::People => self.somebody_acts(),
            Choice::Fault => self.fault(&requests),
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        // What a frozen process sent before is on its way.
        self.laboratory.gate.requests()
    }

    pub(crate) fn due_timers(&self) -> Vec<(ProcessId, u64, Duration)> {
        let awake = self.processes.iter().filter(|(_, process)| !process.is_frozen);
        awake
            .flat_map(|(id, process)| {
                process.clock.due().into_iter().map(|due| (*id, due.number, due.length))
            })
            .collect()
    }

    fn some_time(&mut self) -> Result<(), Stop> {
        let next = self.processes.values().filter_map(|process| process.clock.until_next()).min();
        let time = match self.chance.below(16) {
            0..8 => next.unwrap_or(Duration::from_millis(100)),
            8..12 => Duration::from_millis(self.chance.between(200, 1_500)),
            12..14 => Duration::from_millis(2_900),
            14 => Duration::from_secs(self.chance.between(5, 25)),
            _ => Duration::from_secs(self.chance.pick(&[60, 130])),
        };
        self.advance(time)
    }

    pub(crate) fn wake(&mut self) -> Result<(), Stop> {
        let woken = self.laboratory.gate.wake()?;
        self.trace.line(format_args!("a wake-up for {woken:?}"));
        for process in woken {
            self.touch(process)?;
        }
        Ok(())
    }

    fn let_the_doomed_die(&mut self) -> Result<(), Stop> {
        let mut dying = Vec::new();
        for (id, doom) in &mut self.doomed {
            match doom.steps.checked_sub(1) {
                Some(left) => doom.steps = left,
                None => dying.push((*id, *doom)),
            }
        }
        for (id, Doom { point, has_stopped, .. }) in dying {
            let word = if has_stopped { "at" } else { "before it reached" };
            self.crash(id, &format!("crash {word} {}", point.as_str()))?;
        }
        Ok(())
    }

    /// What may go wrong now, and how often it does.
    fn faults(&self, requests: &[Request]) -> Vec<(usize, Fault)> {
        let (engines, open) = (self.engines().len(), self.network.open(self.time.elapsed()));
        let has_statement = requests.iter().any(|request| request.process != PEOPLE);
        let has = |is: bool, weight: usize| if is { weight } else { 0 };
        let has_claim =
            requests.iter().any(|request| matches!(request.label.as_str(), "take" | label::INGEST));
        let is_settling = requests.iter().any(|request| request.label == "settle");
        let at_statement = if is_settling { 8 } else { 3 };
        let has_more = engines > 1;
        vec![
            (has(has_more, 1), Fault::Crash),
            (has(has_more && has_statement, at_statement), Fault::CrashBefore),
            (has(has_more && has_statement, at_statement), Fault::CrashAfter),
            (has(has_more && !open.is_empty(), 2), Fault::CrashAnswered),
            (has(has_more && self.doomed.len() < MOST_DOOMED, 8), Fault::StandAndDie),
            (has(self.frozen(false).len() > 1, 3), Fault::Freeze),
            (has(self.frozen(false).len() > 1 && !open.is_empty(), 4), Fault::Overtake),
            (has(engines > 0, 3), Fault::Crowd),
            (has(has_claim, 3), Fault::Delay),
            (has(!self.frozen(true).is_empty(), 6), Fault::Thaw),
            (has(engines < MOST_ENGINES, 8), Fault::Start),
            (has(!requests.is_empty(), 2), Fault::LoseStatement),
            (has(!requests.is_empty(), 3), Fault::LoseAnswer),
            (has(self.away_until.is_none(), 1), Fault::Outage),
            (has(!self.laboratory.gate.wakes.is_empty(), 2), Fault::LoseWake),
        ]
    }

    fn fault(&mut self, requests: &[Request]) -> Result<(), Stop> {
        let faults = self.faults(requests);
        let Some(fault) = self.chance.weighted(&faults) else { return Ok(()) };
        match fault {
            Fault::Crash => {
                let engines = self.engines();
                let id = self.chance.pick(&engines);
                self.crash(id, "crash")
            }
            Fault::CrashBefore => self.crash_at_statement(requests, false),
            Fault::CrashAfter => self.crash_at_statement(requests, true),
            Fault::CrashAnswered => {
                let open = self.network.open(self.time.elapsed());
                let open = self.chance.choose(&open);
                self.decide(&open)?;
                self.crash(open.id.process, "crash after an answer")
            }
            Fault::StandAndDie => {
                self.stand_and_die();
                Ok(())
            }
            Fault::Freeze => {
                self.freeze();
                Ok(())
            }
            Fault::Overtake => self.overtake(),
            Fault::Crowd => self.crowd(),
            Fault::Delay => self.delay(),
            Fault::Thaw => {
                let frozen = self.frozen(true);
                let id = self.chance.pick(&frozen);
                self.thaw(id)
            }
            Fault::Start => self.start_engine().map(drop),
            Fault::LoseStatement | Fault::LoseAnswer => {
                let all: Vec<&Request> = requests.iter().collect();
                let request = self.critical(&all);
                self.lose(&request, matches!(fault, Fault::LoseAnswer))
            }
            Fault::Outage => self.outage(),
            Fault::LoseWake => {
                self.laboratory.gate.wakes.pop_front();
                self.trace.line(format_args!("a wake-up is lost"));
                Ok(())
            }
        }
    }

    fn crash_at_statement(&mut self, requests: &[Request], is_after: bool) -> Result<(), Stop> {
        let of_engines: Vec<&Request> = requests.iter().filter(|request| request.process != PEOPLE).collect();
        let request = self.critical(&of_engines);
        if is_after {
            self.pass(&request)?;
        }
        let place = if is_after { "after" } else { "before" };
        self.crash(request.process, &format!("crash {place} {}", request.label))
    }

    /// From now on a process goes no further than a failpoint, and some time later it dies.
    fn stand_and_die(&mut self) {
        let mut well = self.engines();
        well.retain(|id| !self.doomed.contains_key(id));
        if well.is_empty() {
            return;
        }
        let Some(point) = self.chance.weighted(&POINTS) else { return };
        let id = self.chance.pick(&well);
        let steps = 60 + self.chance.below(200);
        self.trace.line(format_args!("p{id} will stand at {} and die", point.as_str()));
        self.doomed.insert(id, Doom { point, steps, has_stopped: false });
        if let Some(process) = self.processes.get_mut(&id) {
            process.stops_at = Some(point);
        }
    }

    fn freeze(&mut self) {
        let awake = self.frozen(false);
        let id = self.chance.pick(&awake);
        if let Some(process) = self.processes.get_mut(&id) {
            process.is_frozen = true;
            self.trace.line(format_args!("p{id} freezes"));
            self.trace.count("freeze");
        }
    }

    pub(crate) fn frozen(&self, is_frozen: bool) -> Vec<ProcessId> {
        let engines = self.processes.iter().filter(|(id, _)| **id != PEOPLE);
        engines.filter(|(_, process)| process.is_frozen == is_frozen).map(|(id, _)| *id).collect()
    }

    /// A statement to strike at: more often than not one of those that move deliveries.
    fn critical(&mut self, requests: &[&Request]) -> Request {
        let critical: Vec<&&Request> = requests
            .iter()
            .filter(|request| {
                matches!(request.label.as_str(), "settle" | "take" | "commit" | "reopen" | label::INGEST)
            })
            .collect();
        let settle = critical.iter().find(|request| request.label == "settle");
        if let Some(settle) = settle
            && self.chance.one_in(2)
        {
            return (***settle).clone();
        }
        if !critical.is_empty() && !self.chance.one_in(3) {
            return (**critical[self.chance.below(critical.len())]).clone();
        }
        requests[self.chance.below(requests.len())].clone()
    }

    pub(crate) fn crash(&mut self, id: ProcessId, what: &str) -> Result<(), Stop> {
        self.trace.line(format_args!("p{id} dies: {what}"));
        self.trace.count(what);
        self.doomed.remove(&id);
        self.processes.remove(&id);
        self.network.forget(id);
        self.publications.lose(id);
        self.laboratory.gate.close_process(id)?;
        let passed = self.laboratory.gate.look_at_waiting()?;
        self.tell(passed)
    }

    pub(crate) fn thaw(&mut self, id: ProcessId) -> Result<(), Stop> {
        if let Some(process) = self.processes.get_mut(&id) {
            process.is_frozen = false;
        }
        self.trace.line(format_args!("p{id} goes on"));
        self.touch(id)
    }

    /// A connection is cut, before or after its statement has run.
    fn lose(&mut self, request: &Request, is_after: bool) -> Result<(), Stop> {
        if is_after {
            self.pass(request)?;
        }
        let Request { client, process, label } = request;
        let place = if is_after { "after" } else { "before" };
        self.trace.line(format_args!("p{process} c{client} is cut {place} {label}"));
        self.trace.count(format!("connection lost {place} {label}"));
        self.laboratory.gate.close(*client)?;
        let passed = self.laboratory.gate.look_at_waiting()?;
        self.tell(passed)?;
        self.touch(*process)
    }

    /// The database goes away: every connection is cut, and none is taken for a while.
    fn outage(&mut self) -> Result<(), Stop> {
        let seconds = self.chance.pick(&[1, 3, 12, 40]);
        self.away_until = Some(self.time.elapsed() + Duration::from_secs(seconds));
        self.laboratory.gate.is_away = true;
        self.trace.line(format_args!("the database goes away for {seconds} s"));
        self.trace.count("outage of the database");
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            for client in self.laboratory.gate.of_process(id) {
                self.laboratory.gate.close(client)?;
            }
        }
        let passed = self.laboratory.gate.look_at_waiting()?;
        self.tell(passed)?;
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            self.touch(id)?;
        }
        Ok(())
    }
}

/// Processes that store events: others may come meanwhile.
fn storing(requests: &[Request]) -> Vec<ProcessId> {
    let storing = requests.iter().filter(|request| {
        matches!(request.label.as_str(), label::INGEST | label::INGEST_KEYS | label::QUOTA_LOCK)
    });
    storing.map(|request| request.process).collect()
}
