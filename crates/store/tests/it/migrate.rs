//! The schema's versions: who may change them, and what a failure leaves behind.

use postrider_store::migrate::{self, Change, Error, Upgrade, Versions};
use postrider_testkit::{
    postgres::Database,
    proxy::{Fault, Proxy},
};
use sqlx::{
    AssertSqlSafe, PgPool, SqlSafeStr as _,
    migrate::{Migration, MigrationType, Migrator},
    postgres::PgPoolOptions,
};

/// How many processes start at once in the test of that.
const STARTS: usize = 50;

/// The embedded migrations and more, as a later release would have them.
fn later_release(statements: &[&'static str]) -> Migrator {
    let mut migrations: Vec<Migration> = migrate::embedded().iter().cloned().collect();
    let newest = migrations.iter().map(|migration| migration.version).max().expect("migrations");
    for (version, statement) in (newest + 1..).zip(statements) {
        let kind = MigrationType::Simple;
        migrations.push(Migration::new(version, "later".into(), kind, (*statement).into_sql_str(), false));
    }
    migrate::with_own_table(Migrator::with_migrations(migrations))
}

async fn has_table(pool: &PgPool, table: &str) -> bool {
    let query = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(table);
    query.fetch_one(pool).await.expect("the catalogue can be read")
}

#[tokio::test]
async fn an_empty_database_is_filled_without_asking_and_then_left_alone() {
    let database = Database::empty().await;
    let empty = migrate::inspect(database.pool()).await.expect("an empty database can be inspected");
    assert_eq!(empty.applied, None);
    assert!(!has_table(database.pool(), "postrider.schema_migrations").await, "inspecting changes nothing");

    let found = migrate::prepare(database.pool(), Upgrade::Refuse).await.expect("the schema applies");
    assert_eq!(found, empty, "the versions found before");
    let current = migrate::inspect(database.pool()).await.expect("inspect");
    assert_eq!(current, Versions { applied: Some(empty.embedded), embedded: empty.embedded });
    assert_eq!(migrate::prepare(database.pool(), Upgrade::Refuse).await.expect("current"), current);
}

#[tokio::test]
async fn an_older_schema_is_upgraded_only_when_that_is_allowed() {
    let database = Database::fresh().await;
    let later = later_release(&["CREATE TABLE postrider.later (id int)"]);

    let refused = migrate::bring_to(database.pool(), &later, Upgrade::Refuse).await.expect_err("not allowed");
    assert!(matches!(refused, Error::UpgradeNotAllowed { .. }), "{refused:?}");
    assert!(refused.to_string().contains("POSTRIDER_ALLOW_SCHEMA_UPGRADE=1"), "{refused}");
    assert!(!has_table(database.pool(), "postrider.later").await);

    migrate::bring_to(database.pool(), &later, Upgrade::Allow).await.expect("allowed");
    assert!(has_table(database.pool(), "postrider.later").await);
}

#[tokio::test]
async fn a_failure_leaves_the_old_version_intact() {
    let database = Database::fresh().await;
    let before = migrate::inspect(database.pool()).await.expect("inspect");
    let broken = later_release(&["CREATE TABLE postrider.later (id int)", "SELECT 1 / 0"]);

    let failed =
        migrate::bring_to(database.pool(), &broken, Upgrade::Allow).await.expect_err("it divides by 0");
    assert!(matches!(failed, Error::Migration { change: Change::Upgrade, .. }), "{failed:?}");
    let newest = before.embedded + 2;
    assert_eq!(
        failed.to_string(),
        format!(
            "the schema could not be upgraded, and nothing was changed: migration {newest}: division by zero"
        )
    );
    assert_eq!(migrate::inspect(database.pool()).await.expect("inspect"), before);
    assert!(!has_table(database.pool(), "postrider.later").await, "not even the part that worked");
    migrate::prepare(database.pool(), Upgrade::Refuse).await.expect("the old program still starts");
}

#[tokio::test]
async fn a_commit_that_is_not_answered_is_not_said_to_have_changed_nothing() {
    let database = Database::fresh().await;
    let proxy = Proxy::before(database.url()).await;
    let pool = PgPoolOptions::new().connect(&proxy.url(database.url())).await.expect("pool");
    let later = later_release(&["CREATE TABLE postrider.later (id int)"]);
    proxy.set("COMMIT", Fault::SwallowReply);
    let unknown = migrate::bring_to(&pool, &later, Upgrade::Allow).await.expect_err("nobody answered");
    assert!(matches!(unknown, Error::Unknown { change: Change::Upgrade, .. }), "{unknown:?}");
    let said = unknown.to_string();
    assert!(said.starts_with("the schema may or may not be upgraded: "), "{said}");
    assert!(has_table(database.pool(), "postrider.later").await, "it was");
    migrate::bring_to(&pool, &later, Upgrade::Refuse).await.expect("and nothing is left to be done");
    pool.close().await;
}

#[tokio::test]
async fn an_error_at_the_commit_is_said_to_have_changed_nothing_only_where_that_is_certain() {
    let later = later_release(&["CREATE TABLE postrider.later (id int)"]);
    for (code, is_certain) in [
        ("23514", true),
        ("40001", true),
        // As a pooler reports that it lost the server.
        ("08006", false),
        ("08P01", false),
        ("57P01", false),
        ("40003", false),
    ] {
        let database = Database::fresh().await;
        let function = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql";
        let raise = format!("BEGIN RAISE 'failed at the end' USING ERRCODE = '{code}'; END");
        execute(&database, format!("{function} AS $${raise}$$")).await;
        let trigger = "CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON postrider.schema_migrations";
        execute(&database, format!("{trigger} INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()"))
            .await;

        let outcome = migrate::bring_to(database.pool(), &later, Upgrade::Allow).await;
        let failed = outcome.expect_err("it fails at the end");
        assert_eq!(matches!(failed, Error::Migration { .. }), is_certain, "{code}: {failed:?}");
        assert_eq!(matches!(failed, Error::Unknown { .. }), !is_certain, "{code}: {failed:?}");
        let said = failed.to_string();
        assert_eq!(said.contains("nothing was changed"), is_certain, "{code}: {said}");
    }
}

#[tokio::test]
async fn a_newer_or_altered_schema_is_refused_whatever_is_allowed() {
    let newer = Database::fresh().await;
    let later = later_release(&["CREATE TABLE postrider.later (id int)"]);
    migrate::bring_to(newer.pool(), &later, Upgrade::Allow).await.expect("a later release ran here");
    let altered = Database::fresh().await;
    sqlx::query("UPDATE postrider.schema_migrations SET checksum = '\\x00'")
        .execute(altered.pool())
        .await
        .expect("update");
    for upgrade in [Upgrade::Refuse, Upgrade::Allow] {
        let refused = migrate::prepare(newer.pool(), upgrade).await.expect_err("newer");
        assert!(matches!(refused, Error::Newer { .. }), "{refused:?}");
        let refused = migrate::prepare(altered.pool(), upgrade).await.expect_err("altered");
        assert!(matches!(refused, Error::Altered { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn many_starts_at_once_make_one_schema() {
    let database = Database::empty().await;
    let connections = u32::try_from(STARTS).expect("few");
    let pool = PgPoolOptions::new().max_connections(connections).connect(database.url()).await.expect("pool");
    let starts = (0..STARTS).map(|_| migrate::prepare(&pool, Upgrade::Refuse));
    for outcome in futures::future::join_all(starts).await {
        outcome.expect("every start finds a schema it can use");
    }
    assert!(migrate::inspect(&pool).await.expect("inspect").is_current());
    pool.close().await;
}

/// A role of one test that may do no more than it is granted.
struct Reader<'a> {
    database: &'a Database,
    role: String,
    pool: PgPool,
}

impl<'a> Reader<'a> {
    async fn create(database: &'a Database, grants: &[&str]) -> Self {
        let role = format!("reader_{}", uuid::Uuid::new_v4().simple());
        execute(database, format!("CREATE ROLE {role}")).await;
        for grant in grants {
            execute(database, format!("GRANT {grant} TO {role}")).await;
        }
        let become_reader = format!("SET ROLE {role}");
        let pool = PgPoolOptions::new().after_connect(move |connection, _| {
            let statement = become_reader.clone();
            Box::pin(async move {
                sqlx::query(AssertSqlSafe(statement)).execute(connection).await?;
                Ok(())
            })
        });
        let pool = pool.connect(database.url()).await.expect("pool");
        Self { database, role, pool }
    }

    async fn drop(self) {
        self.pool.close().await;
        execute(self.database, format!("DROP OWNED BY {}", self.role)).await;
        execute(self.database, format!("DROP ROLE {}", self.role)).await;
    }
}

async fn execute(database: &Database, statement: String) {
    sqlx::query(AssertSqlSafe(statement)).execute(database.pool()).await.expect("a statement of the owner");
}

#[tokio::test]
async fn a_role_that_may_not_alter_the_schema_starts_on_a_current_one() {
    let database = Database::fresh().await;
    let grants = ["USAGE ON SCHEMA postrider", "SELECT ON postrider.schema_migrations"];
    let reader = Reader::create(&database, &grants).await;
    migrate::prepare(&reader.pool, Upgrade::Refuse).await.expect("nothing is to be done");
    let later = later_release(&["CREATE TABLE postrider.later (id int)"]);
    let refused =
        migrate::bring_to(&reader.pool, &later, Upgrade::Allow).await.expect_err("the role may not");
    assert!(matches!(refused, Error::NotPermitted { change: Change::Upgrade, .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("and run `postrider migrate --allow-upgrade`"), "{refused}");
    reader.drop().await;
}

#[tokio::test]
async fn a_role_that_may_not_make_the_schema_is_told_what_to_do() {
    let database = Database::empty().await;
    let reader = Reader::create(&database, &[]).await;
    let refused = migrate::prepare(&reader.pool, Upgrade::Refuse).await.expect_err("the role may not");
    let said = refused.to_string();
    assert!(said.starts_with("the schema could not be created: permission denied for database "), "{said}");
    let mend = "Set POSTRIDER_MIGRATION_DATABASE_URL to the URL of a role that may do that, and run `postrider migrate`";
    assert!(said.ends_with(mend), "{said}");
    reader.drop().await;
}

#[tokio::test]
async fn a_role_that_may_not_even_read_the_version_is_told_so() {
    let database = Database::fresh().await;
    let reader = Reader::create(&database, &[]).await;
    let refused = migrate::prepare(&reader.pool, Upgrade::Refuse).await.expect_err("the role may not");
    assert_eq!(
        refused.to_string(),
        "the schema version could not be read: permission denied for schema postrider. As the owner of the schema run \
         `GRANT postrider_service TO …` for the role that connects"
    );
    execute(&database, format!("GRANT postrider_service TO {}", reader.role)).await;
    migrate::prepare(&reader.pool, Upgrade::Refuse).await.expect("what it was told to do helps");
    reader.drop().await;
}
