//! One run: a world made from a seed, a stretch of chaos, a time to come to rest, and the verdict.
//!
//! ```text
//! choose ──► let one statement through │ end one timer │ answer one request │ pass time │ publish │ a fault
//!    ▲                                          │
//!    └── check ◄── the touched process runs until it can do nothing more by itself
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use postrider_core::id::ReplayId;
use postrider_store::failpoint::{self, Point};
use postrider_testkit::ledger::Ledger;

use crate::{
    chance::Chance,
    check::{Breach, Witness},
    gate::{ClientId, Passed, ProcessId, Request},
    laboratory::Laboratory,
    model::Model,
    network::{Network, Open, Reaction},
    process::{Birth, Process},
    publishing::Publications,
    time::Time,
    trace::Trace,
    watchdog::Watchdog,
};

/// Steps after which a run that has not ended never will.
const MOST_STEPS: usize = 40_000;
/// Steps that a process which stands at a failpoint has left, its other tasks going on.
const MOST_STEPS_STANDING: usize = 30;
/// Who edits: the first process of each run.
pub(crate) const PEOPLE: ProcessId = 0;

/// How a run ended.
#[derive(Debug)]
pub struct Verdict {
    pub seed: u64,
    pub breach: Option<Breach>,
    pub trace: Trace,
}

/// Why a run stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    Breach(Breach),
    /// The simulation itself is broken.
    Io(io::Error),
}

impl From<Breach> for Stop {
    fn from(breach: Breach) -> Self {
        Self::Breach(breach)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Where a process stops, and when it dies of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doom {
    pub(crate) point: Point,
    pub(crate) steps: usize,
    pub(crate) has_stopped: bool,
}

pub(crate) struct Run<'l> {
    pub(crate) laboratory: &'l mut Laboratory,
    pub(crate) chance: Chance,
    pub(crate) time: Time,
    pub(crate) network: Network,
    pub(crate) model: Model,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    pub(crate) next_process: ProcessId,
    pub(crate) publications: Publications,
    pub(crate) witness: Witness,
    /// The replays that people have asked for, in that order.
    pub(crate) replays: Vec<ReplayId>,
    pub(crate) ledger: Ledger,
    pub(crate) trace: Trace,
    pub(crate) steps: usize,
    /// Until when the database takes no connections.
    pub(crate) away_until: Option<Duration>,
    /// Processes that stop at a failpoint, and after how many steps they die of it.
    pub(crate) doomed: BTreeMap<ProcessId, Doom>,
    /// Connections whose transaction may have changed what deliveries are.
    pub(crate) changed_by: BTreeSet<ClientId>,
}

/// Runs one seed.
pub fn run(laboratory: &mut Laboratory, seed: u64) -> io::Result<Verdict> {
    let _watchdog = Watchdog::of_seed(seed);
    let mut chance = Chance::new(seed);
    let time = Time::default();
    let model = Model::new(&mut chance);
    laboratory.gate.reset(time.clone())?;
    for sql in model.statements() {
        laboratory.gate.look(&sql)?;
    }
    let mut run = Run {
        laboratory,
        chance,
        time,
        network: Network::default(),
        model,
        processes: BTreeMap::new(),
        next_process: PEOPLE,
        publications: Publications::default(),
        witness: Witness::default(),
        replays: Vec::new(),
        ledger: Ledger::default(),
        trace: Trace::new(),
        steps: 0,
        away_until: None,
        doomed: BTreeMap::new(),
        changed_by: BTreeSet::new(),
    };
    let breach = match run.whole() {
        Ok(()) => None,
        Err(Stop::Breach(breach)) => Some(breach),
        Err(Stop::Io(error)) => return Err(error),
    };
    let mut trace = std::mem::take(&mut run.trace);
    let steps = u64::try_from(run.steps).unwrap_or(u64::MAX);
    *trace.counts.entry("steps".to_owned()).or_default() += steps;
    run.processes.clear();
    Ok(Verdict { seed, breach, trace })
}

impl Run<'_> {
    fn whole(&mut self) -> Result<(), Stop> {
        self.start_people()?;
        for _ in 0..self.chance.between(2, 3) {
            self.start_engine()?;
        }
        self.settle_down(2)?;
        // Most of what processes read once, they have read by now.
        for id in self.engines() {
            self.publish(id)?;
            self.settle_down(1)?;
        }
        let steps = self.chance.between(60, 260);
        for _ in 0..steps {
            self.chaos()?;
        }
        if self.model.habits.replays {
            self.wait_for_letters()?;
            for _ in 0..self.chance.between(60, 160) {
                self.chaos()?;
            }
        }
        self.come_to_rest()?;
        self.audit()
    }

    fn start_people(&mut self) -> Result<(), Stop> {
        let id = self.next_process;
        self.next_process += 1;
        let directory = self.laboratory.gate.open(id)?;
        let people = Process::people(&Birth {
            id,
            socket_directory: &directory,
            time: &self.time,
            skew: time::Duration::ZERO,
            seed: 0,
            concurrency: 0,
        })?;
        self.processes.insert(id, people);
        Ok(())
    }

