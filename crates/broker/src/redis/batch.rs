//! What waits for the lane, gathered into one call for each endpoint or tenant.
//!
//! Invariant: at an endpoint what is given back goes before what is asked for, and an ask whose lease is given back in the
//! same batch is not made: whoever asked is gone.

use std::{
    collections::{HashMap, hash_map},
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use postrider_core::{
    bucket::Rate,
    id::{EndpointId, TenantId},
    limiter::{Answer, Entry, LONGEST_LEASE, LeaseId},
};
use redis::Cmd;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::Error;

/// Millionths in a token: the script counts in whole numbers.
const MILLION: f64 = 1_000_000.0;

/// One wish of this process.
#[derive(Debug)]
pub(super) enum Item {
    Enter { entry: Entry, reply: oneshot::Sender<Answer> },
    Leave { endpoint_id: EndpointId, lease_id: LeaseId },
    Take { tenant_id: TenantId, rate: Rate, count: u32, reply: oneshot::Sender<Left> },
}

/// What came of taking tokens, and how many are left; less than none is a debt.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) answer: Answer,
    pub(super) tokens: f64,
}

/// Everything at one endpoint, or of one tenant.
#[derive(Debug)]
pub(super) struct Call {
    key: Key,
    terms: Terms,
    leaves: Vec<LeaseId>,
    asks: Vec<Ask>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Endpoint(EndpointId),
    Tenant(TenantId),
}

/// The newest that was heard of.
#[derive(Debug, Default)]
struct Terms {
    rate: Option<Rate>,
    /// 0: no leases.
    max_in_flight: u16,
    lifetime: Duration,
}

#[derive(Debug)]
enum Ask {
    Enter { lease_id: LeaseId, reply: oneshot::Sender<Answer> },
    Take { count: u32, reply: oneshot::Sender<Left> },
}

/// Gathers what belongs together.
pub(super) fn group(items: impl IntoIterator<Item = Item>) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut places = HashMap::new();
    for item in items {
        let key = match &item {
            Item::Enter { entry, .. } => Key::Endpoint(entry.endpoint_id),
            Item::Leave { endpoint_id, .. } => Key::Endpoint(*endpoint_id),
            Item::Take { tenant_id, .. } => Key::Tenant(*tenant_id),
        };
        let place = match places.entry(key) {
            hash_map::Entry::Occupied(place) => *place.get(),
            hash_map::Entry::Vacant(free) => {
                calls.push(Call::at(key));
                *free.insert(calls.len() - 1)
            }
        };
        calls[place].add(item);
    }
    calls
}

/// A lease that is asked for and given back, at an endpoint that nobody has: it needs whatever calls need.
pub(super) fn probe() -> [Call; 2] {
    let (endpoint_id, lease_id) = (EndpointId::from_uuid(Uuid::now_v7()), LeaseId::from(Uuid::now_v7()));
    let (reply, _) = oneshot::channel();
    let rate = Some(Rate { per_second: 1.0, burst: NonZeroU32::MIN });
    let lifetime = Duration::from_secs(1);
    let entry = Entry { endpoint_id, lease_id, max_in_flight: NonZeroU16::MIN, rate, lifetime };
    [Item::Enter { entry, reply }, Item::Leave { endpoint_id, lease_id }].map(|item| {
        let mut call = Call::at(Key::Endpoint(endpoint_id));
        call.add(item);
        call
    })
}

