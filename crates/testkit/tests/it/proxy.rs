//! The fault proxy before a real server: what passes, and what each fault does to whom.

use std::time::Duration;

use postrider_testkit::{
    postgres::Database,
    proxy::{Fault, Proxy},
};
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(300);

struct Scene {
    database: Database,
    proxy: Proxy,
}

impl Scene {
    async fn new() -> Self {
        let database = Database::empty().await;
        let proxy = Proxy::before(database.url()).await;
        sqlx::raw_sql("CREATE TABLE marks (mark text)").execute(database.pool()).await.unwrap();
        Self { database, proxy }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.proxy.url(self.database.url())).await.unwrap()
    }

    async fn marks(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM marks").fetch_one(self.database.pool()).await.unwrap()
    }
}

/// Writes a mark in a transaction; whether the commit was heard of.
async fn mark(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO marks VALUES ('x')").execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::test]
async fn everything_passes_as_it_came() {
    let scene = Scene::new().await;
    let mut connection = scene.connect().await;
    let long = "ä".repeat(1024 * 1024);
    let back: String =
        sqlx::query_scalar("SELECT $1::text").bind(&long).fetch_one(&mut connection).await.unwrap();
    assert!(back == long);
    mark(&mut connection).await.unwrap();
    assert_eq!(scene.marks().await, 1);
}

#[tokio::test]
async fn a_commit_is_cut_off_before_or_after_it_happened() {
    let scene = Scene::new().await;
    for (fault, stored) in [(Fault::CutBefore, 0), (Fault::SwallowReply, 1)] {
        let (mut connection, mut bystander) = (scene.connect().await, scene.connect().await);
        scene.proxy.set("COMMIT", fault);
        mark(&mut connection).await.expect_err("nobody heard of the commit");
        scene.proxy.happened(1 + usize::from(stored == 1)).await;
        bystander.ping().await.expect("other connections stay");
        // The server may still be rolling back.
        while scene.marks().await != stored {}
    }
    let mut connection = scene.connect().await;
    mark(&mut connection).await.expect("each fault happens once");
}

#[tokio::test]
async fn in_a_stall_nothing_passes_on_connections_new_and_old() {
    let scene = Scene::new().await;
    let mut connection = scene.connect().await;
    scene.proxy.stall();
    timeout(SOON, mark(&mut connection)).await.expect_err("nothing passes");
    timeout(SOON, scene.connect()).await.expect_err("nor there");
    assert_eq!(scene.marks().await, 0);
}

#[tokio::test]
async fn all_connections_are_cut_and_new_ones_may_lead_elsewhere() {
    let scene = Scene::new().await;
    let mut connection = scene.connect().await;
    scene.proxy.cut_all();
    mark(&mut connection).await.expect_err("the connection is gone");
    scene.connect().await.ping().await.unwrap();

    scene.proxy.lead_to("postgres://127.0.0.1:1/nowhere");
    let url = scene.proxy.url(scene.database.url());
    PgConnection::connect(&url).await.expect_err("nobody listens there");
    scene.proxy.lead_to(scene.database.url());
    scene.connect().await.ping().await.unwrap();
}
