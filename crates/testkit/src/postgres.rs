//! Databases for tests: each test gets its own, cloned from a migrated template.
//!
//! Invariant: nothing here uses a server that was there before. The tests of one run share a cluster that the first
//! of them starts and that ends with the run; tests that stop or kill their server start one of their own.

mod run;

use std::{sync::mpsc, thread, time::Duration};

use postrider_core::queue::Route;
use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings, cluster};
use postrider_store::migrate::{self, Upgrade};
use postrider_store::pool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool, PgTransaction};
use uuid::Uuid;

use crate::rabbitmq::{Broker, Depth};

const TEMPLATE: &str = "postrider_template";
/// Serialises the making of the template; any fixed number that the code under test does not use.
const TEMPLATE_LOCK: i64 = 0x7465_6d70;
/// Connections of one test's pool: more than one, so that races happen, and few, because many tests share a server.
const POOL_SIZE: u32 = 10;
/// Longest wait for a database to be dropped.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Owns nothing and may do what a process needs. All tests of a run share a server, so it may be there, or come at this moment.
const READS_AND_WRITES: &str = "
    DO $$ BEGIN
        CREATE ROLE reads_and_writes LOGIN PASSWORD 'reads_and_writes';
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$;
    DO $$ BEGIN
        IF NOT pg_has_role('reads_and_writes', 'postrider_service', 'MEMBER') THEN
            GRANT postrider_service TO reads_and_writes;
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$";

/// A database of one test. Dropping it drops the database.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    pool: PgPool,
    /// How the product is to come here, where that is another way.
    pooled: Option<Pooled>,
    /// What announces deliveries, where the run goes through a broker.
    broker: Option<Brokered>,
    /// Where to drop it; a cluster of the test's own goes as a whole.
    administration_url: Option<String>,
}

/// A virtual host of the run's RabbitMQ.
#[derive(Debug)]
struct Brokered {
    url: String,
    broker: Broker,
}

/// The way by the run's pooler.
#[derive(Debug)]
struct Pooled {
    url: String,
    pool: PgPool,
}

impl Database {
    /// A database with the current schema and no rows.
    pub async fn fresh() -> Self {
        Self::create(Some(TEMPLATE)).await
    }

    /// A database without the schema, for tests of the migrations.
    pub async fn empty() -> Self {
        Self::create(None).await
    }

    /// A migrated database on a server that the test may stop, kill and resume, and that loses nothing it committed.
    pub async fn own_cluster() -> (Cluster, Self) {
        Self::own_cluster_in(Place::Temporary, &[]).await
    }

    /// The same in a place and with parameters of the test's own.
    pub async fn own_cluster_in(place: Place, parameters: &[(&str, &str)]) -> (Cluster, Self) {
        let cluster = start(place, Durability::Full, parameters).await;
        let mut database = Self::of_cluster(&cluster);
        database.broker = run::broker().await;
        migrate::prepare(&database.pool, Upgrade::Refuse)
            .await
            .expect("the schema applies to an empty database");
        (cluster, database)
    }

    /// The database of a cluster as it is; connected to when it is first asked.
    pub fn of_cluster(cluster: &Cluster) -> Self {
        let url = cluster.url(cluster::DATABASE);
        let pool = PgPoolOptions::new().max_connections(POOL_SIZE).connect_lazy(&url);
        let pool = pool.expect("a database URL");
        Self {
            name: cluster::DATABASE.to_owned(),
            url,
            pool,
            pooled: None,
            broker: None,
            administration_url: None,
        }
    }

    /// For programs and pools of the test's own.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The pool for the product, opened as a process opens it: by way of a pooler where the run goes through one.
    pub fn serving_pool(&self) -> &PgPool {
        self.pooled.as_ref().map_or(&self.pool, |pooled| &pooled.pool)
    }

    /// What a process is told of where its database is: past a pooler too, where the run goes through one.
    pub fn variables(&self) -> Vec<(&'static str, &str)> {
        let mut variables = match &self.pooled {
            None => vec![("DATABASE_URL", self.url())],
            Some(pooled) => {
                vec![("DATABASE_URL", pooled.url.as_str()), ("POSTRIDER_DIRECT_DATABASE_URL", self.url())]
            }
        };
        variables.extend(self.broker_url().map(|url| ("POSTRIDER_RABBITMQ_URL", url)));
        variables
    }

    /// The broker that the product is to use, where the run goes through one.
    pub fn broker_url(&self) -> Option<&str> {
        self.broker.as_ref().map(|broker| broker.url.as_str())
    }

    /// Returns once every message about what is ready was published, and came to somebody who has sent it or left it to the
    /// table; at once where the run goes through no broker.
    pub async fn until_no_message_is_under_way(&self) {
        let Some(Brokered { broker, .. }) = &self.broker else { return };
        loop {
            // In this order: a message leaves the outbox when it is in a queue.
            let outbox =
                sqlx::query_scalar("SELECT count(*) FROM postrider.outbox").fetch_one(&self.pool).await;
            let left: i64 = outbox.expect("the database answers");
            if left == 0 && broker.depth(Route::Ready.as_str()).await == Depth::default() {
                return;
            }
        }
    }

