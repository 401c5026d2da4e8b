#!/usr/bin/env bash
# Runs the official conformance suite, bare and through the bridge, and prints
# its table. The last line is `N passed, N failed`: the required scenarios of
# the three revisions through the bridge. As root: the server runs in a sandbox.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
  echo "containers need root: sudo make conformance" >&2
  exit 1
fi
table=$(mktemp)
trap 'rm -f "$table"' EXIT
echo "running the official suite; this takes some minutes" >&2
log=$(SANDBOXD_CONFORMANCE=$table CI=1 "${GO:-go}" test -run '^TestConformance$' -v -count 1 -timeout 40m ./test/integration/ 2>&1)
status=$?
if [ ! -s "$table" ]; then
  printf '%s\n' "$log" >&2
  exit 1
fi
if [ $status != 0 ]; then
  printf '%s\n' "$log" | grep -E '^ *(conformance|main)_test.go' >&2
fi
cat "$table"
exit $status
