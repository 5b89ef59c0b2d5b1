//! `postrider simulate`: the receivers alone.

use crate::{api::call, program::Program};

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
