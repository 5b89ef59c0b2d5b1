//! The plans of the hot statements: each row is reached through an index, on an empty, a full and a bloated table
//! alike. A planner that reads a whole table now and then is what makes such systems fall over. An index that is read
//! from end to end counts as a table that is.
//!
//! Two statements read the whole queue on purpose, once in a pass: the one that finds what `recover` takes back, and
//! `expire`. An index for either would tax every delivery for what is needed seldom; their callers pace them by what they
//! cost.

use std::time::Duration;

use futures::FutureExt as _;
use postrider_core::quota::Settings;
use postrider_store::{
    discard, expire, hold,
    ingest::{self, Item, Stored},
    lanes::{self, Lane},
    outbox::Audience,
    promote,
    quota::{self, Known},
    recover::{self, Dead},
    take,
};
use postrider_testkit::scenario::new_event;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

use crate::hot_path::{World, delivered, scheduled, world};

/// Tables that grow: reading one from end to end is what no hot statement may do.
const GROWING: [&str; 8] = [
    "delivery_queue",
    "events",
    "deliveries",
    "attempts",
    "idempotency_keys",
    "replay_items",
    "tenant_usage",
    "outbox",
];

const QUEUE_KEY: &str = "delivery_queue_pkey";

/// `release` looks for the first held delivery of all: one entry, under `LIMIT 1`, of an index that holds nothing else.
const FIRST_HELD: &str = "delivery_queue_held";
const FIRST_HELD_STATEMENT: &str = "WHERE state = 'held' ORDER BY endpoint_id LIMIT 1)";

/// Runs every hot statement of the work lane, so that the connection has prepared them all.
async fn run_all(world: &mut World) {
    world.application.publish("order.created", "{}").await;
    world.application.publish("order.created", "{}").await;
    let claimed = world.take(2).await;
    world.settle(&[delivered(&claimed[0]), scheduled(&claimed[1], Duration::ZERO)]).await;
    promote::promote(&mut world.lane, Duration::ZERO, 100).await.expect("promotion runs");
    take::find_waiting(&mut world.lane, None, Duration::ZERO, 100).await.expect("a look");
    hold::hold(&mut world.lane, 100).await.expect("holding runs");
    hold::release(&mut world.lane, 100).await.expect("releasing runs");
    world.tenant.endpoint("gone", "https://example.com/").create().await.delete().await;
    let walk = discard::begin(&mut world.lane, None).await.expect("a look");
    discard::step(&mut world.lane, &mut walk.expect("an endpoint"), u16::MAX).await.expect("a step runs");
}

/// Runs every hot statement of the ingest lane: the second batch finds the key of the first.
async fn run_ingest(world: &World, connection: &mut PgConnection) {
    let routing = world.application.routing().await;
    let key = Uuid::now_v7().to_string();
    for expected in [true, false] {
        let event = new_event("order.created", "{}", Some(&key));
        let item = Item { routing: &routing, event: &event, deliveries: &[] };
        let lease = ingest::Lease { owner: world.me, hard_limit: Duration::from_secs(60) };
        let items = [item];
        let mut batch =
            ingest::insert(connection, &items, ingest::Onward::Table(lease)).await.expect("the batch runs");
        ingest::resolve_taken_keys(connection, &items, &mut batch.stored).await.expect("a look");
        assert_eq!(batch.stored == [Stored::New], expected, "{:?}", batch.stored);
    }
}

