//! Lists, single reads and the timeline, over open and ended deliveries alike.

use std::collections::BTreeSet;

use postrider_core::{
    id::{DeliveryId, EventId, TenantId},
    retry::DeadReason,
};
use postrider_store::{
    attempts::{self, Outcome},
    deliveries::{self, Delivery, Filter, State, Status},
    events,
    page::{self, Slice},
};
use sqlx::PgTransaction;
use time::Duration;

use crate::queries_history::History;

const EVERYTHING: Slice = Slice { before: None, rows: 1000 };

async fn listed(history: &History, filter: &Filter, slice: Slice) -> Vec<Delivery> {
    let mut reader = reader(history).await;
    deliveries::list(&mut reader, history.tenant.id, filter, slice).await.expect("list")
}

async fn reader(history: &History) -> PgTransaction<'static> {
    page::begin_read(history.pool(), history.tenant.id).await.expect("a transaction begins")
}

#[tokio::test]
async fn pages_show_each_delivery_once_whichever_table_it_is_in() {
    let history = History::with_every_state().await;
    let all: Vec<DeliveryId> =
        listed(&history, &Filter::default(), EVERYTHING).await.iter().map(|delivery| delivery.id).collect();
    assert_eq!(all.len(), 2 * Status::ALL.len(), "two endpoints get each event");
    assert!(all.is_sorted_by(|newer, older| newer > older), "newest first");

    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = listed(&history, &Filter::default(), Slice { before, rows: 5 }).await;
        let Some(last) = page.last() else { break };
        before = Some(last.id.as_uuid());
        seen.extend(page.iter().map(|delivery| delivery.id));
        // What ends or comes back between two pages changes tables, and is still shown once.
        history.shuffle().await;
    }
    assert_eq!(seen, all);
}

#[tokio::test]
async fn filters_narrow_a_list() {
    let history = History::with_every_state().await;
    let (ended_at, hour) = (history.at, Duration::hours(1));
    let check = async |filter: Filter, expected: usize| {
        assert_eq!(listed(&history, &filter, EVERYTHING).await.len(), expected, "{filter:?}");
    };
    for status in Status::ALL {
        check(Filter { status: Some(*status), ..Filter::default() }, 2).await;
    }
    let name = |text: &str| Some(text.parse().expect("name"));
    check(Filter { application: name("orders"), ..Filter::default() }, 12).await;
    check(Filter { application: name("billing"), ..Filter::default() }, 0).await;
    check(Filter { application: name("unknown"), ..Filter::default() }, 0).await;
    check(Filter { endpoint: name("warehouse"), ..Filter::default() }, 6).await;
    check(Filter { endpoint: name("unknown"), ..Filter::default() }, 0).await;
    let kind = |text: &str| Some(text.parse().expect("event type"));
    check(Filter { event_type: kind("order.created"), ..Filter::default() }, 12).await;
    check(Filter { event_type: kind("order"), ..Filter::default() }, 0).await;
    check(Filter { since: Some(ended_at - hour), until: Some(ended_at + hour), ..Filter::default() }, 12)
        .await;
    check(Filter { since: Some(ended_at + hour), ..Filter::default() }, 0).await;
    check(Filter { until: Some(ended_at - hour), ..Filter::default() }, 0).await;
    let narrow = Filter {
        status: Some(Status::DeadLettered),
        endpoint: name("archive"),
        event_type: kind("order.created"),
        ..Filter::default()
    };
    check(narrow, 1).await;
}

#[tokio::test]
async fn a_delivery_shows_what_its_state_has() {
    let history = History::with_every_state().await;
    let at = history.at;
    for status in Status::ALL {
        let found =
            listed(&history, &Filter { status: Some(*status), ..Filter::default() }, EVERYTHING).await;
        let delivery = &found[0];
        assert_eq!(delivery.state.status(), *status);
        let expected = match delivery.state {
            State::Pending { deadline, .. } => State::Pending { since: at, deadline },
            State::Scheduled { deadline, .. } => State::Scheduled { due_at: at, deadline },
            State::InFlight { deadline, .. } => State::InFlight { since: at, deadline },
            State::Held { deadline } => State::Held { deadline },
            State::Delivered { .. } => State::Delivered { ended_at: at },
            State::DeadLettered { .. } => {
                State::DeadLettered { ended_at: at, reason: DeadReason::AttemptsExhausted }
            }
        };
        assert_eq!(delivery.state, expected);

        let mut reader = reader(&history).await;
        let single = deliveries::get(&mut reader, history.tenant.id, delivery.id).await.expect("read");
        assert_eq!(single.as_ref(), Some(delivery), "a single read shows the same");
    }
}

