package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Runtime starts sandboxes of one or more tiers. It is safe for concurrent
// use.
type Runtime interface {
	// Start returns a running sandbox or an error and nothing left behind.
	// ctx bounds the start, not the sandbox's life. The runtime owns egress
	// from here on, whatever it returns, and closes it with the sandbox. A nil
	// egress means no network at all.
	Start(ctx context.Context, spec Spec, egress Egress) (Sandbox, error)
	// Close ends every sandbox that the runtime started and waits for them.
	Close(ctx context.Context) error
}

// Sandbox is one running guest. It is safe for concurrent use.
type Sandbox interface {
	// ID is unique on the host and fit for logs.
	ID() string
	// Stdio returns the guest's three streams, the same for every call.
	Stdio() Stdio
	// Wait blocks until the guest and everything it started are gone, and
	// gives every caller the same Exit. Its error is ctx's; an Exit that is
	// known is given even where ctx has ended.
	Wait(ctx context.Context) (Exit, error)
	// Close stops the guest by the ladder: stdin closed, TERM, then KILL for
	// the whole sandbox, waiting Limits.StopGrace between rungs. When ctx ends
	// it goes straight to KILL. It is idempotent, unblocks reads and writes of
	// Stdio, and returns once nothing of the sandbox is left, or an error that
	// says what is.
	Close(ctx context.Context) error
}

// Stdio is a guest's three streams. Closing In is the polite way to ask a
// stdio server to end. Out and Err end with io.EOF when the guest is gone.
type Stdio struct {
	In       io.WriteCloser
	Out, Err io.ReadCloser
}

// Cause says why a sandbox ended.
type Cause int

// The causes. The zero value is none of them.
const (
	// Exited: the guest ended by itself; Exit.Code is its status.
	Exited Cause = iota + 1
	// Killed: a signal ended it, Close's among them; see Exit.Signal.
	Killed
	// OOM: it met Limits.MemoryBytes.
	OOM
	// Deadline: it met Limits.Wall.
	Deadline
	// HostFault: the runtime failed, not the guest; see Exit.Detail.
	HostFault
)

// String returns the cause as records spell it.
func (c Cause) String() string {
	switch c {
	case Exited:
		return "exited"
	case Killed:
		return "killed"
	case OOM:
		return "oom"
	case Deadline:
		return "deadline"
	case HostFault:
		return "host-fault"
	}
	return "unknown"
}

// Exit says how a sandbox ended.
type Exit struct {
	Cause  Cause
	Code   int    // the guest's exit status; 128+Signal where a signal ended it
	Signal int    // the signal's number, or 0
	Detail string // one plain sentence for a person, or empty
	// PeakMemoryBytes and PeakPIDs are what the sandbox used at most; 0 where
	// the tier cannot tell. PeakTmpBytes is what lay in its private tmpfs
	// together, looked at every second and at the end.
	PeakMemoryBytes, PeakPIDs, PeakTmpBytes int64
}

// Use says in words what the sandbox used at most, or nothing where the tier
// cannot tell.
func (e Exit) Use() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		text string
	}{
		{e.PeakMemoryBytes, size(e.PeakMemoryBytes) + " of memory"},
		{e.PeakPIDs, fmt.Sprintf("%d processes and threads", e.PeakPIDs)},
		{e.PeakTmpBytes, size(e.PeakTmpBytes) + " of temporary files"},
	} {
		if p.n > 0 {
			parts = append(parts, p.text)
		}
	}
	return strings.Join(parts, ", ")
}

func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1<<10-1)>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
