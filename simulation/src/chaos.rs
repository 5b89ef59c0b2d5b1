//! The middle of a run: at each step the seed chooses what happens next, and now and then it is something bad.

use std::time::Duration;

use postrider_core::id::{DeliveryId, SigningKeyId};
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    failpoint::Point,
    retry,
    signing_keys::NewSigningKey,
};

use crate::{
    gate::{ProcessId, Request},
    model,
    run::{Doom, PEOPLE, Run, Stop},
};

/// Processes alive at once, beyond which none is started.
const MOST_ENGINES: usize = 3;
/// Processes that are to stop at a failpoint, at once.
const MOST_DOOMED: usize = 2;
/// Where a process may come to stand before it dies.
const POINTS: [Point; 7] = [
    Point::DeliverAnswered,
    Point::DeliverConcluded,
    Point::SettleGathered,
    Point::SettleWritten,
    Point::IngestWritten,
    Point::IngestCommitted,
    Point::TakeClaimed,
];

#[derive(Debug, Clone, Copy)]
enum Choice {
    Statement,
    Timer,
    Answer,
    Wake,
    Publish,
    PublishAgain,
    Time,
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
    Thaw,
    Start,
    LoseStatement,
    LoseAnswer,
    Outage,
    LoseWake,
    Toggle,
    Rotate,
    Replay,
}

