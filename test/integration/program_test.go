package integration

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// running is the program at work as the ordinary user, with its streams in
// the test's hands.
type running struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *os.File
	stderr *syncBuffer
	done   chan struct{}
}

// startProgram starts it. It is killed when the test ends, if it still runs
// then.
func startProgram(t testing.TB, home string, env []string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cmd: lab.UserCommand(ctx, home, program, args...), stderr: &syncBuffer{}, done: make(chan struct{})}
	r.cmd.Env = append(r.cmd.Env, env...)
	r.cmd.Stderr, r.cmd.WaitDelay = r.stderr, 10*time.Second
	stdout, theirs, err := os.Pipe() // ours, so that waiting does not close it
	if err != nil {
		t.Fatal(err)
	}
	r.stdout, r.cmd.Stdout = stdout, theirs
	if r.stdin, err = r.cmd.StdinPipe(); err == nil {
		err = r.cmd.Start()
	}
	_ = theirs.Close()
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // status asks the process
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		_, _ = r.stdin.Close(), r.stdout.Close()
	})
	return r
}

// says waits until the program has written the text to stderr.
func (r *running) says(t testing.TB, text string) {
	t.Helper()
	until(t, "the program says "+text, 3*time.Minute, func() bool {
		select {
		case <-r.done:
			if !strings.Contains(r.stderr.String(), text) {
				t.Fatalf("it ended and never said %q:\n%s", text, r.stderr)
			}
		default:
		}
		return strings.Contains(r.stderr.String(), text)
	})
}

// status waits for its end; -1 means that a signal ended it.
func (r *running) status(t testing.TB, bound time.Duration) int {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(bound):
		t.Fatalf("it has not ended after %s:\n%s", bound, r.stderr)
	}
	return r.cmd.ProcessState.ExitCode()
}

// kill ends it as a crash would.
func (r *running) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// ending is what of a long log says why a test failed.
func ending(s string) string { return s[max(0, len(s)-4000):] }
