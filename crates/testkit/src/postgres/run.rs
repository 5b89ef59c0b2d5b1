//! The server that all tests of one run share.

use postrider_embedded::{Durability, Place};
use tokio::sync::OnceCell;

use crate::run::Run;

static SERVER: OnceCell<Server> = OnceCell::const_new();

/// Stands for the name of the database in the written URL; no other part of a URL looks like it.
const DATABASE: &str = "DATABASE-NAME";

#[derive(Debug)]
pub(super) struct Server {
    url: String,
}

impl Server {
    pub(super) fn url(&self, database: &str) -> String {
        self.url.replace(DATABASE, database)
    }
}

pub(super) async fn server() -> &'static Server {
    SERVER.get_or_init(async || Server { url: Run::current().share("postgresql", start).await }).await
}

async fn start(run: &Run) -> String {
    let cluster = super::start(Place::Temporary, Durability::None, &[]).await;
    let url = cluster.url(DATABASE);
    cluster.detach(run.lifetime, Some(&run.directory)).unwrap_or_else(|error| panic!("{error}"));
    url
}
