//! The end of a run: no more faults, and enough time for everything to end.

use std::{io, time::Duration};

use postrider_testkit::ledger::{Evidence, Expectation};

use crate::{
    check::Breach,
    gate::ProcessId,
    run::{PEOPLE, Run, Stop},
};

/// Simulated time between two rounds, longer and longer: first the dead are noticed, then delays pass, then deadlines.
const ROUNDS: [(usize, Duration); 4] = [
    (8, Duration::from_millis(1_900)),
    (10, Duration::from_secs(7)),
    (20, Duration::from_secs(45)),
    (20, Duration::from_secs(400)),
];
/// Longest simulated time between two looks of maintenance, and some more.
const POLL: Duration = Duration::from_secs(60);
/// Rounds that the last events may take.
const PROBE_ROUNDS: usize = 8;
/// So much later no preview may be executed any more, and nothing that was accepted counts against a quota.
const MORE_THAN_AN_HOUR: Duration = Duration::from_secs(62 * 60);
/// Rounds in which what replays have kept is removed.
const TIDY_ROUNDS: usize = 20;
const TIDY_PAUSE: Duration = Duration::from_secs(11);
/// Rounds that a drain may take.
const DRAIN_ROUNDS: usize = 100;

/// Reads what [`Left`] is made of.
pub(crate) const LEFT: (&str, &str) = (
    "left_over",
    "SELECT count(*) + (SELECT count(*) FROM postrider.replays WHERE state = 'running')
                     + (SELECT count(*) FROM postrider.endpoints WHERE deleted_at IS NOT NULL AND drained_at IS NULL),
            coalesce(bool_or(state = 'in_flight'), false), coalesce(bool_and(state = 'held'), false)
       FROM postrider.delivery_queue",
);

const SECRETS_OF_DELETED: &str = "SELECT endpoint_id FROM postrider.endpoints JOIN postrider.signing_keys AS k \
    USING (tenant_id, endpoint_id) WHERE deleted_at IS NOT NULL AND k.sealed_secret IS NOT NULL";

/// What keeps a run from its end.
struct Left {
    /// Leases, of which some may be of the dead: those are noticed only by who looks every few seconds.
    are_leased: bool,
    shortest_pause: Duration,
}

