package registries

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// run starts a client and returns what it printed, or false where it is not
// installed, fails, says too much or takes too long. What it printed on stderr
// is dropped, as is all in an error but its kind: either could hold a token.
func (f *Finder) run(ctx context.Context, env []string, name string, args ...string) ([]byte, bool) {
	path, err := exec.LookPath(name)
	if err != nil {
		f.log.Debug("a client is not installed", "client", name)
		return nil, false
	}
	cmd := exec.CommandContext(ctx, path, args...)
	// The root folder: a project that the user happens to stand in must not
	// choose hosts, and pip would import from there.
	cmd.Dir = filepath.VolumeName(os.TempDir()) + string(filepath.Separator)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	wholeGroup(cmd)
	out := &bounded{}
	cmd.Stdout = out
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		f.log.Warn("a client did not say its registry in time", "client", name)
		return nil, false
	case err != nil:
		var exit *exec.ExitError
		f.log.Warn("a client did not say its registry", "client", name, "ran", errors.As(err, &exit))
		return nil, false
	case out.over:
		f.log.Warn("a client said too much about its registry", "client", name)
		return nil, false
	}
	return out.buf.Bytes(), true
}

// bounded keeps maxAnswer bytes and notes that there were more.
type bounded struct {
	buf  bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), maxAnswer-b.buf.Len())
	b.buf.Write(p[:n])
	b.over = b.over || n < len(p)
	return len(p), nil
}