    pub(crate) fn start_engine(&mut self) -> Result<ProcessId, Stop> {
        let id = self.next_process;
        self.next_process += 1;
        let directory = self.laboratory.gate.open(id)?;
        let skew_s = self.chance.pick(&[0, 0, 3_600, -3_600]);
        let process = Process::engine(
            &Birth {
                id,
                socket_directory: &directory,
                time: &self.time,
                skew: time::Duration::seconds(skew_s),
                seed: self.chance.bits(),
                concurrency: self.chance.pick(&[4, 16]),
            },
            &self.network,
        )?;
        self.processes.insert(id, process);
        self.trace.line(format_args!("p{id} starts, its clock {skew_s} s off"));
        self.trace.count("process started");
        self.touch(id)?;
        Ok(id)
    }

    /// Lets a process do what it can, and looks at what came of it.
    pub(crate) fn touch(&mut self, id: ProcessId) -> Result<(), Stop> {
        let Some(process) = self.processes.get(&id) else { return Ok(()) };
        if process.is_frozen {
            return Ok(());
        }
        let hung = failpoint::hung();
        loop {
            process.run();
            if !self.laboratory.gate.hear(id)? {
                break;
            }
        }
        let stopped = failpoint::hung() - hung;
        if let Some(point) = process.stops_at.filter(|_| stopped > 0) {
            self.trace.line(format_args!("p{id} stands at {}", point.as_str()));
            let steps = self.chance.below(MOST_STEPS_STANDING);
            if let Some(doom) = self.doomed.get_mut(&id).filter(|doom| !doom.has_stopped) {
                (doom.steps, doom.has_stopped) = (steps, true);
            }
        }
        if let Some(how) = process.ended()
            && !(process.is_draining && how.is_ok())
        {
            return Err(Breach(format!("p{id} ended although nobody asked it to: {how:?}")).into());
        }
        self.look_at_requests()?;
        self.hear_answers(id)
    }

    /// Lets a statement through; its answer is not delivered yet. `None`: it waits for a lock.
    pub(crate) fn pass(&mut self, request: &Request) -> Result<Option<Vec<u8>>, Stop> {
        let Request { client, process, label } = request;
        match self.laboratory.gate.pass(*client)? {
            Passed::Waits => {
                self.trace.line(format_args!("p{process} c{client} {label}: waits for a lock"));
                self.trace.count("wait for a lock");
                Ok(None)
            }
            Passed::Answered { answer, said } => {
                self.trace.line(format_args!("p{process} c{client} {label}: {said}"));
                self.trace.count("statement");
                self.unblock()?;
                self.look_after(request, &said)?;
                Ok(Some(answer))
            }
        }
    }

    /// Lets a statement through and delivers its answer.
    pub(crate) fn forward(&mut self, request: &Request) -> Result<(), Stop> {
        if let Some(answer) = self.pass(request)? {
            self.laboratory.gate.deliver(request.client, &answer)?;
            self.touch(request.process)?;
        }
        Ok(())
    }

    /// Statements that waited for a lock go on when they have got it.
    fn unblock(&mut self) -> Result<(), Stop> {
        let passed = self.laboratory.gate.look_at_waiting()?;
        self.tell(passed)
    }

    pub(crate) fn tell(&mut self, passed: Vec<(ProcessId, ClientId, String)>) -> Result<(), Stop> {
        if passed.is_empty() {
            return Ok(());
        }
        self.changed_by.extend(passed.iter().map(|(_, client, _)| *client));
        self.compare()?;
        for (process, client, said) in passed {
            self.trace.line(format_args!("p{process} c{client} waits no longer: {said}"));
            self.touch(process)?;
        }
        self.unblock()
    }

    pub(crate) fn end_timer(&mut self, id: ProcessId, number: u64, length: Duration) -> Result<(), Stop> {
        let Some(process) = self.processes.get(&id) else { return Ok(()) };
        process.clock.end(number);
        self.trace.line(format_args!("p{id} wakes after {length:?}"));
        self.touch(id)
    }

    pub(crate) fn advance(&mut self, time: Duration) -> Result<(), Stop> {
        self.time.advance(time);
        self.trace.line(format_args!("time passes: {time:?}"));
        if self.away_until.is_some_and(|until| self.time.elapsed() >= until) {
            self.end_outage();
        }
        let ended = self.laboratory.gate.pass_time()?;
        self.tell(ended)
    }

    pub(crate) fn end_outage(&mut self) {
        self.away_until = None;
        self.laboratory.gate.is_away = false;
        self.trace.line(format_args!("the database is back"));
    }

    /// Answers a request as its receiver does.
    pub(crate) fn answer(&mut self, open: &Open) -> Result<(), Stop> {
        self.decide(open)?;
        self.touch(open.id.process)
    }

    /// The answer is on its way; the process has not seen it.
    pub(crate) fn decide(&mut self, open: &Open) -> Result<(), Stop> {
        let endpoint = self.model.endpoint_at(&open.path);
        let Some(endpoint) = endpoint else {
            return Err(Breach(format!("nobody is at {}", open.path)).into());
        };
        let reaction = if open.is_overdue { Reaction::Timeout } else { endpoint.react(&mut self.chance) };
        let name = self.trace.name(open.id.delivery);
        let (process, attempt) = (open.id.process, open.id.attempt);
        self.trace.line(format_args!("p{process} {name} #{attempt} is answered: {reaction:?}"));
        self.trace.count(match reaction.status() {
            Some(status) => format!("answered {status}"),
            None => format!("answered {reaction:?}"),
        });
        self.witness.reacted(open.id.delivery, attempt, reaction);
        self.network.answer(open.id, reaction, self.time.elapsed());
        Ok(())
    }

    pub(crate) fn count_step(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Breach("the run does not come to rest".to_owned()).into());
        }
        Ok(())
    }
}
