package sandbox

import (
	"fmt"
	"time"
)

// Limits bounds one sandbox. A zero field means its default, never "no
// limit"; only Wall's default is unlimited, since servers are long-lived.
type Limits struct {
	// MemoryBytes bounds memory, swap included; default 1 GiB. There is never
	// an address-space limit: Node alone maps over 10 GB.
	MemoryBytes int64
	// CPUs bounds processor time, in cores; default 1. It holds on average: the
	// container tier may use in a tenth of a second what it left of earlier ones,
	// one such slice at most.
	CPUs float64
	// PIDs bounds processes and threads together; default 256.
	PIDs int64
	// Files bounds open descriptors of one process; default 4096.
	Files uint64
	// TmpBytes bounds each private tmpfs (HOME and /tmp); default 256 MiB.
	TmpBytes int64
	// FileBytes bounds each file that a container writes, in a mounted folder
	// too; default 1 GiB. What a guest writes there in all, only the folder's
	// own file system can bound.
	FileBytes int64
	// Wall bounds the sandbox's whole life; 0 leaves it unbounded. A sandbox
	// that meets it exits with cause Deadline.
	Wall time.Duration
	// StopGrace is how long each rung of the stop ladder waits (stdin closed,
	// then TERM, then KILL); default 2 s.
	StopGrace time.Duration
}

// WithDefaults returns the limits with every zero field filled in, with what
// serves an ordinary Node server.
func (l Limits) WithDefaults() Limits {
	d := Limits{
		MemoryBytes: 1 << 30, CPUs: 1, PIDs: 256, Files: 4096, TmpBytes: 256 << 20, FileBytes: 1 << 30,
		StopGrace: 2 * time.Second,
	}
	if l.MemoryBytes != 0 {
		d.MemoryBytes = l.MemoryBytes
	}
	if l.CPUs != 0 {
		d.CPUs = l.CPUs
	}
	if l.PIDs != 0 {
		d.PIDs = l.PIDs
	}
	if l.Files != 0 {
		d.Files = l.Files
	}
	if l.TmpBytes != 0 {
		d.TmpBytes = l.TmpBytes
	}
	if l.FileBytes != 0 {
		d.FileBytes = l.FileBytes
	}
	if l.StopGrace != 0 {
		d.StopGrace = l.StopGrace
	}
	d.Wall = l.Wall
	return d
}

// Validate refuses limits that are negative or too small to start anything.
// Errors wrap ErrInvalid.
func (l Limits) Validate() error {
	switch {
	case l.MemoryBytes < 0 || l.MemoryBytes > 0 && l.MemoryBytes < 16<<20:
		return fmt.Errorf("%w: memory limit of %d bytes is under 16 MiB", ErrInvalid, l.MemoryBytes)
	case l.CPUs < 0 || l.CPUs > 0 && l.CPUs < 0.01 || l.CPUs > 1024:
		return fmt.Errorf("%w: cpu limit %g is not between 0.01 and 1024", ErrInvalid, l.CPUs)
	case l.PIDs < 0 || l.PIDs > 1<<22:
		return fmt.Errorf("%w: pids limit %d is out of range", ErrInvalid, l.PIDs)
	case l.Files > 1<<20:
		return fmt.Errorf("%w: open files limit %d is over 1048576", ErrInvalid, l.Files)
	case l.TmpBytes < 0 || l.FileBytes < 0 || l.Wall < 0 || l.StopGrace < 0 || l.StopGrace > time.Minute:
		return fmt.Errorf("%w: a negative limit, or a stop grace over a minute", ErrInvalid)
	}
	return nil
}
