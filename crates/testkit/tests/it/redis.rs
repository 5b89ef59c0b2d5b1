//! What tests rely on when they take a Redis.

use std::path::Path;
use std::time::Duration;

use postrider_testkit::{authority::Authority, redis::Redis};
use redis::{Client, ClientTlsConfig, TlsCertificates};

async fn count_keys(redis: &Redis) -> u64 {
    redis.ask(&redis::cmd("DBSIZE")).await
}

async fn set(redis: &Redis) {
    redis.ask::<()>(redis::cmd("SET").arg("key").arg("value")).await;
}

#[tokio::test]
async fn servers_share_nothing_and_want_a_password() {
    let (first, second) = (Redis::fresh().await, Redis::fresh().await);
    set(&first).await;
    assert_eq!((count_keys(&first).await, count_keys(&second).await), (1, 0));

    let url = first.url();
    let (_, place) = url.split_once('@').unwrap();
    let nameless = Client::open(format!("redis://{place}")).unwrap();
    let refused = match nameless.get_multiplexed_async_connection().await {
        Ok(mut connection) => redis::cmd("DBSIZE").query_async::<u64>(&mut connection).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(refused.to_string().contains("NOAUTH"), "{refused}");
}

#[tokio::test]
async fn a_server_that_comes_back_is_at_the_same_place_and_empty() {
    let mut redis = Redis::fresh().await;
    let url = redis.url();
    for end in ["stop", "kill", "flush"] {
        set(&redis).await;
        match end {
            "stop" => redis.stop().await,
            "kill" => redis.kill(),
            _ => redis.flush().await,
        }
        if redis.pid().is_none() {
            let client = Client::open(url.as_str()).unwrap();
            assert!(client.get_multiplexed_async_connection().await.is_err(), "after {end} it is away");
            redis.start().await;
        }
        assert_eq!(redis.url(), url);
        assert_eq!(count_keys(&redis).await, 0, "after {end}");
    }
}

#[tokio::test]
async fn a_frozen_server_answers_once_it_goes_on() {
    let redis = Redis::fresh().await;
    set(&redis).await;
    redis.freeze();
    let mut asking = std::pin::pin!(count_keys(&redis));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut asking).await.is_err(), "it hangs");
    redis.thaw();
    assert_eq!(asking.await, 1);
}

#[tokio::test]
async fn with_tls_its_certificate_is_the_authoritys() {
    let authority = Authority::default();
    let redis = Redis::with_tls(&authority).await;
    let connect = async |authority: &Authority| {
        let root_cert = Some(authority.certificate_pem().into_bytes());
        let certificates = TlsCertificates { client_tls: None::<ClientTlsConfig>, root_cert };
        let client = Client::build_with_tls(redis.tls_url(), certificates).unwrap();
        client.get_multiplexed_async_connection().await.map(|_| ())
    };
    connect(&authority).await.unwrap();
    assert!(connect(&Authority::default()).await.is_err(), "another authority did not sign it");
}

#[tokio::test]
async fn a_dropped_server_leaves_nothing() {
    let redis = Redis::fresh().await;
    let process = format!("/proc/{}", redis.pid().unwrap());
    let home = std::fs::read_link(format!("{process}/cwd")).unwrap();
    drop(redis);
    assert!(!Path::new(&process).exists());
    assert!(!home.exists(), "{}", home.display());
}