    /// How a role connects that works as a process does and owns none of the tables.
    pub async fn reads_and_writes(&self) -> PgConnectOptions {
        sqlx::raw_sql(READS_AND_WRITES).execute(&self.pool).await.expect("a role");
        let options: PgConnectOptions = self.url.parse().expect("a database URL");
        options.username("reads_and_writes").password("reads_and_writes")
    }

    /// Somebody's report: it has read the queue's table and keeps its view of it.
    pub async fn open_report(&self) -> PgTransaction<'static> {
        let mut report = self.pool.begin().await.expect("a transaction begins");
        sqlx::raw_sql(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM postrider.delivery_queue LIMIT 1",
        )
        .execute(&mut *report)
        .await
        .expect("it reads");
        report
    }

    async fn create(template: Option<&str>) -> Self {
        let server = run::server().await;
        let administration_url = server.url("postgres");
        let mut administration =
            PgConnection::connect(&administration_url).await.expect("the shared server answers");
        let name = format!("test_{}", Uuid::new_v4().simple());
        if let Some(template) = template {
            ensure_template(&mut administration, server, template).await;
        }
        let template = template.unwrap_or("template0");
        run_statement(&mut administration, format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        administration.close().await.expect("the connection closes");
        let url = server.url(&name);
        let pool = connect(&url).await;
        let pooled = match server.pooled_url(&name) {
            None => None,
            Some(url) => Some(Pooled { pool: connect_through_pooler(&url).await, url }),
        };
        let broker = run::broker().await;
        Self { name, url, pool, pooled, broker, administration_url: Some(administration_url) }
    }
}

impl Drop for Database {
    /// Best effort: what is left goes with the server. A thread, because a destructor cannot wait in the test's
    /// runtime. Not for long: PostgreSQL waits for connections that the test was just opening, and those cannot go on
    /// while their runtime is held up here; they end with the process.
    fn drop(&mut self) {
        let Some(url) = self.administration_url.take() else { return };
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let (dropped, is_dropped) = mpsc::channel();
        thread::spawn(move || {
            let dropping = || -> Result<(), sqlx::Error> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let mut administration = PgConnection::connect(&url).await?;
                    administration.execute(AssertSqlSafe(statement)).await?;
                    administration.close().await
                })
            };
            dropped.send(dropping())
        });
        if !matches!(is_dropped.recv_timeout(DROP_LIMIT), Ok(Ok(()))) {
            eprintln!("database {} stays until the test run ends", self.name);
        }
    }
}

/// Makes the template unless another test of this run has. It is built under another name: a template that exists is
/// whole.
async fn ensure_template(administration: &mut PgConnection, server: &run::Server, template: &str) {
    run_statement(administration, format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await;
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(template)
        .fetch_one(&mut *administration)
        .await
        .expect("the catalogue can be read");
    if !exists {
        let unfinished = format!("{template}_unfinished");
        run_statement(administration, format!("DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")).await;
        run_statement(administration, format!("CREATE DATABASE {unfinished} TEMPLATE template0")).await;
        let pool = connect(&server.url(&unfinished)).await;
        migrate::prepare(&pool, Upgrade::Refuse).await.expect("the schema applies to an empty database");
        pool.close().await;
        run_statement(administration, format!("ALTER DATABASE {unfinished} RENAME TO {template}")).await;
    }
    run_statement(administration, format!("SELECT pg_advisory_unlock({TEMPLATE_LOCK})")).await;
}

async fn run_statement(connection: &mut PgConnection, statement: String) {
    if let Err(error) = connection.execute(AssertSqlSafe(statement.clone())).await {
        panic!("{statement}: {error}");
    }
}

async fn connect(url: &str) -> PgPool {
    PgPoolOptions::new().max_connections(POOL_SIZE).connect(url).await.expect("the database answers")
}

async fn connect_through_pooler(url: &str) -> PgPool {
    let options: PgConnectOptions = url.parse().expect("a database URL");
    let options = options.extra_float_digits(None);
    pool::open(pool::Way::ForgetsStatements, POOL_SIZE, options).await.expect("the pooler answers")
}

pub(crate) async fn start(place: Place, durability: Durability, parameters: &[(&str, &str)]) -> Cluster {
    let binaries = Binaries::find(None).unwrap_or_else(|error| panic!("{error}"));
    // Tests in parallel, each with several pools.
    let parameters = [("max_connections", "500")].iter().chain(parameters);
    let parameters = parameters.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let settings = Settings { binaries, place, durability, parameters };
    Cluster::start(settings).await.unwrap_or_else(|error| panic!("{error}"))
}
