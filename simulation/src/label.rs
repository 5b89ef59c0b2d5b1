//! What a statement is called in a trace and in the counts.
//!
//! Invariant: every statement has a name. One that has none ends the run, so that nobody forgets to give it one.

use std::io;

/// Words that tell a statement of the product from the others, and its short name; the first that fits counts.
const KNOWN: &[(&str, &str)] = &[
    ("AS item (place, tenant_id, delivery_id, token", "settle"),
    ("AS item (place, tenant_id, application_id", INGEST),
    ("AS \"is_repeat!\"", "quota.standings"),
    ("AS asked (place", INGEST_KEYS),
    ("FOR NO KEY UPDATE) AS u", QUOTA_LOCK),
    ("INSERT INTO postrider.tenant_usage (tenant_id)\n", "quota.open"),
    ("INSERT INTO postrider.tenant_usage AS u", "quota.change"),
    ("INSERT INTO postrider.tenant_usage\n", "quota.record"),
    ("SET ingest_rate = $2", "quota.set"),
    ("postrider.preview_lock_key(", "preview.lock"),
    ("(SELECT count(*) FROM postrider.replays", "preview.room"),
    ("WITH wanted AS MATERIALIZED", "preview"),
    ("INSERT INTO postrider.replays (", "preview.write"),
    ("SELECT delivery_id FROM postrider.replay_items", "preview.oldest"),
    ("FROM postrider.replays r\n          LEFT JOIN LATERAL", "replay.read"),
    ("AS \"is_late!\" FROM postrider.replays", "replay.lock"),
    ("SET state = 'running', started_at", "replay.execute"),
    ("UPDATE postrider.replay_endpoints SET due_at = statement_timestamp()\n", "replay.execute.turns"),
    ("UPDATE postrider.replay_endpoints SET due_at = statement_timestamp() +", "replay.postpone"),
    ("UPDATE postrider.replay_endpoints SET due_at = NULL", "replay.cancel.turns"),
    ("SET state = $3, ended_at = statement_timestamp()", "replay.close"),
    ("SELECT replay_id, endpoint_id, items_left, done_to", "replay.next"),
    ("AS \"reopened!\"", "replay.load"),
    ("SELECT delivery_id, attempt_number, ended_at FROM postrider.replay_items", "replay.items"),
    ("SET items_left = $4", "replay.write"),
    ("DELETE FROM postrider.replay_items", "replay.tidy.items"),
    ("DELETE FROM postrider.replay_endpoints", "replay.tidy.endpoints"),
    ("SET is_tidy = true", "replay.tidy.end"),
    ("DELETE FROM postrider.subscriptions WHERE", "delete.subscriptions"),
    ("DELETE FROM postrider.endpoint_applications WHERE", "delete.addressing"),
    ("SET deleted_at = now(), enabled = false", "delete"),
    ("WHERE NOT pg_try_advisory_xact_lock_shared(", "ingest.locked"),
    ("AS a (endpoint_id, row_limit", "take"),
    ("WITH RECURSIVE waiting", "scout"),
    ("WITH due AS", "promote"),
    ("WITH waiting AS", "hold"),
    ("WITH RECURSIVE holding", "release"),
    (
        "WITH late AS MATERIALIZED (\n             SELECT ctid AS location FROM postrider.replays",
        "replay.expire",
    ),
    ("WITH late AS", "expire"),
    ("WITH looked AS", "discard"),
    ("FOR UPDATE OF q SKIP LOCKED", "recover.find"),
    ("'interrupted', leased_at", "recover.apply"),
    ("SET beats = beats + 1", "beat"),
    ("INSERT INTO postrider.instances", "register"),
    ("SELECT instance_id, beats", "hearts"),
    ("AS seen (instance_id, beats)", "declare_dead"),
    ("declared_dead_at IS NOT NULL", "dead"),
    ("DELETE FROM postrider.instances", "forget_dead"),
    ("SET declared_dead_at = now() WHERE", "retire"),
    ("SELECT enabled AND version = $3", "hold.is_unchanged"),
    ("min(began)", "oldest_transaction"),
    ("AS \"active!\" FROM postrider.instances", "workers"),
    ("AS \"oldest_ready_s!\"", "backlog.states"),
    ("AS \"messages!\"", "backlog.outbox"),
    ("(SELECT FROM postrider.delivery_queue WHERE state = 'pending'", "backlog.ready"),
    ("FROM postrider.delivery_queue WHERE state = 'pending' GROUP BY tenant_id", "backlog.tenants"),
    ("SELECT application_id, token_hash AS", "routing.token"),
    ("t.name AS tenant_name, a.name, a.kind", "routing.application"),
    ("SELECT s.endpoint_id, s.event_types", "routing.rules"),
    ("FROM postrider.endpoint_applications a", "routing.approved"),
    ("t.name AS tenant_name, e.name, e.version", "routing.endpoints"),
    ("SELECT algorithm, sealed_secret", "signing_key"),
    ("postrider.endpoints WHERE tenant_id = $1 AND endpoint_id = $2 AND deleted_at IS NULL", "edit.endpoint"),
    ("SELECT application_id FROM postrider.subscriptions WHERE", "edit.applications"),
    ("SELECT application_id AS \"listed!\"", "reopen.listed"),
    ("SELECT application_id FROM postrider.applications WHERE tenant_id = $1", "edit.all_applications"),
    ("SELECT pg_advisory_xact_lock_shared(postrider.plan_lock_key(", "quota.share"),
    ("SET open_at_most = open_at_most + $2", "quota.reopened"),
    ("SELECT opened, changes, clock_timestamp()", "quota.begin_count"),
    ("WITH found AS MATERIALIZED", "quota.count"),
    ("SET open_at_most = $2 + (opened - $3)", "quota.counted"),
    ("SELECT pg_advisory_xact_lock(postrider.plan_lock_key(", "edit.lock"),
    ("SET routing_version = routing_version + 1", "edit.version"),
    ("SELECT e.endpoint_id, e.name, e.url", "edit.read"),
    ("SET enabled = $3::text IS NULL", "enable"),
    ("INSERT INTO postrider.signing_keys", "rotate.key"),
    ("SET signing_key_id = $3", "rotate.endpoint"),
    ("INSERT INTO postrider.audit_log", "audit"),
    ("AND outcome = 'dead_lettered'\n                   LIMIT 1 FOR UPDATE", "reopen.letters"),
    ("OR EXISTS (SELECT FROM postrider.deliveries WHERE", "retry.exists"),
    ("LIMIT 1 FOR KEY SHARE", "reopen.events"),
    ("SELECT enabled, signing_key_id, max_in_flight", "reopen.terms"),
    ("WHERE deleted_at IS NOT NULL AND drained_at IS NULL AND (", "discard.find"),
    ("SET drained_at = now()", "discard.drain"),
    ("WITH RECURSIVE due AS", "replay.tenants"),
    ("WHERE ended_at IS NULL AND state = 'running'\n", "replay.finish"),
    ("WHERE ended_at IS NOT NULL AND NOT is_tidy", "replay.tidy"),
    ("AS \"running!\" FROM postrider.replays", "replay.running"),
    ("WITH reopened AS", "reopen"),
    ("NOTIFY postrider_pending", NOTIFY),
    ("LISTEN ", LISTEN),
];