/// Runs every hot statement of the lane of tenants with quotas: one event is within them, and makes the row of what was
/// used new; its duplicate costs nothing, and another one is refused.
async fn run_metered(world: &World, connection: &mut PgConnection) {
    let limits = Settings { hourly_events: Some(1), open_deliveries: Some(1_000_000), ..Settings::default() };
    world.tenant.limit(&limits).await;
    execute(connection, "UPDATE postrider.tenant_usage SET minutes = '{}', events = '{}', bytes = '{}'")
        .await;
    let (routing, known) = (world.application.routing().await, Known::default());
    let key = Uuid::now_v7().to_string();
    let events = [(); 2].map(|()| new_event("order.created", "{}", Some(&key)));
    let other = new_event("order.created", "{}", None);
    let batch = [&events[0], &events[1], &other];
    let mut stored = world.store_metered(connection, &routing, &known, &batch).await;
    // Where there is much, it is counted apart, by the statement that has looked whether there is.
    if let Some(wanted) = known.wanted().now_or_never() {
        assert_eq!(stored, [Stored::Uncounted; 3]);
        let mut apart = world.database.pool().acquire().await.expect("a connection");
        quota::count(&mut apart, wanted, &known).await.expect("it is counted");
        known.strike_off(wanted.tenant_id);
        stored = world.store_metered(connection, &routing, &known, &batch).await;
    }
    assert!(
        matches!(stored[..], [Stored::New, Stored::Duplicate { .. }, Stored::OverQuota(_)]),
        "{stored:?}"
    );
    // With more than one key in a table that has lost all others the planner takes the index for as large as it was.
    let forget = sqlx::query("DELETE FROM postrider.idempotency_keys WHERE event_id = $1").persistent(false);
    forget.bind(events[0].event_id.as_uuid()).execute(connection).await.expect("the key is forgotten");
}

/// The plans of all statements that a connection has prepared.
async fn plans(connection: &mut PgConnection) -> Vec<(String, String)> {
    let statements = sqlx::query(
        "SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements
          WHERE statement LIKE '%postrider.%' AND statement NOT LIKE '%pg_prepared_statements%'",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("the statements can be listed");
    let mut plans = Vec::new();
    for row in statements {
        let (name, statement, parameters): (String, String, i32) = (row.get(0), row.get(1), row.get(2));
        let nulls = vec!["NULL"; usize::try_from(parameters).expect("a count")].join(", ");
        let arguments = if nulls.is_empty() { String::new() } else { format!("({nulls})") };
        let lines: Vec<String> = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN EXECUTE {name}{arguments}")))
            .fetch_all(&mut *connection)
            .await
            .expect("the plan can be shown")
            .iter()
            .map(|row| row.get(0))
            .collect();
        plans.push((statement, lines.join("\n")));
    }
    plans
}

pub(crate) async fn assert_no_table_is_read_whole(
    connection: &mut PgConnection,
    statements: usize,
    when: &str,
) {
    let plans = plans(connection).await;
    assert_none_reads_whole(plans, statements, when);
}

fn assert_none_reads_whole(plans: Vec<(String, String)>, statements: usize, when: &str) {
    assert_eq!(plans.len(), statements, "every hot statement was run and none is missed");
    let mut faults = Vec::new();
    for (statement, plan) in plans {
        let whole = nodes(&plan).into_iter().find(|node| is_read_whole(node, &statement));
        faults.extend(whole.map(|node| format!("{}\n{statement}\n{plan}", node.title)));
    }
    assert!(faults.is_empty(), "read whole on {when} tables: {}", faults.join("\n\n"));
}

fn is_read_whole(node: &Node<'_>, statement: &str) -> bool {
    match scan(node.title) {
        None => false,
        Some(Scan::Table(table)) => GROWING.contains(&table),
        Some(Scan::Index(index)) => {
            let by = node.conditions.iter().find(|condition| condition.starts_with("Index Cond:"));
            // By its first column alone the key leads to all rows of a tenant.
            !by.is_some_and(|by| index != QUEUE_KEY || by.contains("delivery_id"))
                && GROWING.iter().any(|table| index.starts_with(table))
                && !(index == FIRST_HELD && statement.contains(FIRST_HELD_STATEMENT))
        }
    }
}

/// A step of a plan, and what is said of it.
struct Node<'p> {
    title: &'p str,
    conditions: Vec<&'p str>,
}

fn nodes(plan: &str) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for line in plan.lines() {
        let said = line.trim_start();
        match (said.strip_prefix("->"), nodes.last_mut()) {
            (Some(title), _) => nodes.push(Node { title: title.trim_start(), conditions: Vec::new() }),
            (None, None) => nodes.push(Node { title: said, conditions: Vec::new() }),
            (None, Some(node)) => node.conditions.push(said),
        }
    }
    nodes
}

