//! Keys and users as the store keeps them: who may read a password's hash, what is forgotten of revoked keys, and that an
//! owner is left whichever way two changes meet.

use postrider_core::{
    email::Email,
    id::{ManagementKeyId, SessionId, UserId},
    name::Name,
    password::Hash,
    role::Role,
    session::Session,
    token::{Kind, Token},
};
use postrider_store::{
    audit::{Actor, By},
    edit::{self, Edit, Error},
    management_keys::{self, ManagementKey, NewManagementKey},
    owners::Logins,
    page::{Slice, begin_read},
    users::{self, Changes, NewUser, User},
};
use postrider_testkit::{
    postgres::Database,
    scenario::{self, Scenario},
};
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

const EVERYTHING: Slice = Slice { before: None, rows: 1_000 };

struct World {
    database: Database,
    tenant: scenario::Tenant,
}

impl World {
    async fn new() -> Self {
        let database = Database::fresh().await;
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        Self { database, tenant }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    async fn begin(&self) -> PgTransaction<'static> {
        edit::begin(self.pool()).await.expect("a transaction begins")
    }

    async fn issue(&self, name: &str, role: Role) -> Result<ManagementKey, Error> {
        let mut transaction = self.begin().await;
        let mut random = [0; 32];
        random[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        let token_hash = scenario::peppers().hashes(&Token::mint(Kind::Management, random));
        let name: Name = name.parse().expect("name");
        let key = NewManagementKey {
            id: ManagementKeyId::from_uuid(Uuid::now_v7()),
            name: &name,
            role,
            token_hash: &token_hash,
        };
        let issued = management_keys::issue(&mut transaction, self.tenant.id, key).await?;
        transaction.commit().await.expect("commit");
        Ok(issued)
    }

    async fn revoke(&self, id: ManagementKeyId, logins: Logins) -> Result<(), Error> {
        let mut transaction = self.begin().await;
        management_keys::revoke(&mut transaction, self.tenant.id, id, logins).await?;
        transaction.commit().await.expect("commit");
        Ok(())
    }

    async fn keys(&self) -> Vec<ManagementKey> {
        management_keys::list(self.pool(), self.tenant.id, EVERYTHING).await.expect("keys")
    }

    async fn create_user(&self, email: &str, role: Role) -> User {
        let mut transaction = self.begin().await;
        let email = address(email);
        let hash = Hash::of_nobody();
        let user = NewUser { id: Uuid::now_v7().into(), email: &email, role, password_hash: &hash };
        let user = users::create(&mut transaction, self.tenant.id, user).await.expect("a user");
        transaction.commit().await.expect("commit");
        user
    }

    async fn change(&self, id: UserId, changes: Changes<'_>) -> Result<User, Error> {
        let mut transaction = self.begin().await;
        let user = users::update(&mut transaction, self.tenant.id, id, changes, Logins::On).await?;
        transaction.commit().await.expect("commit");
        Ok(user)
    }

    async fn version(&self, email: &str) -> i64 {
        let account = users::account(self.pool(), &address(email)).await.expect("an answer");
        account.expect("an account").credential_version
    }
}

fn address(text: &str) -> Email {
    text.parse().expect("address")
}

#[tokio::test]
async fn a_tenants_request_reads_its_own_users_and_no_password_hash() {
    let world = World::new().await;
    let other = Scenario::new(world.pool().clone()).tenant("globex").await;
    let user = world.create_user("ada@example.com", Role::Owner).await;
    let mut reader = begin_read(world.pool(), world.tenant.id).await.expect("a transaction begins");
    let listed = users::list(&mut *reader, world.tenant.id, EVERYTHING).await.expect("users");
    assert_eq!(listed, std::slice::from_ref(&user));
    let refused = sqlx::query("SELECT password_hash FROM postrider.users").fetch_all(&mut *reader).await;
    let refused = refused.expect_err("the hash is out of reach");
    let code = refused.as_database_error().and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("42501"), "{refused}");

    let mut foreign = begin_read(world.pool(), other.id).await.expect("a transaction begins");
    assert_eq!(users::get(&mut *foreign, world.tenant.id, user.id).await.expect("an answer"), None);
    let by = By { actor: Actor::Process, address: None };
    let mut edit = Edit::of_tenant(world.pool(), other.id, by).await.expect("an edit begins");
    for statement in ["UPDATE postrider.users SET enabled = false", "DELETE FROM postrider.users"] {
        let done = sqlx::query(statement).execute(&mut **edit).await.expect("it is allowed");
        assert_eq!(done.rows_affected(), 0, "{statement}");
    }
    let taken = NewUser {
        id: Uuid::now_v7().into(),
        email: &user.email,
        role: Role::Viewer,
        password_hash: &Hash::of_nobody(),
    };
    let refused = users::create(&mut edit, other.id, taken).await.expect_err("the address is taken");
    assert!(matches!(refused, Error::EmailTaken), "{refused:?}");
}

