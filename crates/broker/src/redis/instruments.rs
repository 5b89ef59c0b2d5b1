//! The metrics of shared limits, known from the start.

/// Describes the metrics and shows them at zero.
pub(super) fn register() {
    metrics::describe_gauge!(
        "postrider_shared_limits",
        "Whether this process shares its limits, or holds them alone."
    );
    metrics::gauge!("postrider_shared_limits").set(0.0);
    metrics::describe_counter!(
        "postrider_limits_in_process_total",
        "What this process was asked for and answered alone, since Redis had no answer."
    );
    metrics::counter!("postrider_limits_in_process_total").increment(0);
}
