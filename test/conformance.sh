#!/usr/bin/env bash
# Runs the official conformance suite, bare, as a WASM module and through the
# bridge, and prints its tables. The last line is `N passed, N failed`: the required scenarios of
# the three revisions through the bridge. As root: the server runs in a sandbox.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
  echo "containers need root: sudo make conformance" >&2
  exit 1
fi
table=$(mktemp)
trap 'rm -f "$table" "$table.wasm"' EXIT
echo "running the official suite; this takes some minutes" >&2
log=$(SANDBOXD_CONFORMANCE=$table CI=1 "${GO:-go}" test -run '^TestConformance(WASM)?$' -v -count 1 -timeout 60m ./test/integration/ 2>&1)
status=$?
if [ ! -s "$table" ]; then
  printf '%s\n' "$log" >&2
  exit 1
fi
if [ $status != 0 ]; then
  printf '%s\n' "$log" | grep -E '^ *(conformance|conformance_module|main)_test.go' >&2
fi
[ ! -s "$table.wasm" ] || cat "$table.wasm"
cat "$table"
exit $status
