package mcpbridge

import (
	"bytes"
	"strconv"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// lastLines and lastBytes bound what is kept of a server's stderr for the
// moment at which it ends: lines, and bytes of each.
const lastLines, lastBytes = 5, 240

// lastWords keeps the last lines that a server wrote to stderr, without the
// values that it was given. Safe for concurrent use.
type lastWords struct {
	mu    sync.Mutex
	lines []string
}

func (w *lastWords) add(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == lastLines {
		w.lines = append(w.lines[:0], w.lines[1:]...)
	}
	w.lines = append(w.lines, strconv.Quote(relay.Cut(line, lastBytes)))
}

// String gives the lines, each quoted, the last one last.
func (w *lastWords) String() string {
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.lines, " ")
}
