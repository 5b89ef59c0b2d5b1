//! Tokens of both generations open what they opened, and come under the new pepper when they are used.

use postrider_core::{
    id::{ApplicationId, ManagementKeyId},
    pepper::{Peppers, Refusal, Step},
    role::Role,
    token::{Kind, Pepper, Token},
};
use postrider_store::{
    applications::{self, NewApplication},
    edit,
    installation::prove_pepper,
    management_keys::{self, NewManagementKey},
    rotation::{
        pepper::{Error, Finish, Unused, advance, cancel, finish, standing},
        tokens::{self, Move, Remaining, store_management_token, store_used},
    },
    routing::Cache,
};
use postrider_testkit::{
    postgres::Database,
    scenario::{self, Application, PEPPER, Scenario, Tenant},
};
use sqlx::PgPool;
use uuid::Uuid;

use super::by;

/// Both peppers, of the first two generations.
fn during() -> Peppers {
    let (new, old) =
        (Pepper::new(&[2; 32]).expect("pepper"), Pepper::new(PEPPER.as_bytes()).expect("pepper"));
    Peppers::new(2, new, Some(old)).expect("peppers")
}

struct World {
    database: Database,
    acme: Tenant,
    orders: Application,
}

impl World {
    /// A tenant with a management key and an application, under the first pepper.
    async fn new() -> Self {
        let database = Database::fresh().await;
        prove_pepper(database.pool(), &scenario::peppers()).await.expect("the first start");
        let acme = Scenario::new(database.pool().clone()).tenant("acme").await;
        let orders = acme.application("orders").await;
        Self { database, acme, orders }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    async fn left(&self) -> Remaining {
        tokens::before(self.pool(), 2).await.expect("what is left")
    }

    /// The generation that a token is stored under.
    async fn generation(&self, table: &str, name: &str) -> i32 {
        let generation = format!("SELECT pepper_generation FROM postrider.{table} WHERE name = $1");
        let generation = sqlx::query_scalar(sqlx::AssertSqlSafe(generation)).bind(name);
        generation.fetch_one(self.pool()).await.expect("the token")
    }

    /// Makes an application by a process with these peppers.
    async fn mint(&self, name: &str, peppers: &Peppers) -> Result<Token, edit::Error> {
        let mut random = [0; 32];
        random[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        let token = Token::mint(Kind::Publish, random);
        let mut transaction = edit::begin(self.pool()).await?;
        let new = NewApplication {
            id: ApplicationId::from_uuid(Uuid::now_v7()),
            name: &name.parse().expect("a name"),
            token_hash: &peppers.hashes(&token),
        };
        applications::create(&mut transaction, self.acme.id, new).await?;
        transaction.commit().await?;
        Ok(token)
    }
}

async fn opens(cache: &Cache, peppers: &Peppers, token: &Token) -> bool {
    let found = cache.by_token(&peppers.hash(token), || peppers.previous_hash(token)).await;
    found.expect("the database answers").is_some()
}

#[tokio::test]
async fn new_tokens_are_stored_under_the_installations_pepper_whatever_else_a_process_holds() {
    let world = World::new().await;
    let (before, both) = (scenario::peppers(), during());
    let first = world.mint("first", &both).await.expect("minted");
    assert_eq!(world.generation("applications", "first").await, 1, "before the move");
    assert!(opens(&Cache::new(world.pool().clone()), &before, &first).await, "known to a process of before");

    assert_eq!(advance(world.pool(), &both, by()).await.unwrap(), Step::Move);
    assert_eq!(advance(world.pool(), &both, by()).await.unwrap(), Step::Moved);
    world.mint("second", &both).await.expect("minted");
    assert_eq!(world.generation("applications", "second").await, 2);
    // A process that was not started anew still makes tokens that the others know.
    let third = world.mint("third", &before).await.expect("minted");
    assert_eq!(world.generation("applications", "third").await, 1);
    assert!(opens(&Cache::new(world.pool().clone()), &both, &third).await);

    finish(world.pool(), &both, Unused::Revoke, by()).await.expect("the end");
    let refused = world.mint("fourth", &before).await.unwrap_err();
    let edit::Error::Database(refused) = refused else { panic!("{refused}") };
    assert!(refused.to_string().contains("start it with the pepper of generation 2"), "{refused}");
}

#[tokio::test]
async fn a_publish_token_comes_over_once_it_is_used_and_stays_the_same_to_cached_plans() {
    let world = World::new().await;
    let both = during();
    let (cache, other) = (Cache::new(world.pool().clone()), Cache::new(world.pool().clone()));
    let token = &world.orders.publish_token;
    assert!(opens(&cache, &both, token).await && opens(&other, &both, token).await);
    assert_eq!(store_used(&cache, both.current()).await.unwrap(), 0, "the installation has not moved");

    advance(world.pool(), &both, by()).await.expect("the move");
    let seen = other.by_token(&both.hash(token), || panic!("it is at hand")).await.unwrap().unwrap();
    assert_eq!(store_used(&cache, both.current()).await.unwrap(), 1);
    assert_eq!(world.generation("applications", "orders").await, 2);
    assert_eq!(store_used(&cache, both.current()).await.unwrap(), 0, "once");
    for cache in [&cache, &other] {
        let found = cache.by_token(&both.hash(token), || panic!("it is at hand")).await.unwrap();
        assert!(found.is_some());
    }
    // The other process reads its plan anew: the token that it let in is still the application's.
    let fresh = other.reload(world.orders.id).await.unwrap().unwrap();
    assert!(fresh.has_token_of(&seen) && fresh.token_hash != seen.token_hash);
    assert_eq!(fresh.version, seen.version, "nobody's plan is made stale");
    assert_eq!(store_used(&other, both.current()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_token_that_was_replaced_opens_nothing_by_any_of_its_hashes() {
    let world = World::new().await;
    let both = during();
    let cache = Cache::new(world.pool().clone());
    let token = &world.orders.publish_token;
    assert!(opens(&cache, &both, token).await);
    let seen = cache.by_token(&both.hash(token), || None).await.unwrap().unwrap();

    let mut transaction = edit::begin(world.pool()).await.unwrap();
    let new = both.hashes(&Token::mint(Kind::Publish, [5; 32]));
    applications::rotate_token(&mut transaction, world.acme.id, world.orders.id, &new).await.unwrap();
    transaction.commit().await.unwrap();
    let fresh = cache.reload(world.orders.id).await.unwrap().unwrap();
    assert!(!fresh.has_token_of(&seen));
    assert!(
        !opens(&cache, &both, token).await && !opens(&Cache::new(world.pool().clone()), &both, token).await
    );
    advance(world.pool(), &both, by()).await.expect("the move");
    assert_eq!(store_used(&cache, both.current()).await.unwrap(), 0, "there is nothing of it to store");
}

#[tokio::test]
async fn copies_of_tokens_that_somebody_replaced_do_not_stand_in_the_way_of_others() {
    let world = World::new().await;
    let both = during();
    let cache = Cache::new(world.pool().clone());
    assert!(opens(&cache, &both, &world.orders.publish_token).await);
    let mut transaction = edit::begin(world.pool()).await.unwrap();
    let new = both.hashes(&Token::mint(Kind::Publish, [5; 32]));
    applications::rotate_token(&mut transaction, world.acme.id, world.orders.id, &new).await.unwrap();
    transaction.commit().await.unwrap();
    let _ = advance(world.pool(), &both, by()).await.expect("the move");
    let copy = async || cache.by_token(&both.hash(&world.orders.publish_token), || None).await.unwrap();
    assert!(copy().await.is_some(), "ingest would notice, but nobody publishes");
    assert_eq!(store_used(&cache, both.current()).await.unwrap(), 0);
    assert!(copy().await.is_none(), "the copy was read anew");
}

#[tokio::test]
async fn a_management_token_is_found_by_either_hash_and_comes_over_once() {
    let world = World::new().await;
    let both = during();
    let (token, pool) = (&world.acme.owner_token, world.pool());
    let (after, before) = (both.hash(token), both.previous_hash(token).expect("two peppers"));
    let find = async || management_keys::get_by_token_hash(pool, &after, Some(&before)).await.unwrap();
    assert!(!find().await.expect("the key").is_outdated, "the installation has not moved");
    let step = Move { before, after };
    assert!(!store_management_token(pool, both.current(), step).await.unwrap());

    advance(pool, &both, by()).await.expect("the move");
    assert!(find().await.expect("the key").is_outdated);
    assert!(store_management_token(pool, both.current(), step).await.unwrap());
    assert!(!store_management_token(pool, both.current(), step).await.unwrap(), "it is there already");
    assert!(!find().await.expect("the key").is_outdated);
    let alone = management_keys::get_by_token_hash(pool, &after, None).await.unwrap();
    assert!(alone.is_some(), "the pepper before is not needed for it");
}

#[tokio::test]
async fn a_rotation_ends_when_no_usable_token_is_left_or_those_that_are_are_revoked() {
    let world = World::new().await;
    let (both, pool) = (during(), world.pool());
    let too_early = finish(pool, &both, Unused::Revoke, by()).await.unwrap_err();
    assert!(matches!(too_early, Error::Refused(Refusal::NotMoved { next: 2 })), "{too_early}");
    advance(pool, &both, by()).await.expect("the move");
    let left = ["application acme/orders", "management key acme/owner"].map(str::to_owned).to_vec();
    assert_eq!(world.left().await, Remaining { tokens: 2, names: left });

    let mut transaction = edit::begin(pool).await.unwrap();
    let spare = NewManagementKey {
        id: ManagementKeyId::from_uuid(Uuid::now_v7()),
        name: &"spare".parse().expect("a name"),
        role: Role::Owner,
        token_hash: &both.hashes(&Token::mint(Kind::Management, [6; 32])),
    };
    management_keys::create(&mut transaction, world.acme.id, spare).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.left().await.tokens, 2, "a new token is under the new pepper");

    let refused = finish(pool, &both, Unused::Keep, by()).await.unwrap_err();
    assert!(matches!(refused, Error::TokensLeft(Remaining { tokens: 2, .. })), "{refused}");
    assert!(refused.to_string().contains("application acme/orders, management key acme/owner"), "{refused}");
    assert!(standing(pool).await.unwrap().unwrap().previous_fingerprint.is_some());

    let version = world.orders.routing().await.version;
    let done = finish(pool, &both, Unused::Revoke, by()).await.expect("the end");
    assert_eq!(done, Finish::Finished { revoked: 2 });
    assert_eq!(finish(pool, &both, Unused::Revoke, by()).await.unwrap(), Finish::Over);
    let cache = Cache::new(pool.clone());
    assert!(!opens(&cache, &both, &world.orders.publish_token).await);
    let now = cache.reload(world.orders.id).await.unwrap().unwrap().version;
    assert!(now > version, "cached plans are stale, and with them the token");
    let actions: Vec<(String, String, bool)> = sqlx::query_as(
        "SELECT action, target_kind, tenant_id IS NOT NULL FROM postrider.audit_log ORDER BY audit_id",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    let expected = [
        ("pepper.rotated", "pepper_generation", false),
        ("key.revoked", "key", true),
        ("application.token_revoked", "application", true),
        ("pepper.rotation_finished", "pepper_generation", false),
    ];
    let expected =
        expected.map(|(action, kind, is_tenants)| (action.to_owned(), kind.to_owned(), is_tenants));
    assert_eq!(actions, expected);
}

#[tokio::test]
async fn a_pepper_to_come_can_be_taken_back_before_the_move() {
    let world = World::new().await;
    let (both, pool) = (during(), world.pool());
    prove_pepper(pool, &both).await.expect("a process of the next generation");
    assert!(cancel(pool, by()).await.unwrap());
    assert!(!cancel(pool, by()).await.unwrap(), "there is none any more");
    let old = Pepper::new(PEPPER.as_bytes()).expect("pepper");
    let other = Peppers::new(2, Pepper::new(&[3; 32]).expect("pepper"), Some(old)).expect("peppers");
    prove_pepper(pool, &other).await.expect("another one is chosen");
    let refused = advance(pool, &both, by()).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::OtherNext { generation: 2 })), "{refused}");
    assert_eq!(advance(pool, &other, by()).await.unwrap(), Step::Move);
}
