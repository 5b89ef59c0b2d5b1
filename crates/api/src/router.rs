//! All operations in one router, and the document that describes them.

use std::{panic, thread};

use axum::{Router, middleware};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::{
    applications, audit, credentials, deliveries, endpoints, events, guard, health, keys, login, metrics,
    openapi, problem::Problem, publish, replays, state::State, subscriptions, tenants, test_event, users,
};

/// The whole HTTP surface.
pub fn router(state: State) -> Router {
    // Making the document takes a dozen MiB for a moment. A thread that ends gives its memory back; others would keep it.
    let made = thread::scope(|scope| {
        scope
            .spawn(|| {
                let (router, document) = operations();
                openapi::serve(router, &document)
            })
            .join()
    });
    let router = made.unwrap_or_else(|payload| panic::resume_unwind(payload));
    surround(router.fallback(guard::unknown_path), state)
}

/// Health and metrics alone, for a process that accepts no events.
pub fn health_router(state: State) -> Router {
    let (router, _) = OpenApiRouter::new().merge(health::routes()).merge(metrics::routes()).split_for_parts();
    // Here is no document to point to.
    surround(router.fallback(async || Problem::not_found()), state)
}

/// The OpenAPI document as it is committed and served: pretty JSON with a newline at its end.
pub fn document() -> String {
    openapi::print(&operations().1)
}

fn surround(router: Router<State>, state: State) -> Router {
    router
        .method_not_allowed_fallback(guard::unknown_method)
        .layer(middleware::from_fn_with_state(state.clone(), guard::around))
        .with_state(state)
}

fn operations() -> (Router<State>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(openapi::blank())
        .merge(tenants::routes())
        .merge(login::routes())
        .merge(keys::routes())
        .merge(users::routes())
        .merge(applications::routes())
        .merge(endpoints::routes())
        .merge(credentials::routes())
        .merge(subscriptions::routes())
        .merge(publish::routes())
        .merge(events::routes())
        .merge(deliveries::routes())
        .merge(replays::routes())
        .merge(test_event::routes())
        .merge(audit::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .split_for_parts();
    openapi::complete(&mut document);
    (router, document)
}
