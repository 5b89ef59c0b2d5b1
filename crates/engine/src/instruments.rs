//! The engine's metrics, known from the start: one that appears only when something first goes wrong cannot be alerted on.

use postrider_core::quota::Quota;

/// Describes every metric of the engine and shows the counters at zero. Call it once, when the recorder is in place.
pub fn register() {
    for (name, description) in COUNTERS {
        metrics::describe_counter!(*name, *description);
        if ![ATTEMPTS, LOGINS, OVER_QUOTA, TOKEN_REQUESTS].contains(name) {
            metrics::counter!(*name).increment(0);
        }
    }
    for quota in [Quota::HourlyEvents, Quota::HourlyBytes, Quota::OpenDeliveries] {
        metrics::counter!("postrider_events_over_quota_total", "quota" => quota.as_str()).increment(0);
    }
    for outcome in ["succeeded", "refused", "throttled"] {
        metrics::counter!("postrider_logins_total", "outcome" => outcome).increment(0);
    }
    for outcome in ["granted", "failed"] {
        metrics::counter!("postrider_token_requests_total", "outcome" => outcome).increment(0);
    }
    for outcome in ["delivered", "scheduled", "dead_lettered", "interrupted"] {
        metrics::counter!("postrider_attempts_total", "outcome" => outcome).increment(0);
    }
    for (name, description) in HISTOGRAMS {
        metrics::describe_histogram!(*name, *description);
    }
    metrics::describe_gauge!("postrider_requests_in_flight", "Requests to endpoints under way.");
    metrics::describe_gauge!("postrider_active_workers", "Processes that deliver and whose heart beats.");
    metrics::describe_gauge!("postrider_backlog", "Open deliveries, by what they wait for.");
    metrics::describe_gauge!("postrider_backlog_oldest_seconds", "How long the first of them has waited.");
    metrics::describe_gauge!("postrider_replays_running", "Replays that run, in all processes together.");
    metrics::describe_gauge!(
        "postrider_oldest_transaction_seconds",
        "Age of the oldest transaction that keeps PostgreSQL from cleaning up."
    );
}

/// The counters that come with a label.
const ATTEMPTS: &str = "postrider_attempts_total";
const LOGINS: &str = "postrider_logins_total";
const OVER_QUOTA: &str = "postrider_events_over_quota_total";
const TOKEN_REQUESTS: &str = "postrider_token_requests_total";

const COUNTERS: &[(&str, &str)] = &[
    ("postrider_accepted_events_total", "Events stored."),
    (
        "postrider_duplicate_events_total",
        "Publishes answered with an event stored before, under the same key.",
    ),
    (
        "postrider_audit_refusals_skipped_total",
        "Refusals of known credentials that the audit log has already, or had no room for.",
    ),
    (ATTEMPTS, "Attempts that ended, by what came of them."),
    (
        "postrider_expired_deliveries_total",
        "Deliveries that passed their deadline before they could be sent.",
    ),
    ("postrider_discarded_deliveries_total", "Deliveries that ended because their endpoint was deleted."),
    (LOGINS, "Attempts to log in, by what came of them."),
    (OVER_QUOTA, "Events refused for a quota of their tenant, by which one."),
    (
        "postrider_uncounted_events_total",
        "Events refused because what their tenant has open was not counted yet.",
    ),
    ("postrider_events_over_backlog_total", "Publishing requests refused because too much waits to be sent."),
    ("postrider_events_over_rate_total", "Publishing requests refused for the rate of their tenant."),
    (
        "postrider_http_requests_over_limit_total",
        "Requests refused because this process had as many in hand as it may.",
    ),
    ("postrider_lives_lost_total", "Times that others declared this process dead while it lived."),
    ("postrider_rebuilt_indexes_total", "Indexes of the queue that had grown and were built anew."),
    (
        "postrider_reconnected_requests_total",
        "Requests sent again at once, since their kept connection was closed.",
    ),
    (
        "postrider_replay_skipped_deliveries_total",
        "Letters of replays that were no longer as their preview saw them.",
    ),
    ("postrider_replayed_deliveries_total", "Dead letters that replays brought back into the queue."),
    ("postrider_stale_results_total", "Results that came after another process took the delivery over."),
    (TOKEN_REQUESTS, "Requests for access tokens, by whether they brought one."),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    ("postrider_attempt_duration_seconds", "From the lookup of the name to the head of the answer."),
    ("postrider_delivery_duration_seconds", "From acceptance to delivery."),
    ("postrider_ingest_batch_size", "Events in one statement."),
    ("postrider_settle_batch_size", "Results in one statement."),
];
