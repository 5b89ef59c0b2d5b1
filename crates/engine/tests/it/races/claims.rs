//! Rows that are leased to a live process which does not know it.

use postrider_store::ingest::Refusal;
use postrider_testkit::{
    answer::{Answer, Gate},
    proxy::{Fault, Proxy},
    running::{Options, loopback_http},
    scenario::new_event,
};

use super::{DELIVERED, IN_FLIGHT, World};

/// Makes the pending delivery one whose claim was committed a moment ago, by the process that holds the others.
const CLAIM_UNHEARD: &str = "UPDATE postrider.delivery_queue
    SET state = 'in_flight', pending_since = NULL, attempt_number = 1, tries = 1, leased_at = now(),
        lease_token = gen_random_uuid(), lease_until = now() + interval '100 s',
        lease_owner = (SELECT lease_owner FROM postrider.delivery_queue WHERE state = 'in_flight' LIMIT 1)
  WHERE state = 'pending'";
/// Longer ago than any transaction lasts that might still report.
const AGE: &str =
    "UPDATE postrider.delivery_queue SET leased_at = leased_at - interval '21 s' WHERE state = 'in_flight'";

/// The commit of a claim succeeds and its reply is lost: of a hand-off, or of what a message names. Beside it: a claim just
/// as old that the process knows, and one it does not know, whose reply may still come.
#[tokio::test]
async fn a_claim_whose_commit_was_not_answered_is_taken_back_and_no_other() {
    let world = World::new().await;
    let (known, _) = world.pair("known").await;
    let (lost, _) = world.pair("lost").await;
    let (young, _) = world.pair("young").await;
    let proxy = Proxy::before(world.database.url()).await;
    let direct_url = Some(proxy.url(world.database.url()));
    let engine = world.start_with(loopback_http(), Options { direct_url, ..Options::default() }).await;

    let gate = Gate::default();
    world.receiver.queue([Answer::ok().after(&gate)]);
    engine.publish(&known, new_event("order.created", "[1]", None)).await.expect("accepted");
    world.receiver.wait_for(1).await;
    let hands_off = world.database.broker_url().is_none();
    let claiming = if hands_off { "INSERT INTO postrider.events" } else { "AS named (place, tenant_id" };
    proxy.set(claiming, Fault::SwallowReply);
    let answer = engine.publish(&lost, new_event("order.created", "[2]", None)).await;
    assert_eq!(
        answer.err(),
        hands_off.then_some(Refusal::Unknown),
        "whether a hand-off was stored is not known"
    );
    proxy.happened(1).await;
    assert_eq!(world.count(IN_FLIGHT).await, 2, "it is claimed, and nobody sends it");
    world.execute(AGE).await;
    young.publish("order.created", "[3]").await;
    world.execute(CLAIM_UNHEARD).await;

    let requests = world.pass_until_received(2).await;
    assert_eq!((&*requests[1].body, requests[1].header("postrider-attempt")), (&b"[2]"[..], Some("2")));
    assert_eq!(world.receiver.requests().len(), 2, "the others are left alone");
    gate.open();
    world.pass_until(DELIVERED, 2).await;
    assert_eq!(world.count(IN_FLIGHT).await, 1);
    let interrupted = "SELECT count(*) FROM postrider.attempts WHERE outcome = 'interrupted'";
    assert_eq!(world.count(interrupted).await, 1);
    assert_eq!(world.receiver.requests().len(), 2);
}
