package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// appName is the name of the package that depends on the one to run.
const appName = "sealed"

// npmJob is one tree to install: from a lock, or from a range or tag.
type npmJob struct {
	w    *work
	dir  string // empty; becomes the tree's folder
	name string
	spec string // version, range or tag
	lock []byte // a package-lock.json, or nil
	step string // whose progress it is
}

// npmTree is an installed tree that was checked.
type npmTree struct {
	version, integrity string
	lock               []byte   // without addresses, in a canonical form
	scripts            []string // packages that have install scripts
}

// npm installs a tree with scripts off, watches its size, and checks its lock.
// The registry is the one of the user's own npm configuration.
func (b *Builder) npm(ctx context.Context, job npmJob) (npmTree, error) {
	manifest, err := job.manifest(job.spec)
	if err != nil {
		return npmTree{}, err
	}
	if err := os.WriteFile(filepath.Join(job.dir, "package.json"), manifest, 0o600); err != nil {
		return npmTree{}, err
	}
	command := "install"
	if job.lock != nil {
		command = "ci"
		if err := os.WriteFile(filepath.Join(job.dir, "package-lock.json"), job.lock, 0o600); err != nil {
			return npmTree{}, err
		}
	}
	inside, err := b.confine()
	if err != nil {
		return npmTree{}, err
	}
	run := b.npmOutside
	if inside {
		run = b.npmInside
	}
	res, err := run(ctx, job, command)
	if err != nil {
		return npmTree{}, npmError(err, res, job)
	}
	if n, over := treeSize(b.cfg.MaxBytes, job.dir); over {
		return npmTree{}, tooBig(job.name, n)
	}
	return checkTree(job)
}

// manifest is the package.json of a package that needs nothing but the one to
// run.
func (j npmJob) manifest(spec string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"name": appName, "private": true, "dependencies": map[string]string{j.name: spec},
	})
}

// npmOutside runs this host's npm with the caller's own rights.
func (b *Builder) npmOutside(ctx context.Context, job npmJob, command string) (result, error) {
	home := filepath.Join(b.cfg.CacheDir, "npm")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return result{}, err
	}
	args := append([]string{command}, npmFlags...)
	args = append(args, "--cache="+filepath.Join(home, "cache"), "--userconfig="+userConfig(b.cfg.Environ), "--prefix="+job.dir)
	return b.watched(ctx, job.name, job.step, []string{job.dir}, func(ctx context.Context) (result, error) {
		return tool{name: b.cfg.NPM, args: args, env: fetchEnv(b.cfg.Environ, home), dir: job.dir, hold: job.w.lock}.run(ctx)
	})
}

// npmFlags are given on the command line, where they beat the environment and
// every configuration file.
var npmFlags = []string{
	"--json", "--loglevel=error", "--logs-max=0", "--no-progress", "--no-color", "--no-update-notifier",
	"--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--install-strategy=hoisted",
	"--no-global", "--no-dry-run", "--package-lock", "--no-package-lock-only", "--bin-links", "--no-workspaces",
	// Only what the registry vouches for by hash.
	"--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none",
	"--fetch-retries=2", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=5000",
}

// userConfig is the file of the user's own npm configuration.
func userConfig(environ []string) string {
	for _, name := range []string{"npm_config_userconfig", "NPM_CONFIG_USERCONFIG"} {
		if file := setting(environ, name); file != "" {
			return file
		}
	}
	return filepath.Join(setting(environ, "HOME"), ".npmrc")
}

// watched runs a tool while it reports how much there is in its folders, and
// stops it beyond the bound.
func (b *Builder) watched(ctx context.Context, name, step string, dirs []string, run func(context.Context) (result, error)) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.watch(ctx, name, step, dirs, cancel)
	}()
	res, err := run(ctx)
	cancel(nil)
	<-done
	return res, err
}

func (b *Builder) watch(ctx context.Context, name, step string, dirs []string, stop context.CancelCauseFunc) {
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, over := treeSize(b.cfg.MaxBytes, dirs...)
		if over {
			stop(tooBig(name, n))
			return
		}
		b.report(Step{Name: step, Detail: "fetching " + name, Bytes: n})
	}
}

func tooBig(name string, n int64) error {
	return fail(ErrRefused, fmt.Sprintf("%s unpacks to over %d MB, or to what cannot be read", name, n/1e6), "raise the bound if you trust it")
}

// maxFiles bounds the files of one tree: the largest known server has 13,000.
const maxFiles = 250_000

// treeSize adds up the files below the folders; over says that a bound is
// broken, or that something there hides from being counted.
func treeSize(most int64, dirs ...string) (n int64, over bool) {
	files := 0
	for _, dir := range dirs {
		// Files come and go while a tool works: one that has gone counts nothing.
		_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				over = over || !errors.Is(err, fs.ErrNotExist)
				return nil //nolint:nilerr // see above
			}
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
				n += info.Size()
			}
			if files++; n > most || files > maxFiles {
				over = true
				return fs.SkipAll
			}
			return nil
		})
	}
	return n, over
}
