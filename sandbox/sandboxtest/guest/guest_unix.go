//go:build unix

package guest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func ignoreTerm() { signal.Ignore(syscall.SIGTERM) }

// term heeds only a request to end.
func term(ctx context.Context, p Process) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	defer signal.Stop(asked)
	if err := ready(p); err != nil {
		return err
	}
	select {
	case <-asked:
		return status(StatusTerm)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func kill(_ context.Context, p Process) error {
	return syscall.Kill(os.Getpid(), syscall.Signal(p.number(0)))
}

// leave starts a child in a session of its own that outlives it, and ends when
// its input does.
func leave(ctx context.Context, p Process) error {
	child := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"sleep"}, p.Args[2:]...)...)
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	return echo(ctx, p)
}

// fork starts up to n children that stay.
func fork(ctx context.Context, n int) (string, error) {
	for i := range n {
		child := exec.CommandContext(ctx, "/proc/self/exe", "sleep")
		if err := child.Start(); err != nil {
			return "", fmt.Errorf("after %d: %w", i, err)
		}
	}
	return "ok", nil
}

func dial(ctx context.Context, address string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}
