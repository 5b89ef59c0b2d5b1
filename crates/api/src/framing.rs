//! Whether it is beyond doubt where a request ends and whom it is for.
//!
//! Invariant: what two programs on the way could read differently is refused, and its connection with it: what follows
//! could be the rest of this request as well as the next one.

use http::{HeaderMap, Version, header};
use postrider_core::problem::Code;

use crate::problem::Problem;

/// # Errors
/// `400` for a transfer coding other than exactly `chunked` (RFC 9112, section 6.1), and where `Host` is missing or
/// repeated (section 3.2).
pub(crate) fn check(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {}
        (Some(_), _) => {
            return Err(Problem::new(
                Code::BadRequest,
                "The only transfer coding that is taken is `chunked`. Send `Transfer-Encoding: chunked`, once, or \
                 `Content-Length`.",
            ));
        }
    }
    let hosts = headers.get_all(header::HOST).iter().count();
    // HTTP/1.0 has requests without one.
    if hosts == 1 || (hosts == 0 && version < Version::HTTP_11) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, "Send exactly one `Host` header (RFC 9112, section 3.2)."))
}