/// What a step reads: a table from end to end, or an index.
#[derive(Debug, PartialEq, Eq)]
enum Scan<'p> {
    Table(&'p str),
    Index(&'p str),
}

fn scan(title: &str) -> Option<Scan<'_>> {
    let (kind, rest) = title.split_once(if title.contains(" using ") { " using " } else { " on " })?;
    let name = rest.split([' ', '(']).next()?;
    match kind.trim_start_matches("Parallel ") {
        "Seq Scan" => Some(Scan::Table(name)),
        "Index Scan"
        | "Index Only Scan"
        | "Bitmap Index Scan"
        | "Index Scan Backward"
        | "Index Only Scan Backward" => Some(Scan::Index(name)),
        // It reads what a bitmap of an index says; inserts and the like read nothing.
        _ => None,
    }
}

#[test]
fn plans_are_understood() {
    let plan = "\
Sort  (cost=1..2 rows=1 width=8)
  Sort Key: a
  CTE due
    ->  Limit  (cost=0..1 rows=1 width=8)
          ->  Index Scan using delivery_queue_due on delivery_queue  (cost=0..1 rows=1 width=8)
                Index Cond: (due_at <= now())
  ->  Parallel Seq Scan on events e  (cost=0..1 rows=1 width=8)
        Filter: (body IS NULL)
  ->  Bitmap Heap Scan on attempts  (cost=0..1 rows=1 width=8)
        ->  Bitmap Index Scan on attempts_pkey  (cost=0..1 rows=1 width=8)";
    let scans: Vec<_> = nodes(plan)
        .iter()
        .filter_map(|node| Some((scan(node.title)?, node.conditions.first().copied())))
        .collect();
    let expected = [
        (Scan::Index("delivery_queue_due"), Some("Index Cond: (due_at <= now())")),
        (Scan::Table("events"), Some("Filter: (body IS NULL)")),
        (Scan::Index("attempts_pkey"), None),
    ];
    assert_eq!(scans, expected);
}

async fn execute(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.expect("the statement runs");
}

/// Waiting rows by the thousand, spread over the tenant's endpoint and many unknown ones.
pub(crate) const FILL: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, deadline_at, state, pending_since, attempt_number, tries)
    SELECT q.tenant_id, gen_random_uuid(), gen_random_uuid(), q.application_id,
           CASE WHEN n % 2 = 0 THEN q.endpoint_id ELSE gen_random_uuid() END,
           q.signing_key_id, now(), now() + interval '1 day', 'pending', now() - n * interval '1 ms', 0, 0
      FROM (SELECT * FROM postrider.delivery_queue LIMIT 1) q, generate_series(1, 20000) n;
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
           delivery_count, accepted_at)
    SELECT tenant_id, event_id, application_id, 'order.created', 'application/json', '{}',
           decode(repeat('01', 16), 'hex'), 1, now()
      FROM postrider.delivery_queue WHERE attempt_number = 0
        ON CONFLICT DO NOTHING;
    INSERT INTO postrider.idempotency_keys (application_id, key_space, idempotency_key, fingerprint, event_id,
           delivery_count, accepted_at)
    SELECT application_id, 0, event_id::text, '', event_id, 1, now() FROM postrider.events
        ON CONFLICT DO NOTHING;
    INSERT INTO postrider.tenants (tenant_id, name, display_name)
    SELECT gen_random_uuid(), gen_random_uuid(), '' FROM generate_series(1, 2000);
    INSERT INTO postrider.tenant_usage (tenant_id, minutes, events, bytes)
    SELECT tenant_id, array_fill(1, ARRAY[61]), array_fill(1, ARRAY[61]), array_fill(1, ARRAY[61])
      FROM postrider.tenants
        ON CONFLICT DO NOTHING;";

pub(crate) const EMPTY: &str = "
    DELETE FROM postrider.delivery_queue WHERE attempt_number = 0;
    DELETE FROM postrider.idempotency_keys;
    DELETE FROM postrider.tenant_usage;";

/// What is analysed, and when, is the test's choice.
const ALONE: &str = "
    ALTER TABLE postrider.idempotency_keys SET (autovacuum_enabled = false);
    ALTER TABLE postrider.tenant_usage SET (autovacuum_enabled = false);";

/// Leaves one row, to fill from.
const DESERT: &str = "
    DELETE FROM postrider.delivery_queue
     WHERE delivery_id <> (SELECT delivery_id FROM postrider.delivery_queue LIMIT 1)";

