//! The run's own looks into the database, past the gate, and at what was sent.

use std::time::Duration;

use postrider_core::id::ReplayId;
use postrider_testkit::ledger::Received;
use uuid::Uuid;

use crate::{
    check::{Breach, Seen},
    gate::Request,
    label,
    network::Sent,
    run::{PEOPLE, Run, Stop},
};

impl Run<'_> {
    pub(crate) fn look_at_requests(&mut self) -> Result<(), Stop> {
        if let Some(headers) = self.network.take_malformed().first() {
            return Err(Breach(format!("a request does not say what it is: {headers}")).into());
        }
        for sent in self.network.take_fresh() {
            let (process, attempt) = (sent.id.process, sent.id.attempt);
            let name = self.trace.name(sent.id.delivery);
            self.trace.line(format_args!("p{process} sends {name} #{attempt} to {}", sent.path));
            self.trace.count("request");
            let claimed_ago = self.claimed_ago(&sent)?;
            self.witness.sent(&Seen { sent: &sent, claimed_ago }, &self.model, &mut self.trace)?;
            let webhook_id = sent.id.delivery.to_string();
            self.ledger.received.push(Received { webhook_id, body: sent.body });
            let under_way = self.network.open(self.time.elapsed());
            let at_once =
                under_way.iter().filter(|open| open.id.process == process && open.path == sent.path).count();
            let most = self.model.endpoint_at(&sent.path).map_or(0, |endpoint| endpoint.max_in_flight);
            if at_once > usize::from(most) {
                return Err(Breach(format!(
                    "p{process} has {at_once} requests at {}, {most} may be",
                    sent.path
                ))
                .into());
            }
        }
        Ok(())
    }

    /// How long ago the attempt was claimed.
    fn claimed_ago(&mut self, sent: &Sent) -> Result<Option<Duration>, Stop> {
        let (delivery, attempt) = (sent.id.delivery.as_uuid(), sent.id.attempt);
        let rows = self.laboratory.gate.look(&format!("EXECUTE claim('{delivery}', {attempt})"))?;
        let claimed = rows.first().and_then(|row| row.first()).and_then(|text| text.parse::<i128>().ok());
        let now = self.time.now().unix_timestamp_nanos() / 1_000;
        let ago = claimed.map(|claimed| u64::try_from(now - claimed).unwrap_or_default());
        Ok(ago.map(Duration::from_micros))
    }

    /// Looks at what has become of deliveries once that can be seen.
    pub(crate) fn look_after(&mut self, request: &Request, said: &str) -> Result<(), Stop> {
        let Request { client, process, label } = request;
        let label = label.as_str();
        if may_change_deliveries(label, said) || *process == PEOPLE {
            self.changed_by.insert(*client);
        }
        let is_alone = matches!(label, "settle" | "expire" | "discard" | "replay.expire");
        if (is_alone || label == "commit") && self.changed_by.remove(client) {
            return self.compare();
        }
        if self.model.habits.has_quotas() && matches!(label, label::INGEST | "commit") {
            return self.compare_usage();
        }
        Ok(())
    }

    pub(crate) fn compare(&mut self) -> Result<(), Stop> {
        if !self.replays.is_empty() {
            self.look_at_replays()?;
        }
        let rows = self.laboratory.gate.look("EXECUTE evidence")?;
        self.witness.compare(&rows, &self.model, &mut self.trace)?;
        if self.model.habits.has_quotas() {
            self.compare_usage()?;
        }
        Ok(())
    }

    fn compare_usage(&mut self) -> Result<(), Stop> {
        let rows = self.laboratory.gate.look("EXECUTE used")?;
        let now_micros = self.time.now().unix_timestamp_nanos() / 1_000;
        let now_micros = i64::try_from(now_micros).unwrap_or(i64::MAX);
        Ok(self.witness.used.compare(&rows, now_micros)?)
    }

    fn look_at_replays(&mut self) -> Result<(), Stop> {
        for row in self.laboratory.gate.look("EXECUTE replays")? {
            let id = row.first().and_then(|id| id.parse::<Uuid>().ok()).unwrap_or_default();
            let id = ReplayId::from_uuid(id);
            if self.witness.replays.is_new(id) {
                let letters = self.laboratory.gate.look(&format!("EXECUTE letters('{}')", id.as_uuid()))?;
                self.witness.replays.add(id, &letters)?;
            }
            self.witness.replays.note(id, &row)?;
        }
        Ok(())
    }
}

/// Whether a statement may have ended a delivery, brought one back, counted one or recorded an attempt, once it is
/// committed.
fn may_change_deliveries(label: &str, said: &str) -> bool {
    match label {
        "settle" => said != "SELECT 0",
        "expire" => said != "INSERT 0 0",
        "replay.expire" => said != "UPDATE 0",
        "discard" | "recover.apply" | "reopen" | "replay.write" | "replay.close" | "replay.tidy.end" => true,
        _ => false,
    }
}
