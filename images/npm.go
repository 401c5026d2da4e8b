package images

import (
	"context"
	"encoding/json"
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
	dir  string // empty; becomes the tree's folder
	name string
	spec string // version, range or tag
	lock []byte // a package-lock.json, or nil
	hold *os.File
	step string // whose progress it is
}

// npmTree is an installed tree that was checked.
type npmTree struct {
	version, integrity string
	lock               []byte // without addresses, in a canonical form
}

// npm installs a tree with scripts off, watches its size, and checks its lock.
// The registry is the one of the user's own npm configuration.
func (b *Builder) npm(ctx context.Context, job npmJob) (npmTree, error) {
	manifest, err := json.Marshal(map[string]any{
		"name": appName, "private": true, "dependencies": map[string]string{job.name: job.spec},
	})
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
	home := filepath.Join(b.cfg.CacheDir, "npm")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return npmTree{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		b.watch(ctx, job, cancel)
	}()
	res, err := tool{
		name: b.cfg.NPM, args: append([]string{command}, npmFlags(home, job.dir, b.cfg.Environ)...),
		env: fetchEnv(b.cfg.Environ, home), dir: job.dir, hold: job.hold,
	}.run(ctx)
	cancel(nil)
	<-watched
	if err != nil {
		return npmTree{}, npmError(err, res, job)
	}
	if n, over := treeSize(job.dir, b.cfg.MaxBytes); over {
		return npmTree{}, tooBig(job.name, n)
	}
	return checkTree(job)
}

// npmFlags are given on the command line, where they beat the environment and
// every configuration file.
func npmFlags(home, dir string, environ []string) []string {
	user := setting(environ, "NPM_CONFIG_USERCONFIG")
	if low := setting(environ, "npm_config_userconfig"); low != "" {
		user = low
	}
	if user == "" {
		user = filepath.Join(setting(environ, "HOME"), ".npmrc")
	}
	return []string{
		"--json", "--loglevel=error", "--logs-max=0", "--no-progress", "--no-color", "--no-update-notifier",
		"--cache=" + filepath.Join(home, "cache"), "--userconfig=" + user, "--prefix=" + dir,
		"--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--install-strategy=hoisted",
		"--no-global", "--no-dry-run", "--package-lock", "--no-package-lock-only", "--bin-links", "--no-workspaces",
		// Only what the registry vouches for by hash.
		"--allow-git=none", "--allow-remote=none", "--allow-file=none", "--allow-directory=none",
		"--fetch-retries=2", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=5000",
	}
}

// watch reports how much npm has unpacked, and stops it beyond the bound.
func (b *Builder) watch(ctx context.Context, job npmJob, stop context.CancelCauseFunc) {
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, over := treeSize(job.dir, b.cfg.MaxBytes)
		if over {
			stop(tooBig(job.name, n))
			return
		}
		b.report(Step{Name: job.step, Detail: "fetching " + job.name, Bytes: n})
	}
}

func tooBig(name string, n int64) error {
	return fail(ErrRefused, fmt.Sprintf("%s unpacks to over %d MB", name, n/1e6), "raise the bound if you trust it")
}

// maxFiles bounds the files of one tree: the largest known server has 13,000.
const maxFiles = 250_000

// treeSize adds up the files below dir; over says that a bound is broken.
func treeSize(dir string, most int64) (n int64, over bool) {
	files := 0
	// Files come and go while npm works: what cannot be read counts nothing.
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
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
	return n, over
}
