package wasm

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// governEvery is how often a worker's processor time is looked at.
	governEvery = 50 * time.Millisecond
	// burst is how much of its budget a worker may save up for a moment's work,
	// such as a guest's start.
	burst = time.Second
)

// budget is an amount of processor time that comes in at a steady rate.
type budget struct {
	credit time.Duration
	at     time.Time
}

// spend takes used off what came in since the last call, at cpus seconds a
// second, and reports whether anything is left.
func (b *budget) spend(now time.Time, cpus float64, used time.Duration) bool {
	limit := time.Duration(cpus * float64(burst))
	if b.at.IsZero() {
		b.credit = limit
	} else {
		b.credit += time.Duration(cpus * float64(now.Sub(b.at)))
	}
	b.at = now
	b.credit = min(b.credit, limit) - used
	return b.credit > 0
}

// govern holds a worker to the processors of its guests together, until it is
// gone: a worker over its budget is stopped, as by a terminal's Ctrl-Z, until
// it has come in. An unprivileged user has no other means; a guest cannot tell
// it from a slow machine.
func (w *worker) govern() {
	tick := time.NewTicker(governEvery)
	defer tick.Stop()
	var own budget
	var last time.Duration
	stopped := false
	for {
		select {
		case <-w.dead:
			return
		case <-tick.C:
		}
		cpus := w.cpus()
		total, err := processTime(w.cmd.Process.Pid)
		if err != nil {
			continue // it is about to be dead
		}
		used := total - last
		last = total
		over := cpus > 0 && !own.spend(time.Now(), cpus, used)
		if cpus == 0 {
			own = budget{}
		}
		if over == stopped {
			continue
		}
		signal := syscall.SIGCONT
		if over {
			signal = syscall.SIGSTOP
		}
		if err := w.cmd.Process.Signal(signal); err == nil {
			stopped = over
		}
	}
}

// cpus are the processors of the worker's guests together; 0 while it has none.
func (w *worker) cpus() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := 0.0
	for _, g := range w.guests {
		sum += g.spec.Limits.CPUs
	}
	return sum
}

// processTime is the processor time of all threads of a child.
func processTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	// The kernel's number for a process's clock, as clock_getcpuclockid(3) makes it.
	clock := int32(^pid)<<3 | 2
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, errors.Join(errors.New("reading a worker's processor time"), err)
	}
	return time.Duration(t.Nano()), nil
}
