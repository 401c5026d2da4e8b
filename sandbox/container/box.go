//go:build linux

package container

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// box is one container and all that belongs to it.
type box struct {
	id     string
	group  string // its cgroup's path
	gvisor bool
	limits sandbox.Limits
	log    *slog.Logger
	ctx    func(context.Context) context.Context
	// returns waits a while for containerd to answer again.
	returns func(context.Context) bool

	io     *stdio
	net    *network
	task   client.Task
	exited <-chan client.ExitStatus
	// forsake makes exited deliver; watched says that a goroutine waits for it.
	forsake context.CancelFunc
	tmp     *tmpUse
	watched bool

	done chan struct{} // closed once exit is set
	exit sandbox.Exit

	mu      sync.Mutex // guards what follows, and serialises Stop
	cleanup cleanup
	stopped bool
}

var _ Box = (*box)(nil)

// ID implements Box.
func (b *box) ID() string { return b.id }

// Open implements Box.
func (b *box) Open(openings []Opening) error { return b.net.open(openings) }

// Wait implements Box.
func (b *box) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-b.done:
		return b.exit, nil
	default:
	}
	select {
	case <-b.done:
		return b.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// watch owns the box's one goroutine, which ends when the guest has. ctx has
// no end of its own.
func (b *box) watch(ctx context.Context) {
	b.watched = true
	go func() {
		defer close(b.done)
		defer b.tmp.close()
		var deadline <-chan time.Time
		if b.limits.Wall > 0 {
			t := time.NewTimer(b.limits.Wall)
			defer t.Stop()
			deadline = t.C
		}
		late := false
		tick := time.NewTicker(tmpEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.tmp.look()
			case status := <-b.exited:
				b.exit = b.ended(ctx, status, late)
				return
			case <-deadline:
				late, deadline = true, nil
				if err := b.kill(ctx); err != nil {
					b.log.Error("kill at deadline failed", "sandbox", b.id, "error", err)
				}
			}
		}
	}()
}

// kill ends every process of the box: the first one's death is the end of
// its process namespace.
func (b *box) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
	defer cancel()
	if ignoreNotFound(b.task.Kill(ctx, unix.SIGKILL, client.WithKillAll)) == nil {
		return nil
	}
	// containerd or the runtime cannot, or the box is just ending.
	return signalCgroup(b.group, unix.SIGKILL)
}

// ended turns containerd's status into an Exit.
func (b *box) ended(ctx context.Context, status client.ExitStatus, late bool) sandbox.Exit {
	use := readUsage(b.group)
	e := sandbox.Exit{PeakMemoryBytes: use.peakMemory, PeakPIDs: use.peakPIDs, PeakTmpBytes: b.tmp.look()}
	if err := status.Error(); err != nil {
		// Nobody can say what became of the guest; see that it is gone.
		ctx, cancel := context.WithTimeout(ctx, cleanupBound)
		defer cancel()
		if err := killCgroup(ctx, b.group); err != nil {
			b.log.Error("kill after a host fault failed", "sandbox", b.id, "error", err)
		}
		e.Cause, e.Code, e.Detail = sandbox.HostFault, -1, "containerd lost sight of the sandbox: "+err.Error()
		return e
	}
	const signalled = 128 // a signal's status, as shells and runtimes report it
	e.Cause, e.Code = sandbox.Exited, int(status.ExitCode())
	if e.Code > signalled && e.Code <= signalled+64 {
		e.Cause, e.Signal = sandbox.Killed, e.Code-signalled
	}
	switch {
	case late:
		e.Cause, e.Detail = sandbox.Deadline, fmt.Sprintf("it ran for its whole time limit of %s", b.limits.Wall)
	case e.Signal == int(unix.SIGKILL) && use.oomKills > 0:
		e.Cause, e.Detail = sandbox.OOM, fmt.Sprintf("it used all of its %d MiB of memory", b.limits.MemoryBytes>>20)
	}
	return e
}

// Stop implements Box.
func (b *box) Stop(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil
	}
	ctx = b.ctx(ctx)
	b.ladder(ctx)
	if err := b.undo(ctx); err != nil {
		return fmt.Errorf("container: stop %s: %w", b.id, err)
	}
	b.stopped = true
	return nil
}

// ladder asks the guest to end, then ends it. What it cannot do, undo does by
// the cgroup.
func (b *box) ladder(ctx context.Context) {
	select {
	case <-b.done:
		return
	default:
	}
	if ctx.Err() == nil {
		if err := b.terminate(ctx); err != nil {
			b.log.Warn("asking a sandbox to end failed", "sandbox", b.id, "error", err)
		} else if b.gone(ctx, b.limits.StopGrace) {
			return
		}
	}
	if err := b.kill(ctx); err != nil {
		b.log.Error("kill failed", "sandbox", b.id, "error", err)
	}
	if !b.gone(context.WithoutCancel(ctx), cleanupBound/3) {
		b.log.Error("killed sandbox has not ended", "sandbox", b.id)
	}
}

// gone waits for the guest's end, no longer than given.
func (b *box) gone(ctx context.Context, atMost time.Duration) bool {
	t := time.NewTimer(atMost)
	defer t.Stop()
	select {
	case <-b.done:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// terminate sends TERM to every process. Under runc they are the cgroup's;
// under gVisor the cgroup's are its own, and its kernel knows the guest's.
func (b *box) terminate(ctx context.Context) error {
	if b.gvisor {
		return ignoreNotFound(b.task.Kill(ctx, unix.SIGTERM, client.WithKillAll))
	}
	b.begun(ctx)
	return signalCgroup(b.group, unix.SIGTERM)
}

const (
	begunBound = 2 * time.Second
	begunEvery = 2 * time.Millisecond
)

// begun waits until the first process has started the server, which a start
// does not wait for: the kernel gives the first process of a namespace no
// default action, so that a TERM which only that one gets would be lost.
func (b *box) begun(ctx context.Context) {
	for end := time.Now().Add(min(begunBound, b.limits.StopGrace)); alone(b.group) && time.Now().Before(end); {
		if b.gone(ctx, begunEvery) {
			return
		}
	}
}

// undo removes every trace, on a context of its own. In the end the watcher
// is told to give up, if it still waits.
func (b *box) undo(ctx context.Context) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
	defer cancel()
	err := b.cleanup.run(end)
	if err != nil && b.returns(end) {
		err = b.cleanup.run(end)
	}
	if b.forsake != nil {
		b.forsake()
		if b.watched {
			<-b.done
		}
	}
	return err
}
