use super::*;

/// What comes out, however it is cut on the way.
#[track_caller]
fn passed(text: &str) -> String {
    let mut whole = text.as_bytes().to_vec();
    Reader::default().pass(&mut whole);
    for size in 1..=text.len() {
        let mut cut = text.as_bytes().to_vec();
        let mut reader = Reader::default();
        for part in cut.chunks_mut(size) {
            reader.pass(part);
        }
        assert_eq!(cut, whole, "{text:?} in parts of {size}");
    }
    String::from_utf8(whole).unwrap()
}

/// Requests that are in order, with line feeds wherever they may stand.
const IN_ORDER: [&str; 9] = [
    "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n1\n2\n",
    "POST / HTTP/1.1\r\nHost: x\r\nCONTENT-LENGTH:\t 4 \t\r\n\r\n\n\n\n\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\n1\n2\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding:chunked\r\n\r\n00A;x=\"1\"\r\n\n\n\n\n\n\n\n\n\n\n\r\n0;y\r\nz: 1\r\n\r\n",
    "\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nx-content-length: a\r\ncontent-lengthy: b\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nx: transfer-encoding: chunked, content-length: 7 and so on until the line is long\r\n\r\n",
    "POST / HTTP/1.1\r\ncontent-length: 36\r\nhost: x\r\n\r\nPOST / HTTP/1.1\ncontent-length: a\n\n\n",
];

#[test]
fn what_is_in_order_passes_as_it_came() {
    for one in IN_ORDER {
        assert_eq!(passed(one), one);
        for next in IN_ORDER {
            let both = format!("{one}{next}");
            assert_eq!(passed(&both), both);
        }
    }
}

#[test]
fn of_what_is_not_the_end_of_its_line_becomes_unreadable() {
    let head = "POST / HTTP/1.1\r\nhost: x\r\n";
    for (refused, line) in [
        ("GET / HTTP/1.1\nhost: x\r\n\r\n", "GET / HTTP/1.1"),
        ("\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", ""),
        (&format!("{head}x: 1\ny: 2\r\n\r\n"), "x: 1"),
        (&format!("{head}x: 1\ntransfer-encoding: chunked\r\n\r\n"), "x: 1"),
        (&format!("{head}\n"), ""),
        (&format!("{head}x: 1\r\n\n"), ""),
        (
            &format!("{head}content-length: 1\r\ncontent-length: 1\r\n\r\na"),
            "\ncontent-length: 1\r\ncontent-length: 1\r",
        ),
        (&format!("{head}content-length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "chunked\r"),
        (&format!("{head}transfer-encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), "Length: 5\r"),
        (&format!("{head}transfer-encoding:{}chunked\r\n\r\n0\r\n\r\n", " ".repeat(50)), "chunked\r"),
        (&format!("{head}transfer-encoding: chunked{}\r\n\r\n0\r\n\r\n", " ".repeat(50)), "  \r"),
        (&format!("{head}transfer-encoding: x\r\ncontent-length: 5\r\n\r\n"), "length: 5\r"),
        (&format!("{head}content-length: +1\r\n\r\na"), "+1\r"),
        (&format!("{head}content-length: 0x1\r\n\r\na"), "0x1\r"),
        (&format!("{head}content-length: 1 1\r\n\r\na"), "1 1\r"),
        (&format!("{head}content-length: 1, 1\r\n\r\na"), "1, 1\r"),
        (&format!("{head}content-length:\r\n\r\na"), "length:\r"),
        (&format!("{head}content-length: 18446744073709551616\r\n\r\na"), "51616\r"),
        (&format!("{head}content-length: {}1\r\n\r\na", "0".repeat(64)), "01\r"),
        (&format!("{head}transfer-encoding: chunked\r\n\r\n{}\r\na\r\n", "0".repeat(99)), "0\r"),
        (&format!("{head}transfer-encoding: chunked\r\n\r\n-1\r\na\r\n"), "-1\r"),
        (&format!("{head}transfer-encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n"), "\na"),
        (&format!("{head}transfer-encoding: chunked\r\n\r\n0\r\nx: 1\n\r\n"), "x: 1"),
        (&format!("{head}transfer-encoding: chunked\r\n\r\n0\r\n\n"), "\n0\r\n"),
    ] {
        // Also behind a request that is in order.
        for before in ["", IN_ORDER[1], IN_ORDER[4]] {
            let text = format!("{before}{refused}");
            let seen = passed(&text);
            let end = seen.find('\0').unwrap_or_else(|| panic!("it passes: {text:?}"));
            assert!(seen[..end].ends_with(line), "{seen:?}");
            assert_eq!(seen.replacen('\0', "\n", 1), text, "nothing else is changed");
        }
    }
}

/// Read as chunks, or as another head, the line feeds would be refused.
#[test]
fn nothing_is_read_behind_a_coding_that_the_surface_refuses() {
    for coding in ["gzip", "gzip, chunked", "chunked\r\ntransfer-encoding: chunked", "xchunked"] {
        let text = format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: {coding}\r\n\r\n1\r\na\n\n");
        assert_eq!(passed(&text), text);
    }
}

/// The parser refuses it there by itself, and would take NUL.
#[test]
fn a_bare_line_feed_in_a_chunks_line_stays_and_nothing_is_read_behind_it() {
    for line in ["1", "1;x", "0;", ""] {
        let text =
            format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{line}\nx\r\n\n\n");
        assert_eq!(passed(&text), text);
    }
}
