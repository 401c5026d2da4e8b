# Everything a person or CI does here. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w -X main.version=$(VERSION)
GOLANGCI := v2.15.0
FUZZTIME ?= 10s
LISTEN   ?= 127.0.0.1:8787
# sudo's PATH does not hold the place where Go's own installer puts it.
export PATH := $(PATH):/usr/local/go/bin

.PHONY: help build example run test unit integration conformance lint bench fuzz soak wasi-suite tables engine deps clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

build: ## bin/sandboxd
	@[[ -x $(BIN)/sandboxd ]] || echo 'the first build compiles every dependency, for a minute or two'
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/sandboxd ./cmd/sandboxd

example: build ## bin/fetch.wasm, the shipped example server
	PATH="$$($(GO) env GOROOT)/bin:$$PATH" $(BIN)/sandboxd build -o $(BIN)/fetch.wasm ./images/wasm/fetch

run: build example ## serve the shipped example: no root, no engine
	$(BIN)/sandboxd serve --config images/wasm/example.yaml --listen $(LISTEN)

deps: ## what the tests need from the system (as root: installs it)
	test/deps.sh

test: deps engine build example ## everything, integration included (containers need root)
	$(GO) vet ./...
	$(GO) test -race -timeout 20m ./...

unit: ## the tests that need neither root nor the engine's parts
	$(GO) test -race -short ./...

integration: deps engine build example ## real runtimes, real servers, hostile servers
	$(GO) test -race -timeout 20m -v ./test/integration/...

conformance: deps engine ## the official MCP suite, bare and through the bridge
	@GO='$(GO)' test/conformance.sh

lint: ## golangci-lint with the rules of the house, and a build for a host without engine
	GOOS=darwin $(GO) build -o /dev/null ./cmd/sandboxd
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI) run ./...

bench: build example engine ## benchmarks, as ratios in one run
	$(GO) test -run '^$$' -bench . -benchmem ./netguard/... ./mcpbridge/... ./sandbox/...
	$(GO) test -run '^$$' -bench . -benchtime 1x ./test/integration/...

fuzz: ## every fuzz target for FUZZTIME each
	@for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p; \
	  done; done

soak: deps engine build example ## long runs: kills at random, starts and stops
	SANDBOXD_SOAK=1 $(GO) test -timeout 120m -v -run 'Soak|Kill|Neighbour' ./sandbox/container/ ./test/integration/...

wasi-suite: ## the public WASI suite's preview 1 modules in FROM=FOLDER, beside wazero's own module
	@[ -n "$(FROM)" ] || { echo "say where the suite's .wasm and .json files are: make wasi-suite FROM=FOLDER" >&2; exit 2; }
	SANDBOXD_WASI_SUITE=$(abspath $(FROM)) $(GO) test -run TestWASISuite -v ./sandbox/wasm

tables: ## refresh the address tables from the registries' CSV files in FROM=FOLDER
	@[ -n "$(FROM)" ] || { echo "say where IANA's CSV files are: make tables FROM=FOLDER" >&2; exit 2; }
	cp -- $(FROM)/iana-ipv4-special-registry-1.csv $(FROM)/iana-ipv6-special-registry-1.csv $(FROM)/ipv6-address-space-1.csv netguard/iana/
	$(GO) generate ./netguard/iana
	$(GO) test ./netguard/iana

coverage-servers: deps engine ## a corpus of servers in both container tiers: CORPUS=FILE, REPORT=FILE for the catalogue (gigabytes)
	@[ -n "$(CORPUS)" ] || { echo "say which corpus: make coverage-servers CORPUS=FILE" >&2; exit 2; }
	SANDBOXD_CORPUS=$(abspath $(CORPUS)) SANDBOXD_COVERAGE_OUT=$(if $(REPORT),$(abspath $(REPORT))) $(GO) test -timeout 10h -v -run '^TestCoverage$$' ./test/integration/

engine: ## pinned containerd, shim, runc and runsc, cached outside the repository
	images/engine/build.sh

clean: ## remove what make built here (the engine's cache stays)
	rm -rf $(BIN)
