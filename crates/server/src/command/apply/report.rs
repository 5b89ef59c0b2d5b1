//! What was or would be changed, for people and for scripts. Nothing here is secret: values of headers and queries do not
//! get this far.

use std::fmt::Write as _;

use postrider_core::{
    name::Name,
    registry::{Change, Kind},
};
use serde_json::{Value, json};

use super::differences::{Differences, Orphans, TenantDifferences};

pub(super) struct Report {
    pub(super) differences: Differences,
    pub(super) orphans: Vec<Orphans>,
    /// Tenants with approved endpoints that the file does not name.
    pub(super) untouched: Vec<(Name, i64)>,
    pub(super) is_applied: bool,
}

impl Report {
    pub(super) fn is_changed(&self) -> bool {
        !self.differences.is_empty()
    }

    pub(super) fn json(&self) -> String {
        let tenants: Vec<Value> =
            self.differences.tenants.iter().map(|tenant| self.tenant_json(tenant)).collect();
        let untouched: Vec<Value> = self
            .untouched
            .iter()
            .map(|(name, count)| json!({"tenant": name, "approvedEndpoints": count}))
            .collect();
        let is_applied = self.is_applied && self.is_changed();
        json!({
            "changed": self.is_changed(),
            "applied": is_applied,
            "tenants": tenants,
            "untouched": untouched,
        })
        .to_string()
    }

    fn tenant_json(&self, tenant: &TenantDifferences) -> Value {
        let changes: Vec<Value> = tenant
            .changes
            .iter()
            .map(|change| {
                let fields: Vec<Value> = match &change.kind {
                    Kind::Changed { fields, .. } => fields
                        .iter()
                        .map(|field| json!({"name": field.name, "from": field.from, "to": field.to}))
                        .collect(),
                    Kind::Added(_) | Kind::Removed => Vec::new(),
                };
                json!({
                    "endpoint": change.endpoint,
                    "change": word(change),
                    "fields": fields,
                    "openDeliveries": self.orphans_of(tenant, change),
                })
            })
            .collect();
        json!({"tenant": tenant.name, "version": version(tenant), "changes": changes})
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for tenant in &self.differences.tenants {
            self.write_tenant(&mut text, tenant);
        }
        for (name, count) in &self.untouched {
            let _ =
                writeln!(text, "{name}: not in this file; its {count} approved endpoints stay as they are");
        }
        let end = match (self.is_changed(), self.is_applied) {
            (false, _) => "There is nothing to change.",
            (true, true) => "Applied.",
            (true, false) => "Nothing was changed: this was a dry run.",
        };
        text + end
    }

    fn write_tenant(&self, text: &mut String, tenant: &TenantDifferences) {
        if tenant.changes.is_empty() {
            return;
        }
        let _ = writeln!(text, "{}: version {} of its registry", tenant.name, version(tenant));
        for change in &tenant.changes {
            let name = &change.endpoint;
            let _ = match &change.kind {
                Kind::Added(endpoint) => writeln!(text, "  + {name}: {}", endpoint.url),
                Kind::Changed { .. } => writeln!(text, "  ~ {name}"),
                Kind::Removed => writeln!(text, "  - {name}"),
            };
            if let Kind::Changed { fields, .. } = &change.kind {
                for field in fields {
                    let _ = writeln!(text, "      {}: {} -> {}", field.name, field.from, field.to);
                }
            }
            let count = self.orphans_of(tenant, change);
            if count > 0 {
                let becomes = match &change.kind {
                    Kind::Removed => "become dead letters",
                    Kind::Added(_) | Kind::Changed { .. } => "go to the new host",
                };
                let _ = writeln!(text, "      {count} open deliveries {becomes}; that takes --allow-orphans");
            }
        }
    }

    fn orphans_of(&self, tenant: &TenantDifferences, change: &Change) -> u64 {
        let own = |orphans: &&Orphans| orphans.tenant == tenant.name && orphans.endpoint == change.endpoint;
        self.orphans.iter().find(own).map_or(0, |orphans| orphans.count)
    }
}

/// The version that the tenant's registry has after this.
fn version(tenant: &TenantDifferences) -> i64 {
    if tenant.changes.is_empty() { tenant.version } else { tenant.version + 1 }
}

fn word(change: &Change) -> &'static str {
    match &change.kind {
        Kind::Added(_) => "added",
        Kind::Changed { .. } => "changed",
        Kind::Removed => "removed",
    }
}
