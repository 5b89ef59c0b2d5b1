//! Replays: each letter comes back at most once, as its preview saw it and while the replay runs; every count is that of
//! what came back; and what is over stays so.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::id::{DeliveryId, ReplayId};
use postrider_store::replay::Status;
use uuid::Uuid;

use super::{Breach, Ended};

/// Reads what [`Replays::note`] takes.
pub const REPLAYS: (&str, &str) = (
    "replays",
    "
    SELECT r.replay_id::text, r.state, r.matches::text,
           CASE WHEN r.state = 'running' THEN so_far.replayed ELSE r.replayed END::text,
           CASE WHEN r.state = 'running' THEN so_far.skipped
                ELSE r.not_dead_lettered + r.died_again + r.endpoint_deleted + r.body_gone + r.not_listed END::text,
           CASE WHEN r.is_tidy THEN 'tidy' ELSE '' END,
           ((SELECT count(*) FROM postrider.replay_items AS i WHERE i.replay_id = r.replay_id)
            + (SELECT count(*) FROM postrider.replay_endpoints AS e WHERE e.replay_id = r.replay_id))::text
      FROM postrider.replays AS r
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(e.replayed), 0)::int AS replayed,
                  coalesce(sum(e.not_dead_lettered + e.died_again + e.endpoint_deleted + e.body_gone
                               + e.not_listed), 0)::int AS skipped
             FROM postrider.replay_endpoints AS e
            WHERE e.tenant_id = r.tenant_id AND e.replay_id = r.replay_id) AS so_far
     ORDER BY r.replay_id",
);

/// Reads the letters that a preview saw.
pub const LETTERS: (&str, &str) = (
    "letters (uuid)",
    "SELECT delivery_id::text, attempt_number::text, ended_at::text FROM postrider.replay_items WHERE replay_id = $1",
);

#[derive(Debug, Default)]
pub struct Replays(BTreeMap<ReplayId, Replay>);

#[derive(Debug)]
struct Replay {
    status: Status,
    /// The last attempt and the end of each letter, as the preview saw them.
    letters: BTreeMap<DeliveryId, (u32, String)>,
    /// What came back so far.
    back: BTreeSet<DeliveryId>,
    said: Said,
}

/// What the database says of a replay.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    matches: usize,
    replayed: usize,
    skipped: usize,
    is_tidy: bool,
    /// Rows that are kept for it.
    kept: usize,
}

impl Replays {
    /// The replays that stand like this, as of the last look.
    pub fn that_are(&self, wanted: &[Status]) -> Vec<ReplayId> {
        self.0.iter().filter(|(_, replay)| wanted.contains(&replay.status)).map(|(id, _)| *id).collect()
    }

    /// Whether any still runs, or waits to be removed.
    pub fn has_more_to_do(&self) -> bool {
        let is_done = |replay: &Replay| replay.said.is_tidy;
        !self.0.values().all(is_done)
    }

    /// Whether its letters are not known yet.
    pub fn is_new(&self, id: ReplayId) -> bool {
        !self.0.contains_key(&id)
    }

    /// Takes note of a preview and the letters that it saw.
    pub fn add(&mut self, id: ReplayId, rows: &[Vec<String>]) -> Result<(), Breach> {
        let mut letters = BTreeMap::new();
        for row in rows {
            let [delivery, attempt, at] = row.as_slice() else { return Err(odd(row)) };
            let delivery: Uuid = delivery.parse().map_err(|_| odd(row))?;
            let attempt = attempt.parse().map_err(|_| odd(row))?;
            letters.insert(DeliveryId::from_uuid(delivery), (attempt, at.clone()));
        }
        let (status, said) = (Status::Previewed, Said::default());
        self.0.insert(id, Replay { status, letters, back: BTreeSet::new(), said });
        Ok(())
    }

    /// Takes note of where a replay stands.
    pub fn note(&mut self, id: ReplayId, row: &[String]) -> Result<(), Breach> {
        let [_, state, matches, replayed, skipped, tidy, kept] = row else { return Err(odd(row)) };
        let number = |text: &String| text.parse::<usize>().map_err(|_| odd(row));
        let status: Status = state.parse().map_err(|_| odd(row))?;
        let Some(replay) = self.0.get_mut(&id) else { return Ok(()) };
        let may_follow = match replay.status {
            Status::Previewed => status != Status::Finished,
            Status::Running => status != Status::Previewed && status != Status::Expired,
            over @ (Status::Finished | Status::Cancelled | Status::Expired) => status == over,
        };
        if !may_follow {
            return Err(Breach(format!("a replay that was {} is {status}", replay.status)));
        }
        replay.status = status;
        replay.said = Said {
            matches: number(matches)?,
            replayed: number(replayed)?,
            skipped: number(skipped)?,
            is_tidy: tidy == "tidy",
            kept: number(kept)?,
        };
        Ok(())
    }

