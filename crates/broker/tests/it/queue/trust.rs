//! Which brokers are believed under `amqps`.

use std::{sync::Arc, time::Duration};

use postrider_broker::rabbit::{Address, RabbitMq, Settings};
use postrider_core::queue::Queue as _;
use postrider_testkit::{authority::Authority, postgres::Database, rabbitmq::Broker};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::tls;

/// Long enough for several tries.
const PATIENCE: Duration = Duration::from_secs(3);

async fn is_reached(database: &Database, url: &str, authority: Option<&Authority>) -> bool {
    let pem = authority.map(Authority::certificate_pem);
    let broker = RabbitMq::new(Settings {
        address: Address::new(url, pem).expect("the URL of a broker"),
        options: database.url().parse().expect("a database URL"),
        sends_at_once: None,
        draining: CancellationToken::new(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&broker).publish());
    let up = async {
        while !broker.is_up() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, up).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_is_believed_only_by_its_name_and_its_authority() {
    let (database, authority) = (Database::fresh().await, Authority::default());
    let (_node, broker) = Broker::own_node_with_tls(&authority).await;
    let url = broker.tls_url();
    assert!(is_reached(&database, &url, Some(&authority)).await);
    assert!(!is_reached(&database, &url, Some(&Authority::default())).await, "another authority");
    assert!(!is_reached(&database, &url, None).await, "the system does not know it");
    // The same broker behind a certificate of the same authority, for this name or for another one.
    let mut tasks = JoinSet::new();
    let plain = broker.url();
    let (login, rest) = plain.split_once('@').expect("a password");
    let (address, virtual_host) = rest.split_once('/').expect("a virtual host");
    for (name, is_expected) in [("127.0.0.1", true), ("rabbitmq.example", false)] {
        let port = tls::in_front(authority.server(&[name]), address.to_owned(), &mut tasks).await;
        let login = login.replacen("amqp:", "amqps:", 1);
        let url = format!("{login}@127.0.0.1:{port}/{virtual_host}");
        assert_eq!(is_reached(&database, &url, Some(&authority)).await, is_expected, "{name}");
    }
}