#[tokio::test]
async fn the_attempt_under_way_is_shown_before_it_has_a_row() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::InFlight);
    let mut reader = reader(&history).await;
    let found = attempts::list(&mut reader, history.tenant.id, id, EVERYTHING).await.expect("list");
    let shown: Vec<(u32, Outcome)> = found.iter().map(|attempt| (attempt.number, attempt.outcome)).collect();
    assert_eq!(shown, [(3, Outcome::InFlight), (2, Outcome::Scheduled), (1, Outcome::Scheduled)]);
    assert_eq!((found[0].started_at, found[0].ended_at, found[0].status_code), (history.at, None, None));
    assert_eq!((found[1].status_code, found[1].latency_ms), (Some(503), Some(12)));

    let older = Slice { before: Some(found[0].key()), rows: 1 };
    let page = attempts::list(&mut reader, history.tenant.id, id, older).await.expect("list");
    assert_eq!(page, found[1..2]);
}

#[tokio::test]
async fn a_timeline_holds_an_event_its_deliveries_and_their_attempts() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::InFlight).event();
    let mut reader = reader(&history).await;
    let timeline =
        events::timeline(&mut reader, history.tenant.id, id).await.expect("read").expect("it exists");
    assert_eq!((timeline.event.id, timeline.event.body_bytes), (id, 2));
    assert_eq!(timeline.event.deliveries, 2);
    let shown: Vec<&str> = timeline.deliveries.iter().map(|delivery| delivery.endpoint.as_str()).collect();
    assert_eq!(BTreeSet::from_iter(shown), BTreeSet::from(["archive", "warehouse"]));
    assert_eq!(timeline.attempts.len(), 2 * 3, "three attempts to each endpoint, one of them under way");
    assert!(!timeline.truncated);

    history.add_attempts(history.delivery(Status::InFlight), 4..=500).await;
    let mut reader = self::reader(&history).await;
    let timeline =
        events::timeline(&mut reader, history.tenant.id, id).await.expect("read").expect("it exists");
    assert_eq!(timeline.attempts.len(), usize::from(events::MAX_TIMELINE_ENTRIES));
    assert!(timeline.truncated);
}

#[tokio::test]
async fn events_are_listed_by_application_type_and_time() {
    let history = History::with_every_state().await;
    let check = async |filter: events::Filter, expected: usize| {
        let mut reader = reader(&history).await;
        let found = events::list(&mut reader, history.tenant.id, &filter, EVERYTHING).await.expect("list");
        assert_eq!(found.len(), expected, "{filter:?}");
        assert!(found.is_sorted_by(|newer, older| newer.id > older.id));
    };
    let (at, hour) = (history.at, Duration::hours(1));
    check(events::Filter::default(), 6).await;
    check(events::Filter { application: Some("orders".parse().expect("name")), ..Default::default() }, 6)
        .await;
    check(events::Filter { application: Some("billing".parse().expect("name")), ..Default::default() }, 0)
        .await;
    check(
        events::Filter { event_type: Some("order.created".parse().expect("type")), ..Default::default() },
        6,
    )
    .await;
    check(events::Filter { event_type: Some("order.paid".parse().expect("type")), ..Default::default() }, 0)
        .await;
    check(events::Filter { since: Some(at + hour), ..Default::default() }, 0).await;
    check(events::Filter { until: Some(at + hour), since: Some(at - hour), ..Default::default() }, 6).await;
}

#[tokio::test]
async fn another_tenant_reads_nothing() {
    let history = History::with_every_state().await;
    let rival = history.scenario().tenant("rival").await.id;
    let id = history.delivery(Status::InFlight);
    let mut reader = reader(&history).await;
    assert_eq!(deliveries::get(&mut reader, rival, id).await.expect("read"), None);
    assert_eq!(events::get(&mut reader, rival, id.event()).await.expect("read"), None);
    assert_eq!(events::timeline(&mut reader, rival, id.event()).await.expect("read"), None);
    assert!(attempts::list(&mut reader, rival, id, EVERYTHING).await.expect("read").is_empty());
    assert!(
        deliveries::list(&mut reader, rival, &Filter::default(), EVERYTHING).await.expect("read").is_empty()
    );
    assert!(
        events::list(&mut reader, rival, &events::Filter::default(), EVERYTHING)
            .await
            .expect("read")
            .is_empty()
    );
}

#[tokio::test]
async fn a_list_reads_only_and_only_so_long() {
    let history = History::empty().await;
    let mut reader = reader(&history).await;
    let setting = async |reader: &mut PgTransaction<'static>, name: &str| -> String {
        let query = sqlx::query_scalar("SELECT current_setting($1)").bind(name);
        query.fetch_one(&mut **reader).await.expect("setting")
    };
    assert_eq!(setting(&mut reader, "transaction_read_only").await, "on");
    assert_eq!(setting(&mut reader, "statement_timeout").await, "5s");
    sqlx::query("SET LOCAL statement_timeout = '10ms'").execute(&mut *reader).await.expect("set");
    let error =
        sqlx::query("SELECT pg_sleep(10)").execute(&mut *reader).await.expect_err("it takes too long");
    assert!(page::took_too_long(&error), "{error}");
    assert!(!page::took_too_long(&sqlx::Error::PoolTimedOut));
}