#[tokio::test]
async fn sessions_end_with_the_credentials_they_were_begun_under() {
    let world = World::new().await;
    let user = world.create_user("ada@example.com", Role::Developer).await;
    let session = |credential_version| Session {
        id: SessionId::from_uuid(Uuid::new_v4()),
        user_id: user.id,
        credential_version,
    };
    let role = async |version| {
        let found = users::get_by_session(world.pool(), session(version)).await.expect("an answer");
        found.map(|credential| credential.role)
    };
    assert_eq!(role(1).await, Some(Role::Developer));
    assert_eq!(role(2).await, None, "not yet");
    let lowered = Changes { role: Some(Role::Viewer), ..Changes::default() };
    world.change(user.id, lowered).await.expect("changed");
    assert_eq!(role(1).await, Some(Role::Viewer));

    let hash = Hash::of_nobody();
    let replaced = Changes { password_hash: Some(&hash), ..Changes::default() };
    world.change(user.id, replaced).await.expect("changed");
    assert_eq!((role(1).await, role(2).await), (None, Some(Role::Viewer)));
    for (enabled, version, expected) in [(false, 3, None), (false, 3, None), (true, 3, Some(Role::Viewer))] {
        let change = Changes { enabled: Some(enabled), ..Changes::default() };
        world.change(user.id, change).await.expect("changed");
        assert_eq!(world.version("ada@example.com").await, version);
        assert_eq!((role(2).await, role(version).await), (None, expected));
    }
}

#[tokio::test]
async fn of_revoked_keys_the_newest_stay_listed() {
    let world = World::new().await;
    let most = usize::try_from(management_keys::MAX_REVOKED_PER_TENANT).expect("small");
    for number in 0..most + 2 {
        let key = world.issue(&format!("key{number}"), Role::Viewer).await.expect("issued");
        world.revoke(key.id, Logins::Off).await.expect("revoked");
    }
    assert_eq!(world.keys().await.len(), most + 2, "the owner's, and one that the next pushes out");
    world.issue("another", Role::Viewer).await.expect("issued");
    let keys = world.keys().await;
    let revoked: Vec<&str> =
        keys.iter().filter(|key| key.revoked_at.is_some()).map(|key| key.name.as_str()).collect();
    assert_eq!((revoked.len(), revoked[0], revoked[most - 1]), (most, "key101", "key2"));
    assert!(matches!(world.issue("key2", Role::Viewer).await, Err(Error::NameTaken)));
    world.issue("key0", Role::Viewer).await.expect("its name is free again");
}

#[tokio::test]
async fn an_owner_is_left_whoever_counts_as_one() {
    let world = World::new().await;
    let [owner] = world.keys().await.try_into().expect("one key");
    assert!(matches!(world.revoke(owner.id, Logins::On).await, Err(Error::LastOwner)));
    let user = world.create_user("ada@example.com", Role::Owner).await;
    assert!(matches!(world.revoke(owner.id, Logins::Off).await, Err(Error::LastOwner)));
    let disabled = || Changes { enabled: Some(false), ..Changes::default() };
    world.change(user.id, disabled()).await.expect("the key is left");
    assert!(matches!(world.revoke(owner.id, Logins::On).await, Err(Error::LastOwner)), "disabled");
    world.change(user.id, Changes { enabled: Some(true), ..Changes::default() }).await.expect("changed");
    world.revoke(owner.id, Logins::On).await.expect("the user is left");
    for changes in [disabled(), Changes { role: Some(Role::Viewer), ..Changes::default() }] {
        assert!(matches!(world.change(user.id, changes).await, Err(Error::LastOwner)));
    }
    let mut transaction = world.begin().await;
    let deleted = users::delete(&mut transaction, world.tenant.id, user.id, Logins::On).await;
    assert!(matches!(deleted, Err(Error::LastOwner)));
}

/// Each looks only once the other has ended, so they do not both count on each other.
#[tokio::test]
async fn a_key_and_a_user_that_are_the_last_owners_do_not_both_go_at_once() {
    let world = World::new().await;
    let [owner] = world.keys().await.try_into().expect("one key");
    let user = world.create_user("ada@example.com", Role::Owner).await;
    for _ in 0..10 {
        let disable = Changes { enabled: Some(false), ..Changes::default() };
        let (revoked, disabled) =
            tokio::join!(world.revoke(owner.id, Logins::On), world.change(user.id, disable));
        assert_ne!(revoked.is_ok(), disabled.is_ok(), "{revoked:?} {disabled:?}");
        let restore = "UPDATE postrider.management_keys SET revoked_at = NULL";
        sqlx::query(restore).execute(world.pool()).await.expect("restored");
        sqlx::query("UPDATE postrider.users SET enabled = true")
            .execute(world.pool())
            .await
            .expect("restored");
    }
}