impl Run<'_> {
    pub(crate) fn come_to_rest(&mut self) -> Result<(), Stop> {
        self.trace.line(format_args!("no more faults"));
        if self.away_until.is_some() {
            self.end_outage();
        }
        for id in self.engines() {
            let is_frozen = self.processes.get(&id).is_some_and(|process| process.is_frozen);
            if self.doomed.contains_key(&id) || (is_frozen && self.chance.one_in(2)) {
                self.crash(id, "crash at the end")?;
            } else if is_frozen {
                self.thaw(id)?;
            }
        }
        if self.engines().is_empty() {
            self.start_engine()?;
        }
        if self.chance.one_in(2) {
            for number in 0..self.model.endpoints.len() {
                self.set_enabled(number, true)?;
            }
        }
        self.publish_once_more()?;
        self.wait_for_the_end()?;
        self.probe()?;
        self.wait_for_an_hour()?;
        self.drain_all()
    }

    fn wait_for_the_end(&mut self) -> Result<(), Stop> {
        for (count, pause) in ROUNDS {
            for _ in 0..count {
                self.settle_down(1)?;
                let Some(left) = self.left()? else { return Ok(()) };
                let pause = if left.are_leased { pause } else { pause.max(left.shortest_pause) };
                self.advance(pause)?;
            }
        }
        self.settle_down(1)?;
        // What is still there is named by the audit.
        Ok(())
    }

    /// After all that, every process takes an event, and knows the keys of those that were taken before.
    fn probe(&mut self) -> Result<(), Stop> {
        for id in self.engines() {
            self.publish_probe(id)?;
        }
        for _ in 0..PROBE_ROUNDS {
            self.settle_down(1)?;
            if self.publications.is_empty() && self.left()?.is_none() {
                return Ok(());
            }
            self.advance(Duration::from_millis(1_900))?;
        }
        if self.publications.is_empty() {
            return self.wait_for_the_end();
        }
        Err(Breach("a publisher gets no answer although all is well".to_owned()).into())
    }

    /// An hour later quotas have room again, and nothing of a replay is left but its counts.
    fn wait_for_an_hour(&mut self) -> Result<(), Stop> {
        let has_quotas = self.model.habits.has_quotas();
        if !has_quotas && self.replays.is_empty() {
            return Ok(());
        }
        // A preview that somebody had asked for and that was written after the first hour is over after the second.
        for _ in 0..2 {
            self.advance(MORE_THAN_AN_HOUR)?;
            self.tidy_away()?;
            if !self.witness.replays.has_more_to_do() {
                break;
            }
        }
        if self.witness.replays.has_more_to_do() {
            return Err(Breach("a replay is not over, or not tidied away".to_owned()).into());
        }
        if has_quotas {
            let engines = self.engines();
            let process = self.chance.pick(&engines);
            self.publish_after_all(process)?;
            self.trace.count("accepted after an hour");
        }
        self.wait_for_the_end()
    }

    fn tidy_away(&mut self) -> Result<(), Stop> {
        for _ in 0..TIDY_ROUNDS {
            self.settle_down(1)?;
            self.advance(TIDY_PAUSE)?;
            if !self.witness.replays.has_more_to_do() {
                break;
            }
        }
        Ok(())
    }

    /// What has not ended.
    fn left(&mut self) -> Result<Option<Left>, Stop> {
        let rows = self.laboratory.gate.look("EXECUTE left_over")?;
        let [count, are_leased, are_held] = rows.first().map(Vec::as_slice).unwrap_or_default() else {
            return Err(Breach(format!("odd rows: {rows:?}")).into());
        };
        let is_quiet = self.publications.is_empty() && self.network.open(self.time.elapsed()).is_empty();
        if count == "0" && is_quiet {
            return Ok(None);
        }
        let shortest_pause = if are_held == "t" { Duration::from_secs(45) } else { Duration::from_secs(7) };
        Ok(Some(Left { are_leased: are_leased == "t", shortest_pause }))
    }

    /// Some runs end with an orderly end of every process.
    fn drain_all(&mut self) -> Result<(), Stop> {
        if !self.chance.one_in(4) {
            return Ok(());
        }
        for id in self.engines() {
            if let Some(process) = self.processes.get_mut(&id) {
                process.drain();
            }
            self.trace.line(format_args!("p{id} is asked to end"));
            self.touch(id)?;
        }
        for _ in 0..DRAIN_ROUNDS {
            self.settle_down(1)?;
            if self
                .engines()
                .iter()
                .all(|id| self.processes.get(id).is_some_and(|process| process.ended().is_some()))
            {
                self.trace.count("orderly end of all");
                return Ok(());
            }
            self.advance(Duration::from_millis(500))?;
        }
        Err(Breach("a process does not end although it was asked to".to_owned()).into())
    }

    /// Everybody does what is due, and all that follows from it, in an order that the seed chooses.
    pub(crate) fn settle_down(&mut self, rounds: usize) -> Result<(), Stop> {
        for _ in 0..rounds {
            self.drain_requests()?;
            let mut due: Vec<(ProcessId, u64, Duration)> = Vec::new();
            for (id, process) in self.processes.iter().filter(|(_, process)| !process.is_frozen) {
                due.extend(process.clock.due().iter().map(|due| (*id, due.number, due.length)));
            }
            while !due.is_empty() {
                let (id, number, length) = due.swap_remove(self.chance.below(due.len()));
                self.count_step()?;
                self.end_timer(id, number, length)?;
                self.drain_requests()?;
            }
        }
        Ok(())
    }

    fn drain_requests(&mut self) -> Result<(), Stop> {
        loop {
            self.count_step()?;
            let requests = self.requests();
            if !requests.is_empty() {
                let request = self.chance.choose(&requests);
                self.forward(&request)?;
                continue;
            }
            let open = self.network.open(self.time.elapsed());
            if !open.is_empty() {
                let open = self.chance.choose(&open);
                self.answer(&open)?;
                continue;
            }
            if !self.laboratory.gate.wakes.is_empty() {
                self.wake()?;
                continue;
            }
            return Ok(());
        }
    }

    /// Everything has ended: the books are compared.
    pub(crate) fn audit(&mut self) -> Result<(), Stop> {
        self.compare()?;
        let evidence = self.laboratory.runtime.block_on(Evidence::read(&self.laboratory.pool));
        let mut evidence = evidence.map_err(io::Error::other)?;
        evidence.now = self.time.now();
        let expectation = Expectation { poll: POLL, everything_ended: true };
        let breaches = self.ledger.breaches(&evidence, expectation);
        if let Some(first) = breaches.first() {
            return Err(Breach(format!("{first} ({} in all)", breaches.len())).into());
        }
        if let Some((delivery, what)) = self.witness.deletions.find_unended(&self.witness.ended) {
            return Err(Breach(format!("{} {what}", self.trace.name(delivery))).into());
        }
        let secrets = self.laboratory.gate.look(SECRETS_OF_DELETED)?;
        if let Some(secret) = secrets.first() {
            return Err(Breach(format!("a deleted endpoint has a secret left: {secret:?}")).into());
        }
        for (what, count) in self.witness.replays.counts() {
            *self.trace.counts.entry(what).or_default() += count;
        }
        let report = self.ledger.report(&evidence);
        let [waited, under_way] = self.witness.deletions.counts();
        for (what, count) in [
            ("event accepted", report.events),
            ("delivered", report.delivered),
            ("dead letter", report.dead_lettered),
            ("attempt", report.attempts),
            ("interrupted attempt", report.interrupted_attempts),
            ("repeated request", report.repeated_requests),
            ("repeated answer", report.repeated_answers),
            waited,
            under_way,
        ] {
            *self.trace.counts.entry(what.to_owned()).or_default() +=
                u64::try_from(count).unwrap_or_default();
        }
        self.trace.line(format_args!("{report:?}"));
        Ok(())
    }

    /// The processes with an engine.
    pub(crate) fn engines(&self) -> Vec<ProcessId> {
        self.processes.keys().copied().filter(|id| *id != PEOPLE).collect()
    }
}
