//! Each breach is caught: a sound set of books is spoilt in one place at a time.

use postrider_core::id::{DeliveryId, EndpointId};
use time::{Duration as Span, OffsetDateTime};
use uuid::Uuid;

use super::{
    evidence::{Attempt, Ended, Event, Keyed, Open},
    *,
};

const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
const RUNNING: Expectation = Expectation { poll: Duration::from_secs(1), everything_ended: false };
const OVER: Expectation = Expectation { poll: Duration::from_secs(1), everything_ended: true };

fn event(number: u128) -> EventId {
    EventId::from_uuid(Uuid::from_u128(number << 16))
}

fn delivery(number: u128, place: usize) -> DeliveryId {
    promised(event(number), 5).nth(place - 1).unwrap()
}

fn endpoint(number: u128) -> EndpointId {
    EndpointId::from_uuid(Uuid::from_u128(number))
}

fn attempt(delivery_id: DeliveryId, number: i32, outcome: &str) -> Attempt {
    Attempt { delivery_id, number, outcome: outcome.to_owned() }
}

/// One event with a delivered, a dead, a scheduled and an in-flight delivery, published twice under one key.
fn books() -> (Ledger, Evidence) {
    let body = Bytes::from_static(b"{}");
    let accepted = Accepted {
        event_id: event(1),
        key: Some(("orders".to_owned(), "key".parse().unwrap())),
        deliveries: 4,
        body: body.clone(),
    };
    let received = |place| Received { webhook_id: delivery(1, place).to_string(), body: body.clone() };
    let ended = |place, is_delivered, attempt_number| Ended {
        delivery_id: delivery(1, place),
        endpoint_id: endpoint(place as u128),
        is_delivered,
        attempt_number,
    };
    let open = |place, state: &str, attempt_number| Open {
        delivery_id: delivery(1, place),
        endpoint_id: endpoint(place as u128),
        state: state.to_owned(),
        attempt_number,
        due_at: (state == "scheduled").then_some(NOW + Span::seconds(60)),
        lease_until: (state == "in_flight").then_some(NOW + Span::seconds(60)),
    };
    let ledger = Ledger {
        accepted: vec![accepted.clone(), accepted],
        refused: vec![event(9)],
        received: vec![received(1), received(1), received(2), received(3), received(4)],
    };
    let evidence = Evidence {
        now: NOW,
        events: vec![Event { id: event(1), body: body.to_vec(), deliveries: 4 }],
        keys: vec![Keyed { application: "orders".to_owned(), key: "key".to_owned(), event_id: event(1) }],
        ended: vec![ended(1, true, 2), ended(2, false, 1)],
        open: vec![open(3, "scheduled", 1), open(4, "in_flight", 2)],
        attempts: vec![
            attempt(delivery(1, 1), 2, "delivered"),
            attempt(delivery(1, 1), 1, "interrupted"),
            attempt(delivery(1, 2), 1, "dead_lettered"),
            attempt(delivery(1, 3), 1, "scheduled"),
            attempt(delivery(1, 4), 1, "scheduled"),
        ],
    };
    (ledger, evidence)
}

#[track_caller]
fn check(spoil: impl FnOnce(&mut Ledger, &mut Evidence), expected: &[Breach]) {
    let (mut ledger, mut evidence) = books();
    spoil(&mut ledger, &mut evidence);
    assert_eq!(breach::find(&ledger, &evidence, RUNNING), expected);
}

#[test]
fn sound_books_are_counted() {
    let (ledger, evidence) = books();
    let report = ledger.assert_sound(&evidence, RUNNING);
    let expected = Report {
        events: 1,
        repeated_answers: 1,
        delivered: 1,
        dead_lettered: 1,
        open: 2,
        repeated_requests: 1,
        attempts: 5,
        interrupted_attempts: 1,
    };
    assert_eq!(report, expected);
}

#[test]
fn lost_and_changed_events() {
    let foreign = |id: EventId| Breach::KeyStoredOtherwise {
        application: "orders".to_owned(),
        key: "key".to_owned(),
        answered: id,
        stored: Some(event(1)),
    };
    check(
        |ledger, _| ledger.accepted.iter_mut().for_each(|accepted| accepted.event_id = event(2)),
        &[Breach::EventLost(event(2)), foreign(event(2))],
    );
    check(
        |_, evidence| evidence.events[0].deliveries = 5,
        &[Breach::DeliveryCount { event: event(1), promised: 4, stored: 5 }],
    );
    check(
        |ledger, _| ledger.accepted.iter_mut().for_each(|accepted| accepted.body = Bytes::from_static(b"[]")),
        &[Breach::BodyChanged(event(1))],
    );
    check(|ledger, _| ledger.refused.push(event(1)), &[Breach::RefusedButStored(event(1))]);
}

