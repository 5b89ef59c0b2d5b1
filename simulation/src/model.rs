//! What a run's people have set up: a tenant, its applications and endpoints, and how the receivers behave. The ids are
//! the same in every run; the settings come from the seed.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use postrider_core::{
    id::{ApplicationId, EndpointId, SigningKeyId, TenantId},
    seal::{Context, Purpose},
    signature::{Algorithm, SigningSecret, VerifyingKey},
};
use postrider_store::routing::TokenHash;
use postrider_testkit::scenario::keyring;
use uuid::Uuid;

use crate::{chance::Chance, habits::Habits, network::Reaction};

/// The event types that publishers use.
pub const EVENT_TYPES: [&str; 2] = ["order.created", "invoice.paid"];
/// All that a run writes to.
const TABLES: [&str; 17] = [
    "postrider.tenants",
    "postrider.management_keys",
    "postrider.applications",
    "postrider.endpoints",
    "postrider.signing_keys",
    "postrider.subscriptions",
    "postrider.events",
    "postrider.idempotency_keys",
    "postrider.delivery_queue",
    "postrider.deliveries",
    "postrider.attempts",
    "postrider.instances",
    "postrider.tenant_usage",
    "postrider.replays",
    "postrider.replay_items",
    "postrider.replay_endpoints",
    "postrider.audit_log",
];
/// Bytes of a nonce that seals a secret.
const NONCE_LENGTH: usize = 12;

#[derive(Debug)]
pub struct Model {
    pub tenant: TenantId,
    pub applications: Vec<Application>,
    pub endpoints: Vec<Endpoint>,
    pub habits: Habits,
}

#[derive(Debug)]
pub struct Application {
    pub id: ApplicationId,
    pub name: &'static str,
    pub token_hash: TokenHash,
}

#[derive(Debug)]
pub struct Endpoint {
    pub id: EndpointId,
    pub name: String,
    pub path: String,
    pub max_attempts: u16,
    pub max_in_flight: u16,
    /// Every key it ever had.
    pub keys: BTreeMap<SigningKeyId, VerifyingKey>,
    temper: Temper,
    settings: Settings,
}

#[derive(Debug)]
struct Settings {
    timeout_ms: u64,
    max_age_s: u64,
    initial_delay_ms: u64,
    max_delay_ms: u64,
    rate: Option<(u64, u64)>,
    first_key: SigningKeyId,
    sealed_secret: Vec<u8>,
    patterns: [Option<&'static str>; 2],
}

/// How a receiver behaves.
#[derive(Debug, Clone, Copy)]
enum Temper {
    Good,
    Flaky,
    Broken,
    Leaving,
}

const MOSTLY_GOOD: [(usize, Temper); 4] =
    [(5, Temper::Good), (5, Temper::Flaky), (1, Temper::Broken), (1, Temper::Leaving)];
const OFTEN_BAD: [(usize, Temper); 4] =
    [(2, Temper::Good), (6, Temper::Flaky), (3, Temper::Broken), (1, Temper::Leaving)];

impl Model {
    pub fn new(chance: &mut Chance) -> Self {
        let tenant = TenantId::from_uuid(id(1, 0));
        let names = ["orders", "invoices"];
        let applications = (0..).zip(names).map(|(number, name)| Application {
            id: ApplicationId::from_uuid(id(2, number)),
            name,
            token_hash: [u8::try_from(number + 1).unwrap_or_default(); 32],
        });
        let applications = applications.collect();
        let habits = Habits::new(chance);
        // Replays want letters.
        let tempers = if habits.replays { &OFTEN_BAD } else { &MOSTLY_GOOD };
        let count = chance.between(1, 3);
        let endpoints = (0..count)
            .map(|number| {
                let temper = chance.weighted(tempers).unwrap_or(Temper::Good);
                Endpoint::new(tenant, number, temper, chance)
            })
            .collect();
        Self { tenant, applications, endpoints, habits }
    }

    pub fn endpoint_at(&self, path: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.path == path)
    }

    /// Empties the database and writes this, one transaction after the other.
    ///
    /// The tables keep their files: new ones would have every session plan every statement anew. What is swept out of
    /// them leaves them as short as new ones, so that rows lie where a run puts them, however many runs came before.
    pub fn statements(&self) -> [String; 3] {
        let tenant = self.tenant.as_uuid();
        // Without the checks of references, which would follow them row by row.
        let mut empty = "SET session_replication_role = replica;".to_owned();
        for table in TABLES {
            let _ = write!(empty, "DELETE FROM {table};");
        }
        empty.push_str("RESET session_replication_role");
        let sweep = format!("VACUUM (PROCESS_TOAST false) {}", TABLES.join(", "));
        let number = |limit: Option<u64>| limit.map_or_else(|| "NULL".to_owned(), |limit| limit.to_string());
        let limits = &self.habits.limits;
        let mut sql = format!(
            "INSERT INTO postrider.tenants (tenant_id, name, display_name, hourly_events, hourly_bytes, open_deliveries)
             VALUES ('{tenant}', 'acme', 'Acme', {}, {}, {});",
            number(limits.hourly_events),
            number(limits.hourly_bytes),
            number(limits.open_deliveries),
        );
        for application in &self.applications {
            let (id, name, hash) =
                (application.id.as_uuid(), application.name, hexadecimal(&application.token_hash));
            let _ = write!(
                sql,
                "INSERT INTO postrider.applications (tenant_id, application_id, name, kind, token_hash)
                 VALUES ('{tenant}', '{id}', '{name}', 'publisher', '\\x{hash}');"
            );
        }
        for endpoint in &self.endpoints {
            endpoint.write_to(&mut sql, self);
        }
        [empty, sweep, sql]
    }
}

