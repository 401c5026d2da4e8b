package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Where a confined tool has its folders. Each is a mount of its own, whose root
// nothing inside can move away or put a link in the place of.
const (
	insideTree     = "/build"    // what it makes
	insideCache    = "/cache"    // what it keeps meanwhile
	insideSettings = "/settings" // how it is configured, read-only
)

// shown is a folder of this host in a tool's sandbox.
type shown struct {
	path, target string
	write        bool
}

// confined is one run of an ecosystem's tool in a sandbox of its own. The tool
// reads what strangers wrote, so all that it leaves behind is hostile: it is
// looked at only once nothing of the sandbox is left.
type confined struct {
	ecosystem Kind
	layers    []blob   // of the image that it runs in
	args, env []string // env can hold credentials
	shown     []shown
	dir       string // the working folder, inside
	out       io.Writer
}

// errEnded is a confined tool's failing end.
type errEnded struct{ how string }

func (e *errEnded) Error() string { return "ended with " + e.how }

// toolLimits are what one run of a tool may use.
func toolLimits(wall time.Duration) sandbox.Limits {
	return sandbox.Limits{
		MemoryBytes: 3 << 30, CPUs: float64(runtime.NumCPU()), PIDs: 1024, Files: 16384,
		TmpBytes: 512 << 20, Wall: wall, StopGrace: 100 * time.Millisecond,
	}
}

// runConfined runs the tool and returns once nothing of its sandbox is left.
func (b *Builder) runConfined(ctx context.Context, w *work, c confined) (res result, err error) {
	img, err := b.toolImage(w, c.layers)
	if err != nil {
		return result{}, err
	}
	mounts, closeMounts, err := c.mounts()
	if err != nil {
		return result{}, err
	}
	defer closeMounts()
	sb, err := b.cfg.Outlet.Start(ctx, c.ecosystem, sandbox.Spec{
		Tenant: "builder", Name: string(c.ecosystem), Isolation: sandbox.Container, Image: img,
		Args: c.args, Env: c.env, Dir: c.dir, Mounts: mounts, Limits: toolLimits(b.cfg.Timeout),
	})
	if errors.Is(err, sandbox.ErrUnavailable) {
		return result{}, unconfined(string(c.ecosystem), err)
	}
	if err != nil {
		return result{}, fmt.Errorf("start a sandbox for the build: %w", err)
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, sb.Close(stop))
	}()
	return c.wait(ctx, sb)
}

// wait collects what the tool says until it ends.
func (c confined) wait(ctx context.Context, sb sandbox.Sandbox) (result, error) {
	var stdout, stderr tail
	var out io.Writer = &stdout
	if c.out != nil {
		out = c.out
	}
	streams := sb.Stdio()
	_ = streams.In.Close() // a tool that asks gets no answer
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(out, streams.Out) })
	wg.Go(func() { _, _ = io.Copy(&stderr, streams.Err) })
	exit, err := sb.Wait(ctx)
	if err != nil {
		stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel() // straight to the kill
		_ = sb.Close(stop)
		wg.Wait()
		return result{}, context.Cause(ctx)
	}
	wg.Wait()
	res := result{stdout.buf.Bytes(), stderr.buf.Bytes()}
	switch {
	case exit.Cause == sandbox.Exited && exit.Code == 0:
		return res, nil
	case exit.Cause == sandbox.HostFault:
		return res, fail(ErrTool, "the build's sandbox failed: "+quoted(exit.Detail), "")
	case exit.Cause == sandbox.OOM:
		return res, fail(ErrRefused, "the build needs more memory than its sandbox may use", "")
	case exit.Cause == sandbox.Exited:
		return res, &errEnded{"status " + strconv.Itoa(exit.Code)}
	}
	return res, &errEnded{exit.Cause.String()}
}

// mounts opens the folders that the tool sees; the function that it returns
// closes them again.
func (c confined) mounts() ([]sandbox.Mount, func(), error) {
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	var out []sandbox.Mount
	var err error
	for _, m := range c.shown {
		f, openErr := os.Open(m.path)
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		files = append(files, f)
		out = append(out, sandbox.Mount{Source: f, Target: m.target, ReadWrite: m.write})
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return out, closeAll, nil
}

// toolImage is the image of these layers. Its few bytes are written anew if a
// cleaner took them.
func (b *Builder) toolImage(w *work, layers []blob) (sandbox.Image, error) {
	config, err := imageConfig(layers, nil, nil, imageEnv(), userHome)
	if err != nil {
		return sandbox.Image{}, err
	}
	configBlob, err := b.st.putBlob(w, config)
	if err != nil {
		return sandbox.Image{}, err
	}
	manifest, err := imageManifest(configBlob, layers, "sandboxd build tool", "0")
	if err != nil {
		return sandbox.Image{}, err
	}
	manifestBlob, err := b.st.putBlob(w, manifest)
	return sandbox.Image{Digest: manifestBlob.Digest, Path: b.st.path("oci")}, err
}

// unconfined says what to do where nothing can run the builder's sandbox.
func unconfined(tool string, why error) error {
	return fail(ErrUnconfined, "packages are fetched inside a sandbox, and none can be started here: "+why.Error(),
		"or add --build-unsandboxed, and "+tool+"'s own tool runs with your rights")
}

// confine reports whether tools run in a sandbox, or refuses where neither
// that nor the contrary was chosen.
func (b *Builder) confine() (bool, error) {
	switch {
	case b.cfg.Unsandboxed:
		return false, nil
	case b.cfg.Outlet == nil:
		return false, fail(ErrUnconfined, "packages are fetched inside a sandbox, and this builder has none", "")
	}
	return true, nil
}

// removeTree removes a folder that a stranger filled: one without permissions
// stops nobody.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	openUp(dir)
	return os.RemoveAll(dir)
}

// openUp gives the owner every right on the folders from dir down. It follows
// no link, and takes one name at a time, however deep they lie.
func openUp(dir string) {
	_ = os.Chmod(dir, 0o700) //nolint:gosec // a folder, to be removed
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	openBelow(root)
}

func openBelow(root *os.Root) {
	defer root.Close() //nolint:errcheck // only read from
	dir, err := root.Open(".")
	if err != nil {
		return
	}
	entries, _ := dir.ReadDir(-1) // what cannot be read stays, and the removal says so
	_ = dir.Close()
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		_ = root.Chmod(e.Name(), 0o700)
		if sub, err := root.OpenRoot(e.Name()); err == nil {
			openBelow(sub)
		}
	}
}
