//go:build linux

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Bounds of what a supervised containerd can make us keep and log.
const (
	maxLine      = 2 << 10
	keptLines    = 12
	linesPerTick = 200
	tick         = 10 * time.Second
)

// logs takes containerd's output: each line goes to the logger, the last ones
// are kept for the message about a failed start or a crash.
type logs struct {
	log *slog.Logger

	mu      sync.Mutex
	partial []byte
	last    []string
	since   time.Time
	count   int
}

// Write never fails and never blocks on more than the logger.
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if room := maxLine - len(l.partial); room > 0 {
			l.partial = append(l.partial, line[:min(room, len(line))]...)
		}
		if whole {
			l.line(strings.TrimSpace(string(l.partial)))
			l.partial = l.partial[:0]
		}
		rest = after
	}
	return len(p), nil
}

func (l *logs) line(s string) {
	if s == "" {
		return
	}
	l.last = append(l.last, s)
	if len(l.last) > keptLines {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	if now := time.Now(); now.Sub(l.since) > tick {
		l.since, l.count = now, 0
	}
	if l.count++; l.count < linesPerTick {
		l.log.Debug("containerd says", slog.String("line", s))
	} else if l.count == linesPerTick {
		l.log.Warn("containerd says too much, the next lines are dropped", slog.Duration("within", tick))
	}
}

// tail returns the kept lines.
func (l *logs) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 0 {
		return "it said nothing"
	}
	return "it said last: " + strings.Join(l.last, " | ")
}
