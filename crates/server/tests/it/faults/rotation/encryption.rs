//! `keys rotate-encryption`, under load and killed.

use postrider_core::seal::{Context, Keyring, Purpose};
use postrider_testkit::{postgres::Database, receiver::Receiver};
use rustix::process::Signal;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use super::{NEW, keys, keys_json};
use crate::{
    faults::{
        load::Load,
        scene::{OVER, until, until_nothing_is_open},
    },
    program::Program,
    server::{KEY, Publisher, Server, launch},
};

const OLD_KEY: (&str, &str) = ("POSTRIDER_ENCRYPTION_KEY", KEY);
const NEW_KEY: (&str, &str) = ("POSTRIDER_ENCRYPTION_KEY", NEW);
const OLD_STILL_OPENS: (&str, &str) = ("POSTRIDER_ENCRYPTION_KEY_PREVIOUS", KEY);
const NEW_OPENS_ALREADY: (&str, &str) = ("POSTRIDER_ENCRYPTION_KEY_NEXT", NEW);

const TO_DO: &str = "SELECT count(*) FROM postrider.signing_keys
                      WHERE substring(sealed_secret FROM 2 FOR 4) <> substring(sha256($1) FROM 1 FOR 4)";

fn bytes(key: &str) -> [u8; 32] {
    hex::decode(key).unwrap().try_into().unwrap()
}

/// Signing keys that are still sealed under another key than the new one.
async fn to_do(pool: &PgPool) -> i64 {
    sqlx::query_scalar(TO_DO).bind(bytes(NEW).as_slice()).fetch_one(pool).await.unwrap()
}

/// More signing keys of the endpoint there is, as earlier rotations of its secret leave them.
async fn add_signing_keys(pool: &PgPool, number: usize) {
    let (tenant, endpoint): (Uuid, Uuid) =
        sqlx::query_as("SELECT tenant_id, endpoint_id FROM postrider.endpoints")
            .fetch_one(pool)
            .await
            .unwrap();
    let keyring = Keyring::new(bytes(KEY), None).unwrap();
    let keys: Vec<Uuid> = (0..number).map(|_| Uuid::now_v7()).collect();
    let seal = |row: &Uuid| {
        let context = Context { purpose: Purpose::SigningSecret, tenant: tenant.into(), row: *row };
        let [nonce @ .., _, _, _, _] = Uuid::new_v4().into_bytes();
        keyring.seal(nonce, &context, &[1; 32])
    };
    let envelopes: Vec<Vec<u8>> = keys.iter().map(seal).collect();
    let insert = "INSERT INTO postrider.signing_keys (tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret)
         SELECT $1, key.id, $2, 'hmac-sha256', key.envelope FROM unnest($3::uuid[], $4::bytea[]) AS key (id, envelope)";
    let insert = sqlx::query(insert).bind(tenant).bind(endpoint).bind(&keys).bind(&envelopes);
    insert.execute(pool).await.unwrap();
}

/// A server with an endpoint whose headers are sealed, too.
async fn set_up(database: &Database, receiver: &Receiver, more: &[(&str, &str)]) -> (Server, Publisher) {
    let server = Server::start_with(database, "all", more).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let headers = json!({ "headers": { "x-vendor": "secret" } });
    publisher.manage("PATCH", "/endpoints/warehouse", headers, 200).await;
    (server, publisher)
}

#[tokio::test]
async fn under_load_nothing_is_lost_and_the_old_key_may_go_in_the_end() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // Step one: every process opens what will be sealed under the new key.
    let (ahead, publisher) = set_up(&database, &receiver, &[NEW_OPENS_ALREADY]).await;
    // Step two, one process after the other: the new key seals.
    let during = Server::start_with(&database, "all", &[NEW_KEY, OLD_STILL_OPENS]).await;
    let second = json!({ "id": "office", "url": receiver.url("/") });
    publisher.at(&during).manage("POST", "/endpoints", second, 201).await;
    add_signing_keys(database.pool(), 500).await;
    let load = Load::start(&publisher, &[ahead.address, during.address], 4);
    load.until("fifty accepted", |counts| counts.accepted >= 50).await;

    let dry = keys_json(&database, &["rotate-encryption", "--dry-run"], &[NEW_KEY, OLD_STILL_OPENS]).await;
    assert_eq!((&dry["resealed"], &dry["left"]), (&json!(0), &json!(502)), "{dry}");
    let done = keys_json(&database, &["rotate-encryption"], &[NEW_KEY, OLD_STILL_OPENS]).await;
    assert_eq!((&done["resealed"], &done["left"]), (&json!(502), &json!(0)), "{done}");
    let so_far = load.counts().accepted;
    load.until("fifty more accepted", |counts| counts.accepted >= so_far + 50).await;
    let mut ledger = load.stop().await;
    ahead.program.terminate();
    ahead.program.ended().await;
    during.program.terminate();
    during.program.ended().await;

    // Step four: the new key alone.
    let after = Server::start_with(&database, "all", &[NEW_KEY]).await;
    ledger.accepted.push(publisher.at(&after).publish("[\"last\"]").await);
    until_nothing_is_open(database.pool()).await;
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.header("x-vendor") == Some("secret")));
    let promised = ledger.promised_deliveries();
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.dead_lettered), (promised, 0));
}

