//! The guide says of every problem what to do about it.

use postrider_core::problem::Code;

#[test]
fn the_guide_lists_every_problem_with_its_status() {
    let guide = include_str!("../../../../docs/api.md");
    let rows: Vec<(&str, &str)> = guide
        .lines()
        .skip_while(|line| *line != "## Problems")
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.trim_end_matches('`'), cells.next()?))
        })
        .take_while(|(code, _)| !code.starts_with('/'))
        .collect();
    for code in Code::ALL {
        let status = code.status().to_string();
        assert!(
            rows.contains(&(code.as_str(), &status)),
            "docs/api.md lacks `{}` with {status}",
            code.as_str()
        );
    }
    assert_eq!(rows.len(), Code::ALL.len(), "docs/api.md lists a problem that does not exist");
}
