# Each target works from a fresh clone, as root or not, and again a second time.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Queries are checked against the committed descriptions in .sqlx, never against whatever DATABASE_URL names.
export SQLX_OFFLINE ?= true
# Last on the path: where scripts/setup puts PostgreSQL's programs when it can install no package.
export PATH := $(PATH):$(CURDIR)/.tools/postgresql-17/bin

# A release says at /health/version which commit it is of. All targets must build it in the same way, or each would
# build it anew after the other; what tests build names none, or each commit would build that anew.
build_release = POSTRIDER_COMMIT=$(or $(POSTRIDER_COMMIT),$(shell git rev-parse --short=12 HEAD 2>/dev/null),unknown) \
  cargo build --release --locked

.PHONY: help setup run test test-pooled test-brokered simulate placement soak soak-fleet bench check generate

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing to run and test (C compiler, PostgreSQL, test tools)
	@scripts/setup run
	@scripts/setup test

run: ## Start Postrider on a PostgreSQL of its own; ARGS="..." is passed on
	@scripts/setup run
	@echo "Building Postrider. The first time takes several minutes."
	@$(build_release) --bin postrider
	@exec $(or $(CARGO_TARGET_DIR),target)/release/postrider dev $(ARGS)

test: ## Run every test
	@scripts/setup test
	@cargo test --workspace --locked --quiet --doc
	@cargo nextest run --workspace --locked

test-pooled: ## Run the tests in which processes, the API and the engine work with PgBouncer before their database
	@scripts/setup test
	@TEST_THROUGH_PGBOUNCER=1 cargo nextest run --locked --package postrider-api --package postrider-engine \
	  --package postrider-server --package postrider-broker

test-brokered: ## Run the tests of engine and processes with RabbitMQ beside the table
	@scripts/setup test
	@TEST_THROUGH_RABBITMQ=1 cargo nextest run --locked --package postrider-engine --package postrider-server

bench: ## Measure against what the machine could do; ARGS="burst --runs 1" for one row
	@scripts/setup run
	@echo "Building Postrider and its benchmark. The first time takes several minutes."
	@$(build_release) --quiet --bin postrider --bin bench
	@exec $(or $(CARGO_TARGET_DIR),target)/release/bench $(ARGS)

simulate: ## Run the engine's simulation with injected faults; SEEDS=10000 FROM=0, or ARGS="--seed 7 --trace" for one
	@scripts/setup test
	@cargo build --locked --quiet --bin simulation
	@exec $(or $(CARGO_TARGET_DIR),target)/debug/simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0) $(ARGS)

placement: ## Simulate how tenants are placed in cells and moved between them; ARGS="--tenants 10000 --cells 8 --seed 1"
	@scripts/setup run
	@echo "Building the simulation. The first time takes several minutes."
	@cargo run --locked --quiet --package postrider-simulation --bin placement -- $(ARGS)

soak: ## Kill and freeze processes and restart their database under load, then check; EVENTS=50000 KILLS=200 SEED=1
	@scripts/setup run
	@echo "Building Postrider and the soak. The first time takes several minutes."
	@$(build_release) --quiet --bin postrider
	@cargo build --locked --quiet --bin soak
	@exec $(or $(CARGO_TARGET_DIR),target)/debug/soak --postrider $(or $(CARGO_TARGET_DIR),target)/release/postrider \
	  --events $(or $(EVENTS),50000) --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak-fleet: ## The same for two processes that accept and two that deliver, with RabbitMQ and Redis; EVENTS=20000 KILLS=100 SEED=1
	@scripts/setup test
	@echo "Building Postrider and the soak. The first time takes several minutes."
	@$(build_release) --quiet --bin postrider
	@cargo build --locked --quiet --bin soak
	@exec $(or $(CARGO_TARGET_DIR),target)/debug/soak --fleet --postrider $(or $(CARGO_TARGET_DIR),target)/release/postrider \
	  --events $(or $(EVENTS),20000) --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED)) $(ARGS)

check: ## Check format, lints, documentation, spelling and generated files
	@scripts/setup test
	cargo fmt --all --check
	.tools/venv/bin/typos
	scripts/sqlx-prepare --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	scripts/openapi --check

generate: ## Write the generated files anew: .sqlx and openapi.json
	scripts/sqlx-prepare
	scripts/openapi
