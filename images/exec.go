package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// tool is one run of a program of this host.
type tool struct {
	name string
	args []string
	env  []string
	dir  string
	out  io.Writer // nil keeps the output for the result
	hold *os.File  // a lock that the program is to hold as long as it lives
}

// result is what a program said, each stream cut to its last megabyte.
type result struct{ stdout, stderr []byte }

// run starts the program in a process group of its own and waits for it. When
// ctx ends the whole group is killed; when this process dies, the kernel kills
// the program.
func (t tool) run(ctx context.Context) (result, error) {
	path, err := lookPath(t.name, t.env)
	if err != nil {
		return result{}, fail(ErrTool, t.name+" is not installed or not in PATH", "install it; it is needed only to build an image, not to run one")
	}
	var stdout, stderr tail
	cmd := exec.CommandContext(ctx, path, t.args...)
	cmd.Env, cmd.Dir = t.env, t.dir
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if t.out != nil {
		cmd.Stdout = t.out
	}
	if t.hold != nil {
		cmd.ExtraFiles = []*os.File{t.hold}
	}
	cmd.WaitDelay = 5 * time.Second
	ownGroup(cmd)
	// The kernel ties the program's life to the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result{stdout.buf.Bytes(), stderr.buf.Bytes()}, err
}

// lookPath finds a program by the PATH of env rather than the process's own.
func lookPath(name string, env []string) (string, error) {
	if bytes.ContainsRune([]byte(name), os.PathSeparator) {
		return exec.LookPath(name)
	}
	for _, dir := range splitPath(env) {
		if p, err := exec.LookPath(dir + string(os.PathSeparator) + name); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}

// ranAndFailed reports whether a tool ran, inside or outside, and said no.
func ranAndFailed(err error) bool {
	var outside *exec.ExitError
	var inside *errEnded
	return errors.As(err, &outside) || errors.As(err, &inside)
}

// status is a failed program's end in a few words.
func status(name string, err error) string {
	var inside *errEnded
	if errors.As(err, &inside) {
		return name + " " + inside.Error()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Sprintf("%s ended with %s", name, exit.ProcessState)
	}
	return fmt.Sprintf("%s could not be run: %v", name, err)
}

// tail keeps the last megabyte of what is written to it.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const most = 1 << 20
	n := len(p)
	if n > most {
		p = p[n-most:]
	}
	if over := t.buf.Len() + len(p) - most; over > 0 {
		t.buf.Next(over)
	}
	t.buf.Write(p)
	return n, nil
}