/// What `recover` and `expire` look for: any row of the queue may be the one.
const SEARCHES: [&str; 2] = ["q.lease_until < now()", "deadline_at <= now()"];

#[tokio::test]
async fn passes_over_the_queue_read_it_once_and_no_other_table() {
    let mut world = world().await;
    let options = world.database.url().parse().expect("a database URL");
    let mut administration = PgConnection::connect_with(&options).await.expect("a connection");
    for (change, when) in [
        ("SELECT 1", "empty"),
        (FILL, "full, not analysed"),
        ("ANALYZE", "full"),
        (EMPTY, "bloated"),
        ("ANALYZE", "bloated and analysed"),
    ] {
        execute(&mut administration, change).await;
        let mut lane = lanes::connect(&options, Lane::Background).await.expect("a connection");
        // What the planner settles on after some passes, whatever the numbers of the first were.
        execute(&mut lane, "SET plan_cache_mode = force_generic_plan").await;
        world.application.publish("order.created", "{}").await;
        assert_eq!(world.take(1).await.len(), 1);
        let dead = Dead { owners: &[world.me], me: world.me, known: &[], unknown_after: Duration::ZERO };
        assert!(
            recover::recover(&mut lane, &dead, Audience::Nobody, 100).await.expect("recovery runs").again > 0
        );
        expire::expire(&mut lane, Audience::Nobody, 100).await.expect("the sweep runs");
        let (searches, writes): (Vec<_>, Vec<_>) = plans(&mut lane)
            .await
            .into_iter()
            .partition(|(statement, _)| SEARCHES.iter().any(|search| statement.contains(search)));
        // Where the planner knows that next to nothing is there it may read that as well.
        if !matches!(when, "empty" | "bloated and analysed") {
            assert_none_reads_whole(writes, 1, when);
        }
        assert_eq!(searches.len(), SEARCHES.len());
        for (statement, plan) in searches {
            let whole: Vec<&str> = nodes(&plan)
                .into_iter()
                .filter(|node| is_read_whole(node, &statement))
                .map(|node| node.title)
                .collect();
            let is_one_pass = whole.len() <= 1 && whole.iter().all(|title| title.contains("delivery_queue"));
            assert!(is_one_pass, "{when}: {whole:?}\n{statement}\n{plan}");
        }
        // Something to fill from.
        world.application.publish("order.created", "{}").await;
    }
}

#[tokio::test]
async fn no_hot_statement_reads_a_whole_table() {
    /// Of the lanes that work, that ingest, and that ingest for tenants with quotas.
    const STATEMENTS: [usize; 3] = [9, 2, 6];
    let mut world = world().await;
    let options = world.database.url().parse().expect("a database URL");
    let mut administration = PgConnection::connect_with(&options).await.expect("a connection");
    for (change, when) in [
        (ALONE, "empty"),
        (FILL, "full, not analysed"),
        (DESERT, "bloated, not analysed"),
        ("VACUUM postrider.delivery_queue", "vacuumed while empty"),
        ("REINDEX TABLE postrider.delivery_queue", "vacuumed and rebuilt while empty"),
        (FILL, "full, vacuumed while empty"),
        ("ANALYZE", "full"),
        (EMPTY, "bloated"),
        ("ANALYZE", "bloated and analysed"),
    ] {
        execute(&mut administration, change).await;
        world.lane = lanes::connect(&options, Lane::Work).await.expect("a connection");
        let mut ingest = lanes::connect(&options, Lane::Ingest).await.expect("a connection");
        run_all(&mut world).await;
        assert_no_table_is_read_whole(&mut world.lane, STATEMENTS[0], when).await;
        run_ingest(&world, &mut ingest).await;
        assert_no_table_is_read_whole(&mut ingest, STATEMENTS[1], when).await;
        let mut metered = lanes::connect(&options, Lane::IngestMetered).await.expect("a connection");
        run_metered(&world, &mut metered).await;
        assert_no_table_is_read_whole(&mut metered, STATEMENTS[2], when).await;
        // Something to fill from.
        world.application.publish("order.created", "{}").await;
    }
}
