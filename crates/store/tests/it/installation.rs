//! The first process decides on the pepper and the encryption key; whoever has another one is told.

use postrider_core::{
    pepper::{Peppers, Refusal},
    seal::{Context, Keyring, Purpose},
    token::Pepper,
};
use postrider_store::{
    installation::{KeyError, PepperError, prove_encryption_key, prove_pepper},
    rotation::pepper::{Finish, Unused},
    rotation::pepper::{advance, finish, standing},
};
use postrider_testkit::{
    postgres::Database,
    scenario::{self, Scenario},
};
use sqlx::PgPool;
use uuid::Uuid;

use crate::rotation::by;

const OLD: u8 = 1;
const NEW: u8 = 2;
const WRONG: u8 = 3;

fn peppers(generation: i32, current: u8, previous: Option<u8>) -> Peppers {
    let pepper = |byte| Pepper::new(&[byte; 32]).expect("pepper");
    Peppers::new(generation, pepper(current), previous.map(pepper)).expect("peppers")
}

async fn start(pool: &PgPool, (generation, current, previous): (i32, u8, Option<u8>)) -> Result<(), Refusal> {
    match prove_pepper(pool, &peppers(generation, current, previous)).await {
        Ok(()) => Ok(()),
        Err(PepperError::Refused(refusal)) => Err(refusal),
        Err(PepperError::Database(error)) => panic!("{error}"),
    }
}

#[tokio::test]
async fn later_processes_must_have_the_pepper_of_the_first() {
    let database = Database::fresh().await;
    let pool = database.pool();
    let (one, other) = tokio::join!(start(pool, (2, OLD, None)), start(pool, (2, OLD, None)));
    assert!(one.is_ok() && other.is_ok());
    for (given, expected) in [
        ((2, OLD, None), Ok(())),
        ((2, WRONG, None), Err(Refusal::OtherPepper { generation: 2 })),
        ((1, OLD, None), Err(Refusal::OtherGeneration { recorded: 2, given: 1 })),
        ((3, NEW, None), Err(Refusal::PreviousMissing { generation: 2 })),
    ] {
        assert_eq!(start(pool, given).await, expected, "{given:?}");
    }
    assert_eq!(standing(pool).await.unwrap().unwrap().next_fingerprint, None, "nothing refused is announced");
}

#[tokio::test]
async fn the_pepper_to_come_is_the_one_that_was_announced_first() {
    let database = Database::fresh().await;
    let pool = database.pool();
    start(pool, (1, OLD, None)).await.expect("the first start");
    let next = [(2, NEW, Some(OLD)), (2, WRONG, Some(OLD))];
    let (one, other) = tokio::join!(start(pool, next[0]), start(pool, next[1]));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert_eq!(one.and(other), Err(Refusal::OtherNext { generation: 2 }));
    assert_eq!(start(pool, (1, OLD, None)).await, Ok(()), "beside those that are still of the old one");
}

#[tokio::test]
async fn without_the_pepper_before_a_process_starts_once_no_token_needs_it() {
    let database = Database::fresh().await;
    let pool = database.pool();
    start(pool, (1, OLD, None)).await.expect("the first start");
    let held = peppers(2, NEW, Some(OLD));
    advance(pool, &held, by()).await.expect("the move");
    assert_eq!(start(pool, (2, NEW, None)).await, Ok(()), "there are no tokens");

    // The scenario's pepper is neither of them, so its token is of the first generation and no other.
    let insert = "INSERT INTO postrider.tenants (tenant_id, name, display_name) VALUES ($1, 'acme', 'Acme')";
    sqlx::query(insert).bind(Uuid::nil()).execute(pool).await.unwrap();
    let insert = "INSERT INTO postrider.management_keys
                      (tenant_id, management_key_id, name, role, token_hash, pepper_generation)
                  VALUES ($1, $1, 'owner', 'owner', '', 1)";
    sqlx::query(insert).bind(Uuid::nil()).execute(pool).await.unwrap();
    assert_eq!(start(pool, (2, NEW, None)).await, Err(Refusal::PreviousMissing { generation: 1 }));
    assert_eq!(start(pool, (2, NEW, Some(OLD))).await, Ok(()));
    assert_eq!(
        start(pool, (1, OLD, None)).await,
        Err(Refusal::OtherGeneration { recorded: 2, given: 1 }),
        "it has moved"
    );
    let finished = finish(pool, &held, Unused::Revoke, by()).await.expect("the end");
    assert_eq!(finished, Finish::Finished { revoked: 1 });
    assert_eq!(start(pool, (2, NEW, None)).await, Ok(()));
}

