//! Variables that send other programs through a proxy do nothing here: a proxy would see every event, and reach addresses
//! that the guard forbids.

use std::time::Duration;

use postrider_testkit::{authority::Authority, ledger::Ledger, postgres::Database, receiver::Receiver};
use serde_json::json;
use tokio::{net::TcpListener, time::timeout};

use super::scene::{OVER, until_nothing_is_open};
use crate::server::Server;

#[tokio::test]
async fn no_variable_leads_deliveries_through_a_proxy() {
    let database = Database::fresh().await;
    let authority = Authority::default();
    let plain = Receiver::start().await;
    let encrypted = Receiver::start_tls(authority.server(&["localhost"])).await;
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("trusted.pem");
    std::fs::write(&trusted, authority.certificate_pem()).unwrap();
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", trap.local_addr().unwrap());
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables = names.map(|name| (name, proxy.as_str()));
    // Nothing may be left out for its sake.
    let more = [("no_proxy", ""), ("NO_PROXY", ""), ("POSTRIDER_CA_FILE", trusted.to_str().unwrap())];
    let server = Server::start_with(&database, "all", &[variables.as_slice(), &more].concat()).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&plain.url("/")).await;
    let mut accepted = vec![publisher.publish("[1]").await];
    plain.wait_for(1).await;
    publisher.manage("PATCH", "/endpoints/warehouse", json!({ "url": encrypted.url("/") }), 200).await;
    accepted.push(publisher.publish("[2]").await);
    encrypted.wait_for(1).await;
    until_nothing_is_open(database.pool()).await;

    let caught = timeout(Duration::ZERO, trap.accept()).await;
    assert!(caught.is_err(), "somebody asked the proxy: {caught:?}");
    let ledger = Ledger { accepted, ..Ledger::default() }.with_receiver(&plain).with_receiver(&encrypted);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.attempts), (2, 2));
}
