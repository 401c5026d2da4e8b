package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/sandboxd/sandboxd/netguard"
)

// records is where the guard's audit lines go: a file of JSON lines, and one
// plain line on stderr for each refusal, so that a denial never looks like a
// network fault. It never blocks the guard on a reader: both are files.
type records struct {
	mu     sync.Mutex
	file   io.WriteCloser // nil without --records
	log    *slog.Logger
	failed bool
}

// openRecords opens path for appending; "-" is stderr, "" none.
func openRecords(path string, log *slog.Logger) (*records, error) {
	r := &records{log: log}
	switch path {
	case "":
	case "-":
		r.file = nopCloser{os.Stderr}
	default:
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, usageError{fmt.Errorf("--records: %w", err)}
		}
		r.file = f
	}
	return r, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// add takes one line of the guard's.
func (r *records) add(rec netguard.Record) {
	if rec.Event == netguard.EventDecision && !rec.Allow {
		r.log.Warn("egress refused", "sandbox", rec.Sandbox, "via", string(rec.Via), "network", rec.Network,
			"host", rec.Host, "port", rec.Port, "reason", string(rec.Reason), "rule", rec.Rule)
	}
	if r.file == nil {
		return
	}
	line, err := json.Marshal(rec)
	if err != nil {
		r.log.Error("a record could not be encoded", "error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(line, '\n')); err != nil && !r.failed {
		r.failed = true
		r.log.Error("records can no longer be written", "error", err)
	}
}

func (r *records) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