/// How statements begin that begin or end a transaction.
const TRANSACTION: &[(&str, &str)] = &[("ROLLBACK", "rollback"), ("COMMIT", "commit"), ("BEGIN", "begin")];

pub(crate) const INGEST: &str = "ingest";
pub(crate) const INGEST_KEYS: &str = "ingest.keys";
pub(crate) const QUOTA_LOCK: &str = "quota.lock";
pub(crate) const NOTIFY: &str = "notify";
pub(crate) const LISTEN: &str = "listen";
/// No statement: a pool asks whether its connection still answers.
pub(crate) const PING: &str = "ping";

/// The kind of row that a statement locks first, or waits for.
pub(crate) fn awaited_row(label: &str) -> Option<&'static str> {
    match label {
        QUOTA_LOCK | "quota.change" | "quota.reopened" | "quota.open" | "quota.counted" => Some("quota"),
        "edit.endpoint" | "reopen.terms" => Some("endpoint"),
        "reopen.letters" => Some("letters"),
        "replay.lock" | "replay.close" => Some("replay"),
        _ => None,
    }
}

pub(crate) fn of(sql: &str) -> io::Result<String> {
    let mut transaction = TRANSACTION.iter().filter(|(word, _)| sql.starts_with(word));
    match transaction.next().or_else(|| KNOWN.iter().find(|(words, _)| sql.contains(words))) {
        Some((_, name)) => Ok((*name).to_owned()),
        None => Err(io::Error::other(format!("no name for a statement, give it one in label.rs:\n{sql}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn a_statement_has_the_name_of_what_it_is_for_or_ends_the_run() {
        for (sql, expected) in [
            ("BEGIN; SET LOCAL lock_timeout = '60s'", Some("begin")),
            ("LISTEN postrider_pending", Some("listen")),
            ("NOTIFY postrider_pending", Some("notify")),
            ("UPDATE postrider.instances SET beats = beats + 1", Some("beat")),
            (
                "SELECT application_id, token_hash AS \"token_hash!\" FROM postrider.applications",
                Some("routing.token"),
            ),
            ("SELECT something_new FROM postrider.applications", None),
            ("", None),
        ] {
            match (of(sql), expected) {
                (Ok(name), Some(expected)) => assert_eq!(name, expected),
                (Err(error), None) => assert!(error.to_string().ends_with(&format!("label.rs:\n{sql}"))),
                (found, _) => panic!("{sql}: {found:?}"),
            }
        }
    }
}
