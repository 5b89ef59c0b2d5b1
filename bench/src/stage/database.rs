//! A private PostgreSQL, set as that of `postrider dev` save what the command line sets, and a new migrated database
//! for every measurement.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings, memory};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;

use postrider_testkit::rabbitmq::{Broker, Node};

use super::{Facts, family_cpu_s, server};

const MOST_STATEMENTS: i64 = 12;
const STATEMENTS: &str = "
    SELECT format('  %s | %s | %s | %s | %s | %s', round(total_exec_time), calls, round(mean_exec_time::numeric, 3),
                  rows, wal_bytes, left(regexp_replace(query, '\\s+', ' ', 'g'), 90))
      FROM pg_stat_statements JOIN pg_database ON oid = dbid
     WHERE datname = $1 ORDER BY total_exec_time DESC LIMIT $2";

/// Where everything happens.
#[derive(Debug)]
pub(crate) struct Stage {
    cluster: Cluster,
    administration: PgConnection,
    /// The release binary that is measured.
    pub(crate) program: PathBuf,
    /// Settings of PostgreSQL that are not at their defaults.
    given: Vec<String>,
    /// What the processes said.
    pub(crate) logs: TempDir,
    databases: u32,
    /// Started when it is first asked for.
    broker: Option<(Node, Broker)>,
}

/// A database with Postrider's schema.
#[derive(Debug)]
pub(crate) struct Database {
    name: String,
    pub(crate) url: String,
    pub(crate) connection: PgConnection,
    active_ms_at_first: f64,
}

/// What the queue takes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueSize {
    pub(crate) table_bytes: u64,
    pub(crate) indexes_bytes: u64,
}

impl Stage {
    pub(crate) async fn start(
        program: PathBuf,
        given: Vec<(String, String)>,
        with_statements: bool,
    ) -> anyhow::Result<Self> {
        ensure!(program.is_file(), "{} does not exist: build it with `make bench`", program.display());
        // As `postrider dev` does; of two settings the last one counts.
        let mut parameters: Vec<_> = memory::shared_buffers().into_iter().chain(given).collect();
        if with_statements {
            parameters.push(("shared_preload_libraries".to_owned(), "pg_stat_statements".to_owned()));
        }
        let settings = Settings {
            binaries: Binaries::find(None)?,
            place: Place::Temporary,
            durability: Durability::Full,
            parameters,
        };
        let given = settings.parameters.iter().map(|(name, _)| name.clone()).collect();
        let cluster = Cluster::start(settings).await?;
        let mut administration = PgConnection::connect(&cluster.local_url("postgres")).await?;
        if with_statements {
            administration.execute("CREATE EXTENSION pg_stat_statements").await?;
        }
        Ok(Self {
            cluster,
            administration,
            program,
            given,
            logs: tempfile::tempdir()?,
            databases: 0,
            broker: None,
        })
    }

    pub(crate) async fn facts(&mut self) -> anyhow::Result<Facts> {
        Facts::gather(&mut self.administration, &self.program, &self.given).await
    }

    /// The server's process id.
    pub(crate) fn postmaster(&self) -> anyhow::Result<u32> {
        self.cluster.pid().context("PostgreSQL has ended")
    }

    /// The URL of a private RabbitMQ.
    pub(crate) async fn broker_url(&mut self) -> anyhow::Result<String> {
        if self.broker.is_none() {
            self.broker = Some(Broker::own_node().await);
        }
        Ok(self.broker.as_ref().context("it was just started")?.1.url())
    }

    /// CPU seconds of RabbitMQ up to now.
    pub(crate) fn broker_cpu_s(&self) -> anyhow::Result<f64> {
        let broker = self.broker.as_ref().and_then(|(node, _)| node.pid());
        family_cpu_s(broker.context("RabbitMQ does not run")?)
    }