impl Run<'_> {
    pub(crate) fn chaos(&mut self) -> Result<(), Stop> {
        self.count_step()?;
        self.let_the_doomed_die()?;
        let requests = self.requests();
        let due = self.due_timers();
        let open = self.network.open(self.time.elapsed());
        let choices = [
            (if requests.is_empty() { 0 } else { 120 }, Choice::Statement),
            (if due.is_empty() { 0 } else { 20 }, Choice::Timer),
            (if open.is_empty() { 0 } else { 25 }, Choice::Answer),
            (if self.laboratory.gate.wakes == 0 { 0 } else { 5 }, Choice::Wake),
            (6, Choice::Publish),
            (1, Choice::PublishAgain),
            (if requests.is_empty() { 12 } else { 3 }, Choice::Time),
            (8, Choice::Fault),
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
            Choice::PublishAgain => self.publish_unknown_again(),
            Choice::Time => self.some_time(),
            Choice::Fault => self.fault(&requests),
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        // What a frozen process sent before is on its way.
        self.laboratory.gate.requests()
    }

    fn due_timers(&self) -> Vec<(ProcessId, u64, Duration)> {
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

    fn fault(&mut self, requests: &[Request]) -> Result<(), Stop> {
        let engines = self.engines();
        let frozen: Vec<ProcessId> = self.frozen(true);
        let open = self.network.open(self.time.elapsed());
        let of_engines: Vec<&Request> = requests.iter().filter(|request| request.process != PEOPLE).collect();
        let has = |is: bool, weight: usize| if is { weight } else { 0 };
        let has_more = engines.len() > 1;
        let faults = [
            (has(has_more, 1), Fault::Crash),
            (has(has_more && !of_engines.is_empty(), 3), Fault::CrashBefore),
            (has(has_more && !of_engines.is_empty(), 3), Fault::CrashAfter),
            (has(has_more && !open.is_empty(), 2), Fault::CrashAnswered),
            (has(has_more && self.doomed.len() < MOST_DOOMED, 8), Fault::StandAndDie),
            (has(self.frozen(false).len() > 1, 3), Fault::Freeze),
            (has(!frozen.is_empty(), 6), Fault::Thaw),
            (has(engines.len() < MOST_ENGINES, 8), Fault::Start),
            (has(!requests.is_empty(), 2), Fault::LoseStatement),
            (has(!requests.is_empty(), 3), Fault::LoseAnswer),
            (has(self.away_until.is_none(), 1), Fault::Outage),
            (has(self.laboratory.gate.wakes > 0, 2), Fault::LoseWake),
            (3, Fault::Toggle),
            (2, Fault::Rotate),
            (has(self.witness.ended.values().any(|ended| !ended.is_delivered), 3), Fault::Replay),
        ];
        let Some(fault) = self.chance.weighted(&faults) else { return Ok(()) };
        match fault {
            Fault::Crash => {
                let id = self.chance.pick(&engines);
                self.crash(id, "crash")
            }
            Fault::CrashBefore | Fault::CrashAfter => {
                let request = self.critical(&of_engines);
                let is_after = matches!(fault, Fault::CrashAfter);
                if is_after {
                    self.pass(&request)?;
                }
                let place = if is_after { "after" } else { "before" };
                self.crash(request.process, &format!("crash {place} {}", request.label))
            }
            Fault::CrashAnswered => {
                let open = self.chance.choose(&open);
                self.decide(&open)?;
                self.crash(open.id.process, "crash after an answer")
            }
            Fault::StandAndDie => {
                let well: Vec<ProcessId> =
                    engines.into_iter().filter(|id| !self.doomed.contains_key(id)).collect();
                let (id, point) = (self.chance.pick(&well), self.chance.pick(&POINTS));
                let steps = 30 + self.chance.below(150);
                self.trace.line(format_args!("p{id} will stand at {} and die", point.as_str()));
                self.doomed.insert(id, Doom { point, steps, has_stopped: false });
                if let Some(process) = self.processes.get_mut(&id) {
                    process.stops_at = Some(point);
                }
                Ok(())
            }
            Fault::Freeze => {
                let awake = self.frozen(false);
                let id = self.chance.pick(&awake);
                if let Some(process) = self.processes.get_mut(&id) {
                    process.is_frozen = true;
                    self.trace.line(format_args!("p{id} freezes"));
                    self.trace.count("freeze");
                }
                Ok(())
            }
            Fault::Thaw => {
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
                self.laboratory.gate.wakes -= 1;
                self.trace.line(format_args!("a wake-up is lost"));
                Ok(())
            }
            Fault::Toggle => {
                let number = self.chance.below(self.model.endpoints.len());
                let is_enabled = !self.chance.one_in(3);
                self.set_enabled(number, is_enabled)
            }
            Fault::Rotate => self.rotate(),
            Fault::Replay => self.replay(),
        }
    }

    fn frozen(&self, is_frozen: bool) -> Vec<ProcessId> {
        let engines = self.processes.iter().filter(|(id, _)| **id != PEOPLE);
        engines.filter(|(_, process)| process.is_frozen == is_frozen).map(|(id, _)| *id).collect()
    }

    /// A statement to strike at: more often than not one of those that move deliveries.
    fn critical(&mut self, requests: &[&Request]) -> Request {
        let critical: Vec<&&Request> = requests
            .iter()
            .filter(|request| {
                matches!(request.label.as_str(), "settle" | "take" | "commit" | "ingest.insert")
            })
            .collect();
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

    pub(crate) fn set_enabled(&mut self, number: usize, is_enabled: bool) -> Result<(), Stop> {
        let (tenant, id) = (self.model.tenant, self.model.endpoints[number].id);
        let word = if is_enabled { "enables" } else { "disables" };
        self.trace.line(format_args!("somebody {word} {}", self.model.endpoints[number].path));
        self.trace.count(format!("somebody {word} an endpoint"));
        let reason = (!is_enabled).then_some(DisabledReason::Requested);
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                if endpoints::set_disabled(&mut transaction, tenant, id, reason).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }

    fn rotate(&mut self) -> Result<(), Stop> {
        let number = self.chance.below(self.model.endpoints.len());
        let key = SigningKeyId::from_uuid(self.chance.uuid());
        let (sealed_secret, verifying) = model::fresh_secret(self.model.tenant, key, &mut self.chance);
        let (tenant, endpoint) = (self.model.tenant, &mut self.model.endpoints[number]);
        endpoint.keys.insert(key, verifying);
        let (id, overlap_s) = (endpoint.id, self.chance.pick(&[0, 60]));
        self.trace.line(format_args!("somebody rotates the key of {}", endpoint.path));
        self.trace.count("somebody rotates a key");
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                let algorithm = postrider_core::signature::Algorithm::HmacSha256;
                let new = NewSigningKey { id: key, algorithm, sealed_secret: &sealed_secret };
                if endpoints::rotate_secret(&mut transaction, tenant, id, new, overlap_s).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }

    /// Somebody sends a dead letter again.
    fn replay(&mut self) -> Result<(), Stop> {
        let dead: Vec<DeliveryId> = self
            .witness
            .ended
            .iter()
            .filter(|(_, ended)| !ended.is_delivered)
            .map(|(delivery, _)| *delivery)
            .collect();
        let (tenant, delivery) = (self.model.tenant, self.chance.pick(&dead));
        *self.witness.replays.entry(delivery).or_default() += 1;
        let name = self.trace.name(delivery);
        self.trace.line(format_args!("somebody sends {name} again"));
        self.trace.count("somebody sends a dead letter again");
        if let Some(people) = self.processes.get(&PEOPLE) {
            let pool = people.pool.clone();
            people.spawn(async move {
                let Ok(mut transaction) = edit::begin(&pool).await else { return };
                if retry::retry(&mut transaction, tenant, delivery).await.is_ok() {
                    let _ = transaction.commit().await;
                }
            });
        }
        self.touch(PEOPLE)
    }
}
