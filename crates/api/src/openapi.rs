//! The OpenAPI 3.1 document, generated from the operations' own annotations.
//!
//! What holds for every operation is added here by rule rather than repeated in each: path parameters, and the
//! problems that the guard, authentication and the body reader answer with. An operation documents its successes and
//! the problems it alone has.

use axum::{Router, routing::get};
use bytes::Bytes;
use http::header;
use postrider_core::problem::Code;
use utoipa::{
    PartialSchema as _, ToSchema as _,
    openapi::{
        Components, Content, Info, License, ObjectBuilder, OpenApi, Ref, RefOr, Required, Response,
        ResponseBuilder, Schema, Type,
        path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem},
        schema::SchemaType,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use crate::{
    problem::{Document, FieldError, MEDIA_TYPE},
    state::State,
};

const PROBLEM_SCHEMA: &str = "Problem";

/// The credentials, as operations name them under `security`.
const CREDENTIALS: &[(&str, &str)] = &[
    (
        "bootstrapToken",
        "Creates, shows and changes tenants, and issues a key for their owners. Set by the operator \
         (`POSTRIDER_BOOTSTRAP_TOKEN`).",
    ),
    (
        "managementToken",
        "Manages one tenant, with the role owner, developer or viewer; an operation names the least role it needs. \
         A management key's token, or the one of a session (`POST /api/auth/login`).",
    ),
    ("publishToken", "Publishes events of one application."),
    ("metricsToken", "Reads the metrics. Set by the operator (`POSTRIDER_METRICS_TOKEN`)."),
];

/// What each path parameter is.
const PARAMETERS: &[(&str, &str)] = &[
    ("tenant", "The tenant's name. It must be the credential's own."),
    ("application", "The application's name."),
    ("endpoint", "The endpoint's name."),
    ("subscription", "The subscription's name."),
    ("key", "The management key's name."),
    ("user", "The user's id, `usr_` and 32 hexadecimal digits."),
    ("type", "The event type, such as `order.created`."),
    ("event", "The event's id, `evt_` and 32 hexadecimal digits."),
    ("delivery", "The delivery's id, `dlv_` and 32 hexadecimal digits."),
    ("replay", "The replay's id, `rpl_` and 32 hexadecimal digits."),
];

/// The document before any operation is added.
pub(crate) fn blank() -> OpenApi {
    let mut info = Info::new("Postrider", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Accepts events over HTTP, stores them durably and delivers them at least once to registered HTTP \
         endpoints. Errors are problem details (RFC 9457) with a stable `code`. Lists are paged with `limit` and \
         `cursor`, newest first. Times are RFC 3339 in UTC."
            .to_owned(),
    );
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    info.license = Some(license);

    let mut components = Components::new();
    for (name, description) in CREDENTIALS {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some((*description).to_owned());
        components.add_security_scheme(*name, SecurityScheme::Http(scheme));
    }
    components.schemas.insert(PROBLEM_SCHEMA.to_owned(), Document::schema());
    components.schemas.insert(FieldError::name().into_owned(), FieldError::schema());

    let mut document = OpenApi::new(info, utoipa::openapi::Paths::new());
    document.components = Some(components);
    document
}

/// Adds to every operation what holds for all of its kind.
pub(crate) fn complete(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            add_path_parameters(path, operation);
            forbid_null_parameters(operation);
            add_problems(path, operation);
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

fn add_path_parameters(path: &str, operation: &mut Operation) {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<RefOr<Parameter>> = names
        .map(|name| {
            let description = PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(description)
                .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
                .build()
                .into()
        })
        .collect();
    parameters.append(operation.parameters.get_or_insert_default());
    operation.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
}

/// What may be left out of a query or header is still never null.
fn forbid_null_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(Parameter { schema: Some(RefOr::T(Schema::Object(schema))), .. }) = parameter
            && let SchemaType::Array(types) = &mut schema.schema_type
        {
            types.retain(|known| *known != Type::Null);
            if let [only] = types.as_slice() {
                schema.schema_type = SchemaType::Type(only.clone());
            }
        }
    }
}

fn add_problems(path: &str, operation: &mut Operation) {
    let has_query = operation.parameters.iter().flatten().any(
        |parameter| matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query),
    );
    let is_secured = operation.security.as_ref().is_some_and(|security| !security.is_empty());
    let has_body = operation.request_body.is_some();

    let mut codes = vec![Code::Internal];
    if is_secured {
        codes.extend([Code::Unauthorized, Code::Forbidden, Code::Unavailable]);
    }
    if path.contains('{') {
        codes.push(Code::NotFound);
    }
    if has_query || has_body {
        codes.push(Code::BadRequest);
    }
    if has_body {
        codes.extend([
            Code::RequestTimeout,
            Code::BodyTooLarge,
            Code::UnsupportedMediaType,
            Code::InvalidJson,
            Code::InvalidField,
        ]);
    }
    let responses = &mut operation.responses.responses;
    for code in codes {
        responses.entry(code.status().to_string()).or_insert_with(|| problem(describe(code.status())).into());
    }
    // What an operation documents of its own has a description; its shape is always the same.
    for (status, response) in responses {
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
            && response.content.is_empty()
        {
            *response = problem(std::mem::take(&mut response.description));
        }
    }
}

fn problem(description: String) -> Response {
    let content = Content::new(Some(Ref::from_schema_name(PROBLEM_SCHEMA)));
    ResponseBuilder::new().description(description).content(MEDIA_TYPE, content).build()
}

/// All codes that come with this status, each with what it means.
fn describe(status: u16) -> String {
    let codes: Vec<String> = Code::ALL
        .iter()
        .filter(|code| code.status() == status)
        .map(|code| format!("`{}`: {}", code.as_str(), code.title()))
        .collect();
    codes.join(". ")
}

/// Adds the operation that serves the document itself.
pub(crate) fn serve(router: Router<State>, document: &OpenApi) -> Router<State> {
    let text = Bytes::from(print(document));
    router.route(
        "/openapi.json",
        get(async move || {
            ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")], text)
        }),
    )
}

/// Pretty JSON with a newline at its end.
pub(crate) fn print(document: &OpenApi) -> String {
    // A document made of strings and numbers always serialises.
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}
