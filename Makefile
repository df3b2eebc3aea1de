# Development targets. Plain `make` lists them.
GO      ?= go
WITHENV  = $(GO) run ./internal/cmd/withenv

GOLANGCI_VERSION = v2.15.0
GOLANGCI         = bin/golangci-lint-$(GOLANGCI_VERSION)

# Options a caller may add.
DEMO_FLAGS  ?=
TEST_FLAGS  ?=
BENCH       ?= .
BENCH_FLAGS ?=
DURATION    ?= 10m
SEED        ?=
CRASH_ROUNDS    ?= 200
TERM_ROUNDS     ?= 50
SENTINEL_ROUNDS ?= 20

# Kafka's part of the suite; the other packages never see a broker.
KAFKA_PACKAGES ?= ./cmd/... ./relay/... ./internal/realkafka ./internal/testenv

# Those with tests that need PgBouncer.
PGBOUNCER_PACKAGES ?= ./internal/pgbouncer ./relay

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "demo and build need Go alone; the tests need a C compiler too (for the race"
	@echo "detector); test-kafka, bench-kafka, bench-peers and soak need Java 17 and Maven,"
	@echo "test-pgbouncer needs PgBouncer, model needs spin and gcc. The tests and benchmarks"
	@echo "use the servers that DATABASE_URL and KAFKA_BROKERS name, if set; the demo takes"
	@echo "--database-url and --brokers."

.PHONY: demo
demo: ## show events flow from Postgres to Kafka; DEMO_FLAGS="--rate 500 --duration 1m"
	@$(GO) run ./cmd/relay demo $(DEMO_FLAGS)

.PHONY: test
test: c-compiler ## unit and integration tests, on an embedded Postgres and a Kafka in process
	$(WITHENV) -postgres -- $(GO) test -race -shuffle=on $(TEST_FLAGS) ./...

.PHONY: test-kafka
test-kafka: c-compiler ## the integration tests against a real Kafka, started for them
	$(WITHENV) -postgres -kafka -- $(GO) test -race -shuffle=on -tags realkafka $(TEST_FLAGS) $(KAFKA_PACKAGES)

.PHONY: test-pgbouncer
test-pgbouncer: c-compiler ## the relay through a real PgBouncer in transaction mode
	@command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || { \
		echo "PgBouncer is not installed (on Debian: apt-get install pgbouncer)." >&2; \
		exit 1; }
	$(WITHENV) -postgres -- $(GO) test -race -shuffle=on -tags pgbouncer -run 'PgBouncer' $(TEST_FLAGS) $(PGBOUNCER_PACKAGES)

.PHONY: test-crash
test-crash: c-compiler ## the binary killed 200 times, terminated 50 times, its sentinel lost in each way 20 times
	CRASH_ROUNDS=$(CRASH_ROUNDS) TERM_ROUNDS=$(TERM_ROUNDS) SENTINEL_ROUNDS=$(SENTINEL_ROUNDS) \
		$(WITHENV) -postgres -- $(GO) test -race -count=1 -timeout 60m -v $(TEST_FLAGS) ./cmd/relay

.PHONY: soak
soak: ## mixed load and random faults on a real Kafka; DURATION=10m, SEED=n repeats a run
	SOAK_DURATION=$(DURATION) SOAK_SEED=$(SEED) \
		$(GO) test -tags realkafka -run '^TestSoak$$' -count=1 -timeout 24h -v $(TEST_FLAGS) ./cmd/relay

.PHONY: bench
bench: ## benchmarks, on an embedded Postgres and a Kafka in process; BENCH=Latency
	$(GO) test -run '^$$' -bench '$(BENCH)' -timeout 60m $(BENCH_FLAGS) ./bench

.PHONY: bench-kafka
bench-kafka: ## the same against a real Kafka, started for them
	$(WITHENV) -kafka -- $(GO) test -run '^$$' -bench '$(BENCH)' -timeout 60m $(BENCH_FLAGS) ./bench

.PHONY: bench-peers
bench-peers: ## this relay beside Debezium and naive ones, into docs/bench; PEERS=relay,debezium-10
	$(GO) run ./bench/peers

.PHONY: model
model: ## the doorbell's protocol and its mutants, checked with spin
	@command -v spin >/dev/null || { \
		echo "spin is not installed (on Debian: apt-get install spin)." >&2; \
		exit 1; }
	sh notify/model.sh

.PHONY: lint
lint: $(GOLANGCI) ## static checks and formatting
	$(GO) vet -tags realkafka,pgbouncer ./...
	$(GOLANGCI) run

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in the dependencies; needs the network
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

.PHONY: build
build: ## the binary, as bin/relay
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/relay ./cmd/relay

# Named for its version, so that a new one is installed when the number changes.
$(GOLANGCI):
	GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv bin/golangci-lint $@

.PHONY: c-compiler
c-compiler:
	@test "$$($(GO) env CGO_ENABLED)" = 1 || { \
		echo "The race detector needs cgo and a C compiler: install gcc (on Debian: apt-get install gcc libc6-dev) and leave CGO_ENABLED unset." >&2; \
		exit 1; }
