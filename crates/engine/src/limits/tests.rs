use std::num::{NonZeroU16, NonZeroU32};

use postrider_core::{id::SigningKeyId, method::Method, retry, success_codes::SuccessCodes};
use uuid::Uuid;

use super::*;

pub(super) const NOW: Duration = Duration::from_secs(100);
const QUICKLY: Duration = Duration::from_millis(5);

pub(super) fn endpoint(tenant: u128, number: u128, max_in_flight: u16) -> Endpoint {
    Endpoint {
        tenant_id: TenantId::from_uuid(Uuid::from_u128(tenant)),
        endpoint_id: EndpointId::from_uuid(Uuid::from_u128(number)),
        tenant_name: "acme".into(),
        name: "warehouse".into(),
        version: 1,
        registry_version: None,
        is_deleted: false,
        url: "https://example.com/".into(),
        sealed_query: None,
        method: Method::Post,
        success_codes: SuccessCodes::DEFAULT,
        credential_id: None,
        signing_key_id: SigningKeyId::from_uuid(Uuid::from_u128(1)),
        overlap: None,
        sealed_headers: None,
        timeout: Duration::from_secs(10),
        max_in_flight: NonZeroU16::new(max_in_flight).expect("not zero"),
        rate: None,
        retry: retry::Policy::DEFAULT,
    }
}

/// Makes an endpoint known to be quick.
pub(super) fn prove(limits: &Arc<Limits>, endpoint: &Endpoint) {
    let grant = limits.acquire(endpoint, 1, Source::Queue, NOW);
    grant.permits[0].answered(QUICKLY, NOW);
}

#[test]
fn an_endpoint_never_exceeds_its_concurrency() {
    let limits = Limits::new(100);
    let endpoint = endpoint(1, 1, 10);
    prove(&limits, &endpoint);
    let first = limits.acquire(&endpoint, 8, Source::Queue, NOW);
    assert_eq!((first.permits.len(), first.shortage), (8, None));
    let second = limits.acquire(&endpoint, 8, Source::Queue, NOW);
    assert_eq!((second.permits.len(), second.places.len(), second.shortage), (2, 6, None));
    drop(second.places);
    drop(first);
    assert_eq!(limits.acquire(&endpoint, 20, Source::Queue, NOW).permits.len(), 8);
    drop(second.permits);
    assert_eq!(limits.in_flight(), 0);
    assert_eq!(limits.tenant_load(endpoint.tenant_id), 0);
}

#[test]
fn a_stranger_gets_little_until_it_has_answered_quickly() {
    let limits = Limits::new(100);
    let endpoint = endpoint(1, 1, 50);
    let first = limits.acquire(&endpoint, 50, Source::Queue, NOW);
    assert_eq!(first.permits.len(), usize::from(UNPROVEN_IN_FLIGHT));
    first.permits[0].answered(QUICKLY, NOW);
    assert_eq!(limits.acquire(&endpoint, 50, Source::Queue, NOW).permits.len(), 49);
}

#[test]
fn a_thousand_hanging_endpoints_leave_slots_to_quick_ones_and_to_newcomers() {
    let limits = Limits::new(100);
    let quick = endpoint(2, 9_999, 200);
    prove(&limits, &quick);
    let strangers: Vec<_> = (0..1_000).map(|number| endpoint(1, number, 50)).collect();
    let ask_all = |now| {
        let grants =
            strangers.iter().map(|stranger| limits.acquire(stranger, 50, Source::Queue, now).permits);
        grants.flatten().collect::<Vec<_>>()
    };
    let mut held = ask_all(NOW);
    assert_eq!(held.len(), 25, "strangers share a quarter");
    assert_eq!(limits.acquire(&quick, 200, Source::Queue, NOW).permits.len(), 100);

    // A second later the first ones are known to hang, and others are tried in their place.
    let later = NOW + Duration::from_secs(2);
    held.extend(ask_all(later));
    assert!((50..=100).contains(&held.len()), "{}", held.len());
    assert_eq!(limits.acquire(&endpoint(3, 10_000, 50), 50, Source::Queue, later).permits.len(), 0);
    let newcomer =
        limits.acquire(&endpoint(3, 10_000, 50), 50, Source::Queue, later + Duration::from_secs(2));
    assert_eq!(
        newcomer.permits.len(),
        usize::from(UNPROVEN_IN_FLIGHT),
        "a newcomer need not wait for a timeout"
    );
    assert_eq!(limits.acquire(&quick, 200, Source::Queue, later).permits.len(), 100, "whatever hangs");
}

