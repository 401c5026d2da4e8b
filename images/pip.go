package images

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pipPackages are what pip itself is made of: the distribution's own wheel of
// it, which runs from its archive.
var pipPackages = []string{"python3", "python3-pip-whl"}

// pipMain runs that wheel, whatever its version.
const pipMain = `import glob, runpy, sys
sys.path.insert(0, sorted(glob.glob("/usr/share/python-wheels/pip-*.whl"))[-1])
runpy.run_module("pip", run_name="__main__")`

// pip fetches wheels into dir, inside a sandbox. Source packages are never
// asked for: to build one would run its code.
func (b *Builder) pip(ctx context.Context, w *work, job pyJob, lock *Lock, dir string) error {
	inside, err := b.confine()
	if err != nil {
		return err
	}
	if !inside {
		return fail(ErrUnconfined, "Python packages are fetched in a sandbox only", "leave --build-unsandboxed out, and start the engine")
	}
	base, err := b.base(ctx, nil, false)
	if err != nil {
		return err
	}
	tool, _, err := b.extras(ctx, base, pipPackages, nil, false)
	if err != nil {
		return err
	}
	client, err := b.cfg.Outlet.Client(ctx, KindPyPI)
	if err != nil {
		return err
	}
	run, dirs, err := job.inside(w, client, lock, dir)
	if err != nil {
		return err
	}
	run.layers = []blob{base.Layer, tool.Layer}
	what := strings.Join(job.needs, " ")
	res, err := b.watched(ctx, what, "package", dirs, func(ctx context.Context) (result, error) { return b.runConfined(ctx, w, run) })
	if err != nil {
		return pipError(err, res, what)
	}
	if n, over := treeSize(b.cfg.MaxBytes, dirs...); over {
		return tooBig(what, n)
	}
	return nil
}

// inside prepares pip's run.
func (j pyJob) inside(w *work, client Client, lock *Lock, dir string) (run confined, dirs []string, err error) {
	cache, err := w.sub("pip-cache")
	if err != nil {
		return run, nil, err
	}
	settings, err := w.sub("pip-settings")
	if err != nil {
		return run, nil, err
	}
	run = confined{
		ecosystem: KindPyPI, dir: insideTree,
		shown: []shown{{dir, insideTree, true}, {cache, insideCache, true}, {settings, insideSettings, false}},
		args: []string{
			pythonBin, "-c", pipMain, "download", "--only-binary=:all:", "--no-cache-dir", "--dest=" + insideTree,
			"--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar=off", "--retries=2",
		},
		env: append([]string{"PATH=/usr/bin:/bin", "HOME=" + userHome, "LC_ALL=C.UTF-8", "TMPDIR=" + insideCache, "PYTHONDONTWRITEBYTECODE=1"}, client.Secret...),
	}
	if client.Certificates != nil {
		if err := os.WriteFile(filepath.Join(settings, "ca.pem"), client.Certificates, 0o600); err != nil {
			return run, nil, err
		}
		run.env = append(run.env, "PIP_CERT="+path.Join(insideSettings, "ca.pem"))
	}
	for k, v := range client.Settings {
		run.env = append(run.env, "PIP_"+strings.ToUpper(strings.ReplaceAll(k, "-", "_"))+"="+v)
	}
	var links []string
	for _, name := range slices.Sorted(maps.Keys(client.Folders)) {
		target := "/links-" + name
		run.shown = append(run.shown, shown{client.Folders[name], target, false})
		links = append(links, target)
	}
	if len(links) > 0 {
		run.env = append(run.env, "PIP_FIND_LINKS="+strings.Join(links, " "))
	}
	if lock == nil {
		run.args = append(append(run.args, "--"), j.needs...)
		return run, []string{dir, cache}, nil
	}
	var pins strings.Builder
	for _, x := range lock.Wheels {
		m := wheelRE.FindStringSubmatch(x.File)
		fmt.Fprintf(&pins, "%s==%s --hash=sha256:%s\n", normalName(m[1]), m[2], x.SHA256)
	}
	if err := os.WriteFile(filepath.Join(settings, "requirements.txt"), []byte(pins.String()), 0o600); err != nil {
		return run, nil, err
	}
	run.args = append(run.args, "--no-deps", "--require-hashes", "-r", path.Join(insideSettings, "requirements.txt"))
	return run, []string{dir, cache}, nil
}

var pipErrorRE = regexp.MustCompile(`(?m)^ERROR: (.*)$`)

// pipError makes one clear line of pip's failure.
func pipError(err error, res result, what string) error {
	if !ranAndFailed(err) {
		return err
	}
	text := string(res.stderr)
	said := lastLine(res.stderr)
	if m := pipErrorRE.FindAllStringSubmatch(text, -1); m != nil {
		said = m[len(m)-1][1]
	}
	switch {
	case strings.Contains(text, "Connection to") || strings.Contains(text, "NewConnectionError") || strings.Contains(text, "NameResolutionError") || strings.Contains(text, "Temporary failure in name resolution"):
		return fail(ErrNetwork, "the configured Python index could not be reached for "+what, "check index-url of your pip configuration; a mirror on a private address needs registries.pypi.trusted_cidrs in the operator's settings")
	case strings.Contains(text, "DO NOT MATCH THE HASHES"):
		return fail(ErrRefused, "a wheel of "+what+" does not have the locked hash", "look at what changed before you update the lock")
	case strings.Contains(text, "No matching distribution"), strings.Contains(text, "Could not find a version"):
		return fail(ErrNotFound, "the configured Python index has no wheel of "+what+", or of what it needs, for this platform", "source packages are not built, since that runs their code")
	case strings.Contains(text, "401 Client Error"), strings.Contains(text, "403 Client Error"):
		return fail(ErrDenied, "the configured Python index refused access to "+what, "fix the credentials in your pip configuration")
	}
	return fail(ErrTool, status("pip", err)+": "+quoted(urlRE.ReplaceAllString(said, "<address>")), "")
}