    /// A new database, migrated by the program itself.
    pub(crate) async fn database(&mut self) -> anyhow::Result<Database> {
        self.databases += 1;
        let name = format!("bench_{}", self.databases);
        self.administer(format!("CREATE DATABASE {name}")).await?;
        // As `postrider dev` does: over a Unix socket.
        let url = self.cluster.local_url(&name);
        server::migrate(&self.program, &url).await?;
        let connection = PgConnection::connect(&url).await?;
        let active_ms_at_first = self.active_ms(&name).await?;
        Ok(Database { name, url, connection, active_ms_at_first })
    }

    /// Writes everything out, so that no measurement pays for what was done before it.
    pub(crate) async fn checkpoint(&mut self) -> anyhow::Result<()> {
        self.administer("CHECKPOINT".to_owned()).await
    }

    /// The time that sessions of a database spent in statements, commits included, since it was made: the
    /// `active_time` of `pg_stat_database`. Sessions report when they end, so ask when the servers have ended.
    pub(crate) async fn database_ms(&mut self, database: &Database) -> anyhow::Result<f64> {
        Ok(self.active_ms(&database.name).await? - database.active_ms_at_first)
    }

    /// What the sessions of a database spent their time on, for somebody who looks for the reason of a figure.
    pub(crate) async fn print_statements(&mut self, database: &Database) -> anyhow::Result<()> {
        let lines: Vec<String> = sqlx::query_scalar(STATEMENTS)
            .bind(&database.name)
            .bind(MOST_STATEMENTS)
            .fetch_all(&mut self.administration)
            .await?;
        eprintln!("  total ms | calls | mean ms | rows | WAL bytes | statement\n{}", lines.join("\n"));
        Ok(())
    }

    pub(crate) async fn discard(&mut self, database: Database) -> anyhow::Result<()> {
        database.connection.close().await?;
        self.administer(format!("DROP DATABASE {} WITH (FORCE)", database.name)).await
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.administration.close().await?;
        Ok(self.cluster.stop().await?)
    }

    async fn active_ms(&mut self, name: &str) -> anyhow::Result<f64> {
        let query =
            sqlx::query_scalar("SELECT active_time FROM pg_stat_database WHERE datname = $1").bind(name);
        Ok(query.fetch_one(&mut self.administration).await?)
    }

    async fn administer(&mut self, statement: String) -> anyhow::Result<()> {
        let done = self.administration.execute(AssertSqlSafe(statement.clone())).await;
        done.with_context(|| format!("`{statement}` failed"))?;
        Ok(())
    }
}

impl Database {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A tenant's rows in the queue.
    pub(crate) async fn open_deliveries(&mut self, tenant: &str) -> anyhow::Result<u64> {
        self.count(
            tenant,
            "SELECT count(*) FROM postrider.delivery_queue JOIN postrider.tenants USING (tenant_id) WHERE name = $1",
        )
        .await
    }

    /// A tenant's deliveries that ended well.
    pub(crate) async fn delivered(&mut self, tenant: &str) -> anyhow::Result<u64> {
        self.count(
            tenant,
            "SELECT count(*) FROM postrider.deliveries JOIN postrider.tenants USING (tenant_id)
              WHERE name = $1 AND outcome = 'delivered'",
        )
        .await
    }

    /// Bytes on disk of the queue's table, and of all its indexes together.
    pub(crate) async fn queue_size(connection: &mut PgConnection) -> anyhow::Result<QueueSize> {
        let query = sqlx::query_as(
            "SELECT pg_table_size('postrider.delivery_queue'), pg_indexes_size('postrider.delivery_queue')",
        );
        let (table_bytes, indexes_bytes): (i64, i64) = query.fetch_one(connection).await?;
        Ok(QueueSize { table_bytes: table_bytes.try_into()?, indexes_bytes: indexes_bytes.try_into()? })
    }

    async fn count(&mut self, tenant: &str, query: &'static str) -> anyhow::Result<u64> {
        let count: i64 = sqlx::query_scalar(query).bind(tenant).fetch_one(&mut self.connection).await?;
        Ok(count.try_into()?)
    }
}
