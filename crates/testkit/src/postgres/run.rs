//! The server that all tests of one run share, and what the run is to go through besides: a pooler before it, a broker
//! beside it.

use std::env;

use postrider_embedded::{Durability, Place};
use tokio::sync::OnceCell;

use super::Brokered;
use crate::pgbouncer::Pooler;
use crate::rabbitmq::Broker;
use crate::run::Run;

static SERVER: OnceCell<Server> = OnceCell::const_new();

/// Stands for the name of the database in the written URL; no other part of a URL looks like it.
const DATABASE: &str = "DATABASE-NAME";

#[derive(Debug)]
pub(super) struct Server {
    url: String,
    pooled_url: Option<String>,
}

impl Server {
    pub(super) fn url(&self, database: &str) -> String {
        self.url.replace(DATABASE, database)
    }

    /// By way of the pooler, if there is one.
    pub(super) fn pooled_url(&self, database: &str) -> Option<String> {
        self.pooled_url.as_ref().map(|url| url.replace(DATABASE, database))
    }
}

pub(super) async fn server() -> &'static Server {
    SERVER.get_or_init(find_or_start).await
}

async fn find_or_start() -> Server {
    let run = Run::current();
    let url = run.share("postgresql", start).await;
    let pooled_url = if goes_through("TEST_THROUGH_PGBOUNCER") {
        let put_before = async |run: &Run| {
            let pooler = Pooler::before(&url).await;
            let by_way = pooler.url().to_owned();
            pooler.detach(run);
            by_way
        };
        Some(run.share("pgbouncer", put_before).await)
    } else {
        None
    };
    Server { url, pooled_url }
}

/// A virtual host for one database, where the run goes through a broker.
pub(super) async fn broker() -> Option<Brokered> {
    if !goes_through("TEST_THROUGH_RABBITMQ") {
        return None;
    }
    let broker = Broker::shared_vhost().await;
    Some(Brokered { url: broker.url(), broker })
}

/// `make test-pooled` and `make test-brokered` say so.
fn goes_through(variable: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "how a whole run goes is said once, from outside")]
    env::var_os(variable).is_some()
}

async fn start(run: &Run) -> String {
    let cluster = super::start(Place::Temporary, Durability::None, &[]).await;
    let url = cluster.url(DATABASE);
    cluster.detach(run.lifetime, Some(&run.directory)).unwrap_or_else(|error| panic!("{error}"));
    url
}