impl Call {
    fn at(key: Key) -> Self {
        Self { key, terms: Terms::default(), leaves: Vec::new(), asks: Vec::new() }
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Enter { entry, reply } => {
                let Entry { max_in_flight, rate, lifetime, .. } = entry;
                let lifetime = lifetime.min(LONGEST_LEASE);
                self.terms = Terms { rate, max_in_flight: max_in_flight.get(), lifetime };
                self.asks.push(Ask::Enter { lease_id: entry.lease_id, reply });
            }
            Item::Leave { lease_id, .. } => {
                self.asks
                    .retain(|ask| !matches!(ask, Ask::Enter { lease_id: asked, .. } if *asked == lease_id));
                self.leaves.push(lease_id);
            }
            Item::Take { rate, count, reply, .. } => {
                self.terms.rate = Some(rate);
                self.asks.push(Ask::Take { count, reply });
            }
        }
    }

    /// The script's arguments, in its order.
    pub(super) fn command(&self, script: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script);
        match self.key {
            Key::Endpoint(id) => {
                // The braces keep both on one node of a cluster.
                command
                    .arg(2)
                    .arg(format!("postrider:{{{id}}}:bucket"))
                    .arg(format!("postrider:{{{id}}}:leases"))
            }
            Key::Tenant(id) => command.arg(1).arg(format!("postrider:{{{id}}}:bucket")),
        };
        let Terms { rate, max_in_flight, lifetime } = &self.terms;
        let (per_second, burst) = rate.map_or((0.0, 0), |rate| (rate.per_second, rate.burst.get()));
        // `f64` writes itself so that it is read back as it was.
        command.arg(per_second.to_string()).arg(burst).arg(*max_in_flight);
        command.arg(u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX)).arg(self.leaves.len());
        for lease_id in &self.leaves {
            command.arg(lease_id.as_bytes());
        }
        for ask in &self.asks {
            match ask {
                Ask::Enter { lease_id, .. } => command.arg(lease_id.as_bytes()).arg(1),
                Ask::Take { count, .. } => command.arg("").arg(*count),
            };
        }
        command
    }

    /// Hands on what the script answered.
    pub(super) fn answer(self, values: &[i64]) -> Result<(), Error> {
        let (waits, tokens) = match values {
            [] if self.asks.is_empty() => return Ok(()),
            [waits @ .., tokens] if waits.len() == self.asks.len() => (waits, tokens),
            _ => return Err(Error::Unexpected),
        };
        for (ask, wait_us) in self.asks.into_iter().zip(waits) {
            let answer = match u64::try_from(*wait_us) {
                Ok(0) => Answer::Granted,
                Ok(wait_us) => Answer::Wait(Duration::from_micros(wait_us)),
                Err(_) => return Err(Error::Unexpected),
            };
            // Whoever does not wait any more has no use for it.
            match ask {
                Ask::Enter { reply, .. } => drop(reply.send(answer)),
                Ask::Take { reply, .. } => {
                    #[expect(clippy::cast_precision_loss, reason = "2^53 millionths are more than any burst")]
                    let tokens = *tokens as f64 / MILLION;
                    drop(reply.send(Left { answer, tokens }));
                }
            }
        }
        Ok(())
    }

    /// What is still owed where the call may not have been heard. Whoever asked finds its own answer.
    pub(super) fn into_leaves(self) -> impl Iterator<Item = Item> {
        let endpoint_id = match self.key {
            Key::Endpoint(endpoint_id) => Some(endpoint_id),
            Key::Tenant(_) => None,
        };
        let leave = move |lease_id| endpoint_id.map(|endpoint_id| Item::Leave { endpoint_id, lease_id });
        self.leaves.into_iter().filter_map(leave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 0.1, burst: NonZeroU32::new(3).expect("not zero") };

    fn enter(endpoint: u128, lease: u128) -> (Item, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        let entry = Entry {
            endpoint_id: EndpointId::from_uuid(Uuid::from_u128(endpoint)),
            lease_id: LeaseId::from(Uuid::from_u128(lease)),
            max_in_flight: NonZeroU16::new(4).expect("not zero"),
            rate: None,
            lifetime: Duration::from_secs(2),
        };
        (Item::Enter { entry, reply }, answer)
    }

    fn leave(endpoint: u128, lease: u128) -> Item {
        Item::Leave {
            endpoint_id: EndpointId::from_uuid(Uuid::from_u128(endpoint)),
            lease_id: LeaseId::from(Uuid::from_u128(lease)),
        }
    }

    #[test]
    fn what_belongs_together_is_one_call_and_whoever_left_is_not_asked_for() {
        let ((first, first_answer), (gone, gone_answer)) = (enter(1, 1), enter(1, 2));
        let (reply, taken) = oneshot::channel();
        let tenant_id = TenantId::from_uuid(Uuid::from_u128(1));
        let items = [
            first,
            gone,
            Item::Take { tenant_id, rate: RATE, count: 7, reply },
            leave(1, 9),
            leave(1, 2),
            leave(2, 5),
        ];
        let mut calls = group(items).into_iter();
        let mut call = || calls.next().expect("there are three");
        let (endpoint, tenant, other) = (call(), call(), call());

        let shown =
            |call: &Call| String::from_utf8_lossy(&call.command("sha").get_packed_command()).into_owned();
        let key = format!("postrider:{{end_{}}}:leases", Uuid::from_u128(1).simple());
        assert!(shown(&endpoint).contains(&key), "{}", shown(&endpoint));
        assert!(shown(&tenant).contains("$3\r\n0.1\r\n$1\r\n3\r\n$1\r\n0\r\n"), "{}", shown(&tenant));
        assert_eq!((endpoint.asks.len(), endpoint.leaves.len()), (1, 2));

        endpoint.answer(&[20_000, 0]).expect("as asked");
        assert_eq!(first_answer.blocking_recv(), Ok(Answer::Wait(Duration::from_millis(20))));
        assert!(gone_answer.blocking_recv().is_err());
        tenant.answer(&[0, -4_500_000]).expect("as asked");
        let left = taken.blocking_recv().expect("an answer");
        assert_eq!((left.answer, left.tokens.to_string()), (Answer::Granted, "-4.5".to_owned()));
        assert_eq!(other.into_leaves().count(), 1);
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        for values in [&[][..], &[0], &[0, 0, 0], &[-1, 0]] {
            let (item, answer) = enter(1, 1);
            let call = group([item]).pop().expect("one");
            assert!(matches!(call.answer(values), Err(Error::Unexpected)), "{values:?}");
            assert!(answer.blocking_recv().is_err(), "{values:?}");
        }
    }
}