/// Rows a list of 50 may touch: the page itself, its event, application and endpoint for each, and some to spare.
const MAX_ROWS_TOUCHED: i64 = 1_000;
const PAGE: Slice = Slice { before: None, rows: 51 };

/// Counted by PostgreSQL while the real statements run: no scan of a whole hot table, and few rows read.
#[tokio::test]
async fn lists_read_a_page_and_not_the_history() {
    let history = History::empty().await;
    history.fill(20_000).await;
    let middle = history.id_in_the_middle().await;
    let dead = Filter { status: Some(Status::DeadLettered), ..Filter::default() };
    let recent = Filter { since: Some(history.at - Duration::hours(4)), ..Filter::default() };
    let older = Filter { until: Some(history.at - Duration::hours(3)), ..Filter::default() };
    let filters = [
        Filter::default(),
        dead,
        recent,
        older,
        Filter { status: Some(Status::Delivered), ..Filter::default() },
        Filter { status: Some(Status::Pending), ..Filter::default() },
        Filter { endpoint: Some("warehouse".parse().expect("name")), ..Filter::default() },
    ];
    for plan_cache_mode in ["force_custom_plan", "force_generic_plan"] {
        for slice in [PAGE, Slice { before: Some(middle), ..PAGE }] {
            for filter in &filters {
                let named = format!("{plan_cache_mode} {filter:?} {slice:?}");
                let mut watched = Watched::new(&history, plan_cache_mode).await;
                let found = deliveries::list(&mut watched.reader, history.tenant.id, filter, slice)
                    .await
                    .expect("list");
                assert_eq!(found.len(), 51, "{named}");
                watched.touched_few_rows(&named).await;
            }
            let mut watched = Watched::new(&history, plan_cache_mode).await;
            let every = events::Filter::default();
            events::list(&mut watched.reader, history.tenant.id, &every, slice).await.expect("list");
            watched.touched_few_rows(&format!("{plan_cache_mode} events {slice:?}")).await;
        }
        reads_of_one(&history, plan_cache_mode, history.tenant.id, EventId::from_fresh(middle)).await;
    }
}

async fn reads_of_one(history: &History, plan_cache_mode: &str, tenant_id: TenantId, id: EventId) {
    let mut watched = Watched::new(history, plan_cache_mode).await;
    let timeline =
        events::timeline(&mut watched.reader, tenant_id, id).await.expect("read").expect("it exists");
    let delivery = timeline.deliveries[0].id;
    deliveries::get(&mut watched.reader, tenant_id, delivery).await.expect("read").expect("it exists");
    attempts::list(&mut watched.reader, tenant_id, delivery, PAGE).await.expect("list");
    watched.touched_few_rows(&format!("{plan_cache_mode} one event")).await;
}

/// A transaction for one list under one way of planning, and what its connection had read before.
struct Watched {
    reader: PgTransaction<'static>,
    before: Vec<Reads>,
}

/// What was read of one table: its name, scans of the whole of it, and rows.
type Reads = (String, i64, i64);

impl Watched {
    async fn new(history: &History, plan_cache_mode: &str) -> Self {
        let mut reader = reader(history).await;
        let set = sqlx::query("SELECT set_config('plan_cache_mode', $1, true)").bind(plan_cache_mode);
        set.execute(&mut *reader).await.expect("set");
        let before = reads(&mut reader).await;
        Self { reader, before }
    }

    async fn touched_few_rows(mut self, named: &str) {
        for (before, after) in self.before.iter().zip(reads(&mut self.reader).await) {
            let (table, scans, rows) = (after.0, after.1 - before.1, after.2 - before.2);
            assert_eq!(scans, 0, "{named}: {table} is read as a whole");
            assert!(rows <= MAX_ROWS_TOUCHED, "{named}: {rows} rows of {table}");
        }
    }
}

async fn reads(reader: &mut PgTransaction<'static>) -> Vec<Reads> {
    let statistics = "SELECT relname::text, seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read
                        FROM pg_stat_xact_user_tables
                       WHERE relname IN ('events', 'deliveries', 'delivery_queue', 'attempts') ORDER BY relname";
    let reads = sqlx::query_as(statistics).fetch_all(&mut **reader).await.expect("statistics");
    assert_eq!(reads.len(), 4);
    reads
}