    /// A replay has brought back a letter that had ended so.
    pub fn brought_back(&mut self, id: ReplayId, delivery: DeliveryId, ended: &Ended) -> Result<(), String> {
        let replay = self.0.get_mut(&id).ok_or("was brought back by a replay that is not there")?;
        if replay.status != Status::Running {
            return Err(format!("was brought back by a replay that is {}", replay.status));
        }
        let seen = replay.letters.get(&delivery).ok_or("was brought back, but its preview did not see it")?;
        if *seen != (ended.attempt, ended.at.clone()) {
            return Err(format!("was brought back after {ended:?}, but the preview saw {seen:?}"));
        }
        if !replay.back.insert(delivery) {
            return Err("was brought back twice by one replay".to_owned());
        }
        Ok(())
    }

    /// The counts are those of what came back. Call it once all that came back is noted.
    pub fn require_counts(&self) -> Result<(), Breach> {
        for Replay { status, letters, back, said, .. } in self.0.values() {
            let is_whole = match status {
                Status::Finished => said.replayed + said.skipped == said.matches,
                Status::Running | Status::Cancelled => said.replayed + said.skipped <= said.matches,
                Status::Previewed | Status::Expired => said.replayed + said.skipped == 0,
            };
            if said.matches != letters.len() || said.replayed != back.len() || !is_whole {
                let (letters, back) = (letters.len(), back.len());
                return Err(Breach(format!(
                    "a replay that is {status} saw {letters} letters and brought back {back}, but says {said:?}"
                )));
            }
            if said.is_tidy && said.kept > 0 {
                return Err(Breach(format!("a replay is tidy, but keeps {} rows", said.kept)));
            }
        }
        Ok(())
    }

    /// How many there are of each kind, and what they brought back.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for replay in self.0.values() {
            *counts.entry(format!("replay {}", replay.status)).or_default() += 1;
            *counts.entry("letter brought back by a replay".to_owned()).or_default() +=
                replay.back.len() as u64;
            *counts.entry("letter skipped by a replay".to_owned()).or_default() += replay.said.skipped as u64;
        }
        counts.into_iter().collect()
    }
}

fn odd(row: &[String]) -> Breach {
    Breach(format!("an odd row of a replay: {row:?}"))
}

#[cfg(test)]
mod tests {
    use postrider_core::id::EndpointId;

    use super::*;

    fn row(text: &str) -> Vec<String> {
        text.split(' ').map(|word| word.replace('-', "")).collect()
    }

    #[test]
    fn a_letter_comes_back_once_as_it_was_seen_and_while_the_replay_runs() {
        let (id, letter) = (ReplayId::from_uuid(Uuid::max()), DeliveryId::from_uuid(Uuid::nil()));
        let ended = |attempt, at: &str| Ended {
            is_delivered: false,
            attempt,
            reason: "rejected".to_owned(),
            endpoint: EndpointId::from_uuid(Uuid::nil()),
            at: at.to_owned(),
        };
        let mut replays = Replays::default();
        let wrong = |replays: &mut Replays, ended: &Ended| {
            replays.brought_back(id, letter, ended).err().unwrap_or_default()
        };
        assert_eq!(wrong(&mut replays, &ended(3, "noon")), "was brought back by a replay that is not there");
        let letters = [vec![Uuid::nil().to_string(), "3".to_owned(), "noon".to_owned()]];
        replays.add(id, &letters).expect("rows as they are read");
        assert_eq!(wrong(&mut replays, &ended(3, "noon")), "was brought back by a replay that is previewed");
        replays.note(id, &row("r running 1 0 0 - 2")).expect("it may run");
        for (attempt, at) in [(4, "noon"), (3, "later")] {
            assert!(wrong(&mut replays, &ended(attempt, at)).contains("but the preview saw (3, \"noon\")"));
        }
        assert_eq!(wrong(&mut replays, &ended(3, "noon")), "");
        assert_eq!(wrong(&mut replays, &ended(3, "noon")), "was brought back twice by one replay");
        for (said, is_sound) in [
            ("r running 1 0 0 - 2", false),
            ("r running 1 1 0 - 2", true),
            ("r running 1 1 1 - 2", false),
            ("r finished 1 1 0 tidy 2", false),
            ("r finished 1 1 0 tidy 0", true),
            ("r cancelled 1 1 0 tidy 0", false),
        ] {
            let noted = replays.note(id, &row(said)).and_then(|()| replays.require_counts());
            assert_eq!(noted.is_ok(), is_sound, "{said}: {noted:?}");
        }
        assert!(!replays.has_more_to_do());
    }
}
