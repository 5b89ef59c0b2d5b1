//! What a statement is called in a trace.

/// Words that tell a statement of the product from the others, and its short name.
const KNOWN: &[(&str, &str)] = &[
    ("AS item (place, tenant_id, delivery_id, token", "settle"),
    ("AS item (place, tenant_id, application_id", INGEST),
    ("AS asked (place", INGEST_KEYS),
    ("AS a (endpoint_id, row_limit", "take"),
    ("WITH RECURSIVE waiting", "scout"),
    ("WITH due AS", "promote"),
    ("WITH waiting AS", "hold"),
    ("WITH RECURSIVE holding", "release"),
    ("WITH late AS", "expire"),
    ("FOR UPDATE OF q SKIP LOCKED", "recover.find"),
    ("'interrupted', leased_at", "recover.apply"),
    ("SET beats = beats + 1", "beat"),
    ("INSERT INTO postrider.instances", "register"),
    ("SELECT instance_id, beats", "hearts"),
    ("AS seen (instance_id, beats)", "declare_dead"),
    ("declared_dead_at IS NOT NULL", "dead"),
    ("DELETE FROM postrider.instances", "forget_dead"),
    ("SET declared_dead_at = now() WHERE", "retire"),
    ("NOTIFY postrider_pending", NOTIFY),
    ("LISTEN ", LISTEN),
];

/// How statements begin that begin or end a transaction.
const TRANSACTION: &[(&str, &str)] = &[("ROLLBACK", "rollback"), ("COMMIT", "commit"), ("BEGIN", "begin")];

pub(crate) const INGEST: &str = "ingest";
pub(crate) const INGEST_KEYS: &str = "ingest.keys";
pub(crate) const NOTIFY: &str = "notify";
pub(crate) const LISTEN: &str = "listen";

/// Words of an unknown statement that are shown.
const SHOWN_WORDS: usize = 5;

pub(crate) fn of(sql: &str) -> String {
    let mut transaction = TRANSACTION.iter().filter(|(word, _)| sql.starts_with(word));
    match transaction.next().or_else(|| KNOWN.iter().find(|(words, _)| sql.contains(words))) {
        Some((_, name)) => (*name).to_owned(),
        None => sql.split_whitespace().take(SHOWN_WORDS).collect::<Vec<_>>().join(" "),
    }
}