#[tokio::test]
async fn killed_in_the_middle_it_goes_on_where_it_was_and_servers_work_all_the_time() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let (server, publisher) = set_up(&database, &receiver, &[NEW_KEY, OLD_STILL_OPENS]).await;
    // The server seals under the new key, so these are all that is to do.
    add_signing_keys(database.pool(), 450).await;
    for (failpoint, expected) in
        [("secrets_resealed:kill:0", 450), ("secrets_replaced:kill:0", 251), ("secrets_resealed:kill:1", 51)]
    {
        let variables = [NEW_KEY, OLD_STILL_OPENS, ("POSTRIDER_FAILPOINT", failpoint)];
        let ended = keys(&database, &["rotate-encryption"], &variables).await;
        assert_eq!(ended.code, None, "{failpoint} killed it: {ended:?}");
        assert_eq!(to_do(database.pool()).await, expected, "{failpoint}");
        let accepted = publisher.publish("[1]").await;
        publisher.wait_for_delivery(&accepted, "delivered").await;
        // Whoever starts now needs both keys, and is told so.
        let refused = launch(&database, "all", &[NEW_KEY]).ended().await;
        assert!(refused.stderr.contains("POSTRIDER_ENCRYPTION_KEY_PREVIOUS"), "{refused:?}");
    }
    let ended = keys(&database, &["rotate-encryption"], &[NEW_KEY, OLD_STILL_OPENS]).await;
    assert!(ended.code == Some(0) && ended.stdout.contains("may go"), "{ended:?}");
    assert_eq!(to_do(database.pool()).await, 0);
    server.program.terminate();
    server.program.ended().await;
    let after = Server::start_with(&database, "all", &[NEW_KEY]).await;
    let accepted = publisher.at(&after).publish("[2]").await;
    publisher.at(&after).wait_for_delivery(&accepted, "delivered").await;
}

#[tokio::test]
async fn an_edit_between_the_look_at_a_value_and_its_replacement_wins() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let (server, publisher) = set_up(&database, &receiver, &[NEW_OPENS_ALREADY]).await;
    // It stands still with the endpoint's headers sealed anew in its hands; the signing keys came first.
    let stopping = ("POSTRIDER_FAILPOINT", "secrets_resealed:stop:1");
    let variables = [("DATABASE_URL", database.url()), NEW_KEY, OLD_STILL_OPENS, stopping];
    let command = Program::start(&["keys", "rotate-encryption"], &variables);
    until("the command stands still", async || command.is_stopped()).await;
    let headers = json!({ "headers": { "x-vendor": "edited" } });
    publisher.manage("PATCH", "/endpoints/warehouse", headers, 200).await;
    command.signal(Signal::CONT);
    let ended = command.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");

    server.program.terminate();
    server.program.ended().await;
    let after = Server::start_with(&database, "all", &[NEW_KEY]).await;
    publisher.at(&after).publish("[1]").await;
    let requests = receiver.wait_for(1).await;
    assert_eq!(requests[0].header("x-vendor"), Some("edited"));
}

#[tokio::test]
async fn a_process_that_still_seals_with_the_old_key_keeps_it_from_being_let_go() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let (server, publisher) = set_up(&database, &receiver, &[NEW_OPENS_ALREADY]).await;
    keys_json(&database, &["rotate-encryption"], &[NEW_KEY, OLD_STILL_OPENS]).await;
    // It opens what is under the new key, and seals under the old one again.
    let accepted = publisher.publish("[1]").await;
    publisher.wait_for_delivery(&accepted, "delivered").await;
    publisher.manage("POST", "/endpoints/warehouse/rotate-secret", json!({}), 200).await;
    let refused = launch(&database, "all", &[NEW_KEY]).ended().await;
    assert!(refused.stderr.contains("POSTRIDER_ENCRYPTION_KEY_PREVIOUS"), "{refused:?}");
    server.program.terminate();
    server.program.ended().await;
    let done = keys_json(&database, &["rotate-encryption"], &[NEW_KEY, OLD_STILL_OPENS]).await;
    assert_eq!(done["resealed"], 1, "{done}");
    Server::start_with(&database, "api", &[NEW_KEY]).await;
    // The way back is the same way.
    let back = [OLD_KEY, ("POSTRIDER_ENCRYPTION_KEY_PREVIOUS", NEW)];
    let refused = launch(&database, "api", &[OLD_KEY]).ended().await;
    assert!(refused.stderr.contains("POSTRIDER_ENCRYPTION_KEY"), "{refused:?}");
    keys_json(&database, &["rotate-encryption"], &back).await;
    Server::start_with(&database, "api", &[OLD_KEY]).await;
}
