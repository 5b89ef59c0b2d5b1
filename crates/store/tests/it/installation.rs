//! The first process decides on the pepper; whoever has another one is told.

use postrider_store::installation::{Error, Pepper, prove_pepper};
use postrider_testkit::postgres::Database;

#[tokio::test]
async fn later_processes_must_have_the_pepper_of_the_first() {
    let database = Database::fresh().await;
    let first = Pepper { generation: 2, fingerprint: *b"01234567" };
    let prove = |pepper| prove_pepper(database.pool(), pepper);
    let (one, other) = tokio::join!(prove(first), prove(first));
    assert!(one.is_ok() && other.is_ok());

    let wrong = prove(Pepper { fingerprint: *b"76543210", ..first }).await.unwrap_err();
    assert!(matches!(wrong, Error::OtherPepper), "{wrong}");
    let older = prove(Pepper { generation: 1, ..first }).await.unwrap_err();
    assert!(matches!(older, Error::OtherGeneration { stored: 2, given: 1 }), "{older}");
    assert!(prove(first).await.is_ok());
}