#[test]
fn all_requests_together_have_a_ceiling() {
    let limits = Limits::new(8);
    let mut held = Vec::new();
    for second in 0..100 {
        let now = NOW + Duration::from_secs(2 * second);
        for number in 0..10 {
            let stranger = endpoint(1, u128::from(second * 10 + number), 50);
            held.extend(limits.acquire(&stranger, 50, Source::Queue, now).permits);
        }
    }
    assert_eq!(held.len(), 8 * usize::from(CEILING));
}

#[test]
fn rate_tokens_bound_what_is_claimed_and_are_paid_when_sending() {
    let limits = Limits::new(100);
    let mut endpoint = endpoint(1, 1, 50);
    endpoint.rate = Some(Rate { per_second: 10.0, burst: NonZeroU32::new(3).expect("not zero") });
    prove(&limits, &endpoint);
    let mut grant = limits.acquire(&endpoint, 4, Source::Queue, NOW);
    assert_eq!(grant.permits.len(), 3);
    assert!(matches!(grant.shortage, Some(Shortage::Rate(_))), "{:?}", grant.shortage);
    for permit in &mut grant.permits {
        assert_eq!(permit.pay(NOW), Ok(()));
        assert_eq!(permit.pay(NOW), Ok(()), "a permit pays once");
    }
    drop(grant);
    let empty = limits.acquire(&endpoint, 1, Source::Queue, NOW);
    let Some(Shortage::Rate(wait)) = empty.shortage else { panic!("the bucket is empty: {empty:?}") };
    assert_eq!(limits.acquire(&endpoint, 1, Source::Queue, NOW + wait).permits.len(), 1);
}

#[test]
fn hand_off_leaves_a_share_and_stands_back_while_the_queue_waits() {
    let limits = Limits::new(100);
    let [one, two] = [endpoint(1, 1, 100), endpoint(1, 2, 100)];
    prove(&limits, &one);
    prove(&limits, &two);
    let handed = limits.acquire(&one, 100, Source::HandOff, NOW);
    assert_eq!(handed.permits.len(), 75);
    let queued = limits.acquire(&two, 50, Source::Queue, NOW);
    assert_eq!(queued.permits.len(), 25);
    drop(handed);
    assert!(limits.acquire(&one, 1, Source::HandOff, NOW).permits.is_empty(), "the queue was short of slots");
    assert_eq!(limits.acquire(&two, 10, Source::Queue, NOW).permits.len(), 10);
    assert_eq!(limits.acquire(&one, 1, Source::HandOff, NOW).permits.len(), 1);
}

#[test]
fn a_hanging_endpoint_with_a_backlog_does_not_stop_hand_off_to_others() {
    let limits = Limits::new(100);
    let [hanging, quick] = [endpoint(1, 1, 50), endpoint(2, 2, 50)];
    prove(&limits, &quick);
    let mut held = limits.acquire(&hanging, 32, Source::Queue, NOW).permits;
    let later = NOW + Duration::from_secs(2);
    loop {
        let more = limits.acquire(&hanging, 32, Source::Queue, later).permits;
        if more.is_empty() {
            break;
        }
        held.extend(more);
    }
    assert_eq!(limits.acquire(&quick, 1, Source::HandOff, later).permits.len(), 1);
    drop(held);
}
