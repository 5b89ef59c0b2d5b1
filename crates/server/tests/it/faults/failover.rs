//! The primary is lost for good and its standby takes over. With a synchronous standby nothing that was accepted is lost:
//! what the standby does not have was not promised.

use postrider_embedded::Shutdown;
use postrider_testkit::{
    ledger::Ledger, postgres::Database, proxy::Proxy, receiver::Receiver, standby::Standby,
};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use super::{
    load::{promised, publish},
    scene::{OVER, until, until_nothing_is_open, until_sessions_wait},
};
use crate::server::Server;

/// Commits wait for the standby from now on.
async fn synchronise(primary: &Database) {
    let mut administration = PgConnection::connect(primary.url()).await.unwrap();
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()"] {
        sqlx::raw_sql(statement).execute(&mut administration).await.unwrap();
    }
    let follows = async || {
        let state: Option<String> =
            sqlx::query_scalar("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
                .fetch_optional(&mut administration)
                .await
                .unwrap();
        state.as_deref() == Some("sync")
    };
    until("the standby follows", follows).await;
}

#[tokio::test]
async fn a_synchronous_standby_has_everything_that_was_accepted() {
    let (mut primary, database) = Database::own_cluster().await;
    let standby = Standby::of(&mut primary, &database).await;
    let database = Database::of_cluster(&primary);
    synchronise(&database).await;
    let receiver = Receiver::start().await;
    // Stands for the name or address that moves to the new primary.
    let entry = Proxy::before(database.url()).await;
    let url = entry.url(database.url());
    let server = Server::start_with(&database, "all", &[("DATABASE_URL", &url)]).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let [_, token] = publisher.tokens();
    let mut ledger = Ledger::default();
    for number in 0..20 {
        let (key, body) = (format!("before-{number}"), format!("[{number}]"));
        let answer = publish(server.address, token, &key, body.as_bytes()).await.unwrap();
        assert_eq!(answer.status, 202, "{answer:?}");
        ledger.accepted.push(promised(&answer, &key, body.as_bytes()));
    }

    // The last event reaches the primary alone: it is committed there, and nobody may hear of it.
    standby.way.stall();
    let (address, own_token) = (server.address, token.to_owned());
    let mut last = JoinSet::new();
    last.spawn(async move { publish(address, &own_token, "last", b"[\"last\"]").await });
    until_sessions_wait(database.pool(), "SyncRep", 1).await;
    assert!(last.try_join_next().is_none(), "accepted although the standby does not have it");
    primary.halt(Shutdown::Immediate).await.unwrap();
    let unknown = last.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(unknown.status, 503, "{unknown:?}");

    let survivor = Database::of_cluster(&standby.cluster);
    sqlx::query("SELECT pg_promote()").execute(survivor.pool()).await.unwrap();
    entry.lead_to(survivor.url());
    let mut answer = unknown;
    let accepted = async || {
        answer = publish(server.address, token, "last", b"[\"last\"]").await.unwrap();
        assert!([202, 503].contains(&answer.status), "the standby cannot have it: {answer:?}");
        answer.status == 202
    };
    until("the new primary takes events", accepted).await;
    ledger.accepted.push(promised(&answer, "last", b"[\"last\"]"));
    until_nothing_is_open(survivor.pool()).await;
    let report = ledger.with_receiver(&receiver).check(survivor.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.dead_lettered), (21, 21, 0));
}
