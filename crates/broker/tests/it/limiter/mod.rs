//! What every limiter keeps to, whoever asks and however many: the limits of one process, those in Redis, and those that
//! two clients of one Redis share. Time is real, since Redis has its own.

mod leases;
pub(crate) mod parties;
mod rates;
mod tokens;

use crate::limiter::parties::Parties;

/// All of it, one after the other: each takes endpoints and tenants of its own.
async fn check(parties: &Parties) {
    for (per_second, burst, askers) in [(40.0, 1, 3), (50.0, 5, 4), (200.0, 20, 8), (25.0, 2, 2)] {
        rates::never_more_than_the_burst_and_what_the_time_gave(parties, per_second, burst, askers).await;
    }
    for (max_in_flight, askers) in [(1, 4), (4, 12), (10, 10)] {
        leases::never_more_at_once_than_allowed(parties, max_in_flight, askers).await;
    }
    leases::both_limits_hold_together(parties).await;
    leases::a_lease_that_is_given_back_is_free(parties).await;
    leases::a_wish_that_is_given_back_is_none(parties).await;
    leases::a_lease_that_nobody_gives_back_ends(parties).await;
    leases::a_lease_that_is_to_live_too_long_is_one(parties).await;
    leases::a_granted_lease_costs_nothing_more(parties).await;
    tokens::more_than_a_burst_waits_until_it_is_full_and_leaves_a_debt(parties).await;
    tokens::a_changed_rate_holds_at_once(parties).await;
    tokens::each_has_a_bucket_of_its_own(parties).await;
    tokens::what_a_process_knows_is_what_it_was_told(parties).await;
}

#[tokio::test]
async fn the_limits_of_one_process_hold() {
    check(&Parties::in_process()).await;
}

#[tokio::test]
async fn limits_in_redis_hold() {
    check(&Parties::in_redis(1).await).await;
}

#[tokio::test]
async fn limits_that_two_clients_share_hold_for_both_together() {
    check(&Parties::in_redis(2).await).await;
}