fn keyring(current: u8, previous: Option<u8>, next: Option<u8>) -> Keyring {
    let ring = Keyring::new([current; 32], previous.map(|byte| [byte; 32])).expect("keyring");
    match next {
        Some(next) => ring.with_next([next; 32]).expect("keyring"),
        None => ring,
    }
}

/// What a refused start is told to set.
fn wanted(outcome: &Result<(), KeyError>) -> &'static str {
    match outcome {
        Ok(()) => "nothing",
        Err(KeyError::Other { .. }) => "the key",
        Err(KeyError::Missing { .. }) => "the previous key",
        Err(KeyError::DoesNotOpen { .. }) => "a key that opens",
        Err(KeyError::Database(error)) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_process_holds_every_key_that_something_is_sealed_under() {
    // The key that every scenario seals under.
    const SEALED: u8 = 7;
    let database = Database::fresh().await;
    let pool = database.pool();
    prove_pepper(pool, &scenario::peppers()).await.expect("the first start");
    let acme = Scenario::new(pool.clone()).tenant("acme").await;
    acme.endpoint("warehouse", "https://example.com/").create().await;
    for (ring, expected) in [
        (keyring(SEALED, None, None), "nothing"),
        (keyring(9, None, None), "the key"),
        (keyring(9, Some(8), None), "the key"),
        (keyring(9, Some(SEALED), None), "nothing"),
        (keyring(SEALED, None, Some(9)), "nothing"),
    ] {
        assert_eq!(wanted(&prove_encryption_key(pool, &ring).await), expected, "{ring:?}");
    }

    // Somebody has sealed under the next key.
    let endpoint = acme.endpoint("office", "https://example.com/").create().await;
    let context =
        Context { purpose: Purpose::SigningSecret, tenant: acme.id, row: endpoint.signing_key_id.as_uuid() };
    let set = |envelope: Vec<u8>| {
        let set = "UPDATE postrider.signing_keys SET sealed_secret = $2 WHERE signing_key_id = $1";
        sqlx::query(set).bind(endpoint.signing_key_id.as_uuid()).bind(envelope).execute(pool)
    };
    set(keyring(9, None, None).seal([1; 12], &context, b"secret")).await.unwrap();
    for (ring, expected) in [
        (keyring(SEALED, None, None), "the previous key"),
        (keyring(9, None, None), "the previous key"),
        (keyring(8, None, None), "the key"),
        (keyring(9, Some(SEALED), None), "nothing"),
        (keyring(SEALED, Some(9), None), "nothing"),
        (keyring(SEALED, None, Some(9)), "nothing"),
    ] {
        assert_eq!(wanted(&prove_encryption_key(pool, &ring).await), expected, "{ring:?}");
    }

    // It names a key that is held, and does not open.
    let mut damaged = keyring(SEALED, None, None).seal([1; 12], &context, b"secret");
    *damaged.last_mut().unwrap() ^= 1;
    set(damaged).await.unwrap();
    let outcome = prove_encryption_key(pool, &keyring(SEALED, None, None)).await;
    assert_eq!(wanted(&outcome), "a key that opens");
    set(b"short".to_vec()).await.unwrap();
    let outcome = prove_encryption_key(pool, &keyring(SEALED, None, None)).await;
    assert!(outcome.is_err(), "{outcome:?}");
}

#[tokio::test]
async fn of_two_first_processes_with_different_keys_one_is_told_before_anything_is_sealed() {
    let database = Database::fresh().await;
    let pool = database.pool();
    start(pool, (1, OLD, None)).await.expect("the first start");
    let rings = [keyring(1, None, None), keyring(2, None, None)];
    let (one, other) =
        tokio::join!(prove_encryption_key(pool, &rings[0]), prove_encryption_key(pool, &rings[1]));
    let mut outcomes = [wanted(&one), wanted(&other)];
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["nothing", "the key"]);
}
