package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/container/daemon"
)

// minRunc is the first runc that maps the ids of mounts.
const minRunc = "1.2"

var versionRE = regexp.MustCompile(`\bv?(\d+\.\d+[^\s,]*)`)

// find returns a program of the engine's parts, or else one on PATH.
func (c Config) find(name string) (string, error) {
	if c.BinDir != "" {
		p := filepath.Join(c.BinDir, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return exec.LookPath(name)
}

// ask runs PROGRAM --version. Root runs no program that others could change.
func ask(ctx context.Context, path string) (string, error) {
	if os.Geteuid() == 0 {
		if err := daemon.Trusted(path); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w: %s", path, err, line(string(out)))
	}
	return string(out), nil
}

func (c Config) runtimes() []trial {
	return []trial{
		{nameContainerd, c.containerd},
		{nameShim, c.shim},
		{nameRunc, c.runc},
		{nameRunsc, c.runsc},
		{nameKata, c.kata},
	}
}

const makeEngine = "run `make engine`, which builds all parts of the engine"

// containerd looks for one that answers, and else for one that the engine can
// supervise, which is no worse.
func (c Config) containerd(ctx context.Context) Check {
	address, given := strings.TrimPrefix(c.Containerd, "unix://"), c.Containerd != ""
	if !given {
		address = daemon.SystemAddress
	}
	_, statErr := os.Stat(address)
	v, err := "", statErr
	if statErr == nil {
		v, err = daemon.Version(ctx, address)
	}
	var trouble string
	switch {
	case err == nil && daemon.Recent(v, daemon.MinVersion):
		return ok(fmt.Sprintf("%s answers at %s", v, address))
	case err == nil:
		trouble = fmt.Sprintf("%s at %s is older than %s and ignores id-mapped mounts", v, address, daemon.MinVersion)
	case errors.Is(err, fs.ErrPermission):
		trouble = "the one at " + address + " may not be asked by this user"
	case given || !errors.Is(err, fs.ErrNotExist):
		trouble = err.Error()
	}
	if given {
		if errors.Is(err, fs.ErrPermission) {
			return untried("", trouble, "run sudo sandboxd doctor")
		}
		return fail(trouble, "start it, correct the address, or leave the address out")
	}
	path, err := c.find("containerd")
	if err != nil {
		if trouble == "" {
			trouble = "there is none at " + address + " and no program to start"
		}
		return fail(trouble, makeEngine+", or install containerd 2.0 or later")
	}
	got := c.version(ctx, path, daemon.MinVersion, "ignores id-mapped mounts")
	if got.Status == OK {
		got.Detail += ", to be supervised by the engine"
		if trouble != "" {
			got.Detail += "; " + trouble
		}
	}
	return got
}

func (c Config) shim(ctx context.Context) Check {
	path, err := c.find("containerd-shim-runc-v2")
	if err != nil {
		return fail("containerd-shim-runc-v2 is absent", makeEngine)
	}
	return c.version(ctx, path, daemon.MinVersion, "ignores id-mapped mounts")
}

func (c Config) runc(ctx context.Context) Check {
	path, err := c.find("runc")
	if err != nil {
		return fail("absent", makeEngine+", or install runc 1.2 or later")
	}
	out, err := ask(ctx, path)
	if err != nil {
		return fail(err.Error(), makeEngine)
	}
	if !strings.Contains(out, "libseccomp:") {
		return fail(path+" was built without seccomp: containers would start without a filter", makeEngine)
	}
	return c.version(ctx, path, minRunc, "ignores id-mapped mounts")
}

func (c Config) runsc(ctx context.Context) Check {
	path, err := c.find("runsc")
	if err != nil {
		return fail("absent", makeEngine)
	}
	out, err := ask(ctx, path)
	if err != nil {
		return fail(err.Error(), makeEngine)
	}
	first, _, _ := strings.Cut(out, "\n")
	return ok(strings.TrimPrefix(line(first), "runsc version ") + " (" + path + ")")
}

// kata is only looked for: no handler of ours was ever tried on it.
func (c Config) kata(context.Context) Check {
	path, err := c.find("containerd-shim-kata-v2")
	if err != nil {
		return absent("absent; it is not needed by any other tier")
	}
	return warn("found "+path+"; running on it is not tested", "")
}

// version asks a program for its version and refuses one that is too old.
func (c Config) version(ctx context.Context, path, minimum, lacks string) Check {
	out, err := ask(ctx, path)
	if err != nil {
		return fail(err.Error(), makeEngine)
	}
	m := versionRE.FindStringSubmatch(out)
	switch {
	case m == nil:
		return fail(path+" does not say its version", makeEngine)
	case !daemon.Recent(m[1], minimum):
		return fail(fmt.Sprintf("%s (%s) is older than %s and %s", m[1], path, minimum, lacks), makeEngine)
	}
	return ok(m[1] + " (" + path + ")")
}

// engine asks whether an ordinary user finds an engine to work with.
func (c Config) engine(ctx context.Context) Check {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", c.Engine)
	switch {
	case err == nil:
		_ = conn.Close()
		return ok("answers at " + c.Engine)
	case errors.Is(err, fs.ErrPermission):
		return warn("the engine at "+c.Engine+" does not admit this user", "ask its owner for access to the socket")
	case os.Geteuid() == 0:
		return ok("none runs; root starts one on demand")
	}
	return warn("none runs at "+c.Engine+": only WASM servers can be started", "start one with sudo sandboxd engine --group GROUP, where GROUP is one of yours")
}