#[test]
fn lost_and_doubled_deliveries() {
    check(
        |ledger, evidence| {
            evidence.open.truncate(1);
            evidence.attempts.truncate(4);
            ledger.received.truncate(4);
        },
        &[Breach::DeliveryLost(delivery(1, 4))],
    );
    check(
        |_, evidence| evidence.ended[1].endpoint_id = endpoint(1),
        &[Breach::EndpointTwice { event: event(1), endpoint: endpoint(1) }],
    );
    check(
        |_, evidence| {
            let mut twin = evidence.open[0].clone();
            twin.delivery_id = delivery(1, 1);
            twin.endpoint_id = endpoint(1);
            twin.attempt_number = 0;
            evidence.open.push(twin);
        },
        &[Breach::DeliveryTwice(delivery(1, 1))],
    );
}

#[test]
fn keys_that_made_two_events() {
    check(
        |ledger, evidence| {
            ledger.accepted[1].event_id = event(2);
            ledger.accepted[1].deliveries = 0;
            evidence.events.push(Event { id: event(2), body: b"{}".to_vec(), deliveries: 0 });
        },
        &[Breach::KeyAnsweredTwice {
            application: "orders".to_owned(),
            key: "key".to_owned(),
            first: event(1),
            second: event(2),
        }],
    );
    check(
        |_, evidence| evidence.keys.clear(),
        &[Breach::KeyStoredOtherwise {
            application: "orders".to_owned(),
            key: "key".to_owned(),
            answered: event(1),
            stored: None,
        }],
    );
}

#[test]
fn requests_that_do_not_fit() {
    check(
        |ledger, _| ledger.received[0].webhook_id = "msg_1".to_owned(),
        &[Breach::UnknownRequest("msg_1".to_owned())],
    );
    check(
        |ledger, _| ledger.received[0].webhook_id = delivery(1, 5).to_string(),
        &[Breach::UnknownRequest(delivery(1, 5).to_string())],
    );
    check(
        |ledger, _| ledger.received[1].body = Bytes::from_static(b"{ }"),
        &[Breach::RequestBody(delivery(1, 1))],
    );
    check(|ledger, _| drop(ledger.received.drain(..2)), &[Breach::NeverReceived(delivery(1, 1))]);
}

#[test]
fn stuck_rows() {
    let late = NOW - Span::seconds(2);
    let in_time = NOW - Span::milliseconds(500);
    check(|_, evidence| evidence.open[1].lease_until = Some(late), &[Breach::StuckInFlight(delivery(1, 4))]);
    check(|_, evidence| evidence.open[0].due_at = Some(late), &[Breach::StuckScheduled(delivery(1, 3))]);
    check(|_, evidence| evidence.open[0].due_at = Some(in_time), &[]);

    let (ledger, evidence) = books();
    let still =
        |place, state: &str| Breach::StillOpen { delivery: delivery(1, place), state: state.to_owned() };
    assert_eq!(breach::find(&ledger, &evidence, OVER), [still(3, "scheduled"), still(4, "in_flight")]);
}

#[test]
fn attempts_out_of_order() {
    check(
        |_, evidence| drop(evidence.attempts.remove(1)),
        &[Breach::AttemptNumbers { delivery: delivery(1, 1), expected: 2, found: vec![2] }],
    );
    check(
        |_, evidence| evidence.attempts.push(attempt(delivery(1, 2), 1, "dead_lettered")),
        &[Breach::AttemptNumbers { delivery: delivery(1, 2), expected: 1, found: vec![1, 1] }],
    );
    check(
        |_, evidence| evidence.attempts[0].outcome = "scheduled".to_owned(),
        &[Breach::AttemptOutcomes {
            delivery: delivery(1, 1),
            found: vec!["interrupted".to_owned(), "scheduled".to_owned()],
        }],
    );
    check(
        |_, evidence| evidence.attempts.push(attempt(delivery(1, 5), 1, "scheduled")),
        &[Breach::OrphanedAttempts(delivery(1, 5))],
    );
}

#[test]
#[should_panic(expected = "the ledgers do not agree: 1 breaches")]
fn a_breach_fails_the_test() {
    let (mut ledger, evidence) = books();
    ledger.received.drain(..2);
    ledger.assert_sound(&evidence, RUNNING);
}
