//! `postrider simulate`: the receivers alone.

use crate::{
    api::call,
    program::{Program, run},
};

#[tokio::test]
async fn receivers_answer_until_they_are_stopped() {
    let mut program = Program::start(&["simulate", "--listen", "127.0.0.1:0"], &[]);
    let line = program.line(|line| line.contains("listens on")).await;
    let address = line.rsplit("http://").next().unwrap().trim_end_matches('/').parse().unwrap();
    assert_eq!(call(address, "POST", "/status/410", "", "{}").await.status, 410);
    let shown = call(address, "GET", "/_/requests", "", "").await;
    assert_eq!(shown.body["requests"][0]["answer"], "410");
    program.terminate();
    assert_eq!(program.ended().await.code, Some(0));
}

#[tokio::test]
async fn a_taken_port_is_said_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = run(&["simulate", "--listen", &address], &[]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&address), "{ended:?}");
    assert_eq!(ended.stderr.matches("in use").count(), 1, "{ended:?}");
}