impl Endpoint {
    fn new(tenant: TenantId, number: u64, temper: Temper, chance: &mut Chance) -> Self {
        let first_key = SigningKeyId::from_uuid(id(4, number));
        let (sealed_secret, verifying) = fresh_secret(tenant, first_key, chance);
        let initial_delay_ms = chance.pick(&[1, 500, 2_000]);
        let settings = Settings {
            timeout_ms: chance.pick(&[1_000, 10_000, 60_000]),
            max_age_s: chance.pick(&[20, 60, 300, 3_600]),
            initial_delay_ms,
            max_delay_ms: initial_delay_ms * chance.between(1, 8),
            rate: chance.one_in(3).then(|| (chance.between(1, 5), chance.between(1, 3))),
            first_key,
            sealed_secret,
            patterns: [
                chance.pick(&[Some("*"), Some("*"), Some("order.*"), None]),
                chance.pick(&[Some("*"), None]),
            ],
        };
        Self {
            id: EndpointId::from_uuid(id(3, number)),
            name: format!("to-{number}"),
            path: format!("/receiver-{number}"),
            max_attempts: chance.pick(&[1, 2, 3, 5]),
            max_in_flight: chance.pick(&[1, 1, 2, 8]),
            keys: BTreeMap::from([(first_key, verifying)]),
            temper,
            settings,
        }
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.settings.timeout_ms)
    }

    /// What its receiver makes of a request.
    pub fn react(&self, chance: &mut Chance) -> Reaction {
        let bad = [
            (4, Reaction::Status(500)),
            (2, Reaction::Timeout),
            (2, Reaction::ConnectionLost),
            (1, Reaction::Busy { retry_after_s: 3 }),
            (1, Reaction::Busy { retry_after_s: 90 }),
            (1, Reaction::Status(404)),
        ];
        let good = match self.temper {
            Temper::Good => 200,
            Temper::Flaky => 11,
            Temper::Broken => 1,
            Temper::Leaving if chance.one_in(3) => return Reaction::Status(410),
            Temper::Leaving => 20,
        };
        let all: Vec<(usize, Reaction)> =
            bad.into_iter().chain([(good, Reaction::Status(chance.pick(&[200, 202, 204])))]).collect();
        chance.weighted(&all).unwrap_or(Reaction::Timeout)
    }

    fn write_to(&self, sql: &mut String, model: &Model) {
        let (tenant, id, settings) = (model.tenant.as_uuid(), self.id.as_uuid(), &self.settings);
        let (path, key) = (&self.path, settings.first_key.as_uuid());
        let (rate, burst) = match settings.rate {
            Some((rate, burst)) => (rate.to_string(), burst.to_string()),
            None => ("NULL".to_owned(), "NULL".to_owned()),
        };
        let Settings { timeout_ms, max_age_s, initial_delay_ms, max_delay_ms, .. } = settings;
        let (in_flight, attempts) = (self.max_in_flight, self.max_attempts);
        let secret = hexadecimal(&settings.sealed_secret);
        let _ = write!(
            sql,
            "INSERT INTO postrider.endpoints (tenant_id, endpoint_id, name, signing_key_id, url, timeout_ms,
                    max_in_flight, rate_per_second, rate_burst, max_attempts, max_age_seconds, initial_delay_ms,
                    max_delay_ms)
             VALUES ('{tenant}', '{id}', '{name}', '{key}', 'http://127.0.0.1:9{path}', {timeout_ms}, {in_flight},
                     {rate}, {burst}, {attempts}, {max_age_s}, {initial_delay_ms}, {max_delay_ms});
             INSERT INTO postrider.signing_keys (tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret)
             VALUES ('{tenant}', '{key}', '{id}', 'hmac-sha256', '\\x{secret}');",
            name = self.name,
        );
        for (application, pattern) in model.applications.iter().zip(settings.patterns) {
            let Some(pattern) = pattern else { continue };
            let application = application.id.as_uuid();
            let subscription = Uuid::from_u128((application.as_u128() << 64) | (id.as_u128() & 0xffff_ffff));
            let _ = write!(
                sql,
                "INSERT INTO postrider.subscriptions (tenant_id, subscription_id, name, application_id, endpoint_id,
                        event_types)
                 VALUES ('{tenant}', '{subscription}', 's-{subscription}', '{application}', '{id}', '{{{pattern}}}');"
            );
        }
    }
}

/// A new signing secret: sealed as it is stored, and as its receiver knows it.
pub fn fresh_secret(tenant: TenantId, key: SigningKeyId, chance: &mut Chance) -> (Vec<u8>, VerifyingKey) {
    let mut random = [0; 32];
    random[..16].copy_from_slice(chance.uuid().as_bytes());
    random[16..].copy_from_slice(chance.uuid().as_bytes());
    let secret = SigningSecret::generate(Algorithm::HmacSha256, random);
    let mut nonce = [0; NONCE_LENGTH];
    nonce.copy_from_slice(&chance.uuid().as_bytes()[..NONCE_LENGTH]);
    let context = Context { purpose: Purpose::SigningSecret, tenant, row: key.as_uuid() };
    let sealed = keyring().seal(nonce, &context, &secret.to_stored());
    (sealed, secret.reveal().parse().expect("a secret that is shown can be read"))
}

fn id(kind: u64, number: u64) -> Uuid {
    Uuid::from_u64_pair(0x0190_0000_0000_7000 + kind, 0x8000_0000_0000_0000 + number)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
