package images

import (
	"context"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pinnedNPM is the npm that runs inside, with the hash of its package.
func pinnedNPM() npmPin {
	return npmPin{
		name: "npm", version: "11.21.2",
		integrity: "sha512-7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A==",
	}
}

const (
	npmDir = "usr/local/lib/npm"
	npmCLI = "/" + npmDir + "/bin/npm-cli.js"
)

// npmTool makes the layers of npm's own image: the base, Node and npm.
func (b *Builder) npmTool(ctx context.Context) ([]blob, error) {
	base, err := b.base(ctx, nil, false)
	if err != nil {
		return nil, err
	}
	node, err := b.node(ctx, b.cfg.Node)
	if err != nil {
		return nil, err
	}
	npm, err := b.pinnedLayer(ctx, pinnedNPM(), "", npmDir)
	if err != nil {
		return nil, err
	}
	return []blob{base.Layer, node.Layer, npm.Layer}, nil
}

// pinnedLayer is the layer of one folder of a pinned package, at a place of its
// own.
func (b *Builder) pinnedLayer(ctx context.Context, pin npmPin, folder, at string) (layerRecord, error) {
	name := "tool-" + pin.name + "-" + shortHash(pin.version, pin.integrity)
	return b.st.shared(ctx, name, false, func(w *work) (layerRecord, error) {
		done := b.step("tool", "fetching "+pin.name+" "+pin.version)
		dir, err := w.sub(pin.name)
		if err != nil {
			return layerRecord{}, err
		}
		if _, err := b.fetchPinned(ctx, w, pin, dir); err != nil {
			return layerRecord{}, err
		}
		file := filepath.Join(w.dir, "layer")
		l, err := newLayer(file)
		if err != nil {
			return layerRecord{}, err
		}
		if err := l.tree(ctx, filepath.Join(dir, folder), at, func(string) bool { return false }); err != nil {
			l.abandon()
			return layerRecord{}, err
		}
		layer, err := l.finish()
		if err != nil {
			return layerRecord{}, err
		}
		done(layer.Size)
		return layerRecord{Layer: layer}, b.st.adopt(file, layer)
	})
}

// npmInside runs npm in a sandbox, and the packages' install scripts, where
// they were asked for, in another one.
func (b *Builder) npmInside(ctx context.Context, job npmJob, command string) (result, error) {
	layers, err := b.npmTool(ctx)
	if err != nil {
		return result{}, err
	}
	client, err := b.cfg.Outlet.Client(ctx, KindNPM)
	if err != nil {
		return result{}, err
	}
	run, dirs, err := job.inside(client, layers)
	if err != nil {
		return result{}, err
	}
	fetch := run
	fetch.args = slices.Concat([]string{nodeBin, npmCLI, command}, run.args, npmFlags)
	fetch.env = slices.Concat(run.env, client.Secret)
	res, err := b.watched(ctx, job.name, job.step, dirs, func(ctx context.Context) (result, error) {
		return b.runConfined(ctx, job.w, fetch)
	})
	if err != nil || !b.cfg.Scripts {
		return res, err
	}
	if run.layers, err = b.compilers(ctx, layers); err != nil {
		return result{}, err
	}
	done := b.step("scripts", "running the install scripts of "+job.name)
	// The credentials are not there: what runs now is the packages' own code.
	// cc and c++ would be links that only a set-up of the distribution makes.
	run.env = append(slices.Clone(run.env), "CC=gcc", "CXX=g++")
	run.args = slices.Concat([]string{nodeBin, npmCLI, "rebuild"}, run.args, npmFlags,
		[]string{"--ignore-scripts=false", "--foreground-scripts", "--nodedir=/" + headersDir})
	res, err = b.watched(ctx, job.name, "scripts", dirs, func(ctx context.Context) (result, error) {
		return b.runConfined(ctx, job.w, run)
	})
	if ranAndFailed(err) {
		return res, fail(ErrTool, "an install script of "+job.name+" failed: "+quoted(scriptSaid(res.stderr)), "its network ends at the npm registry: what it downloads elsewhere it does not get")
	}
	done(0)
	return res, err
}

// buildPackages are what an install script that compiles needs.
var buildPackages = []string{"coreutils", "dash", "g++", "grep", "make", "python3", "sed"}

// headersDir is where Node's headers are for it.
const headersDir = "usr/local/lib/node-headers"

// compilers adds to npm's image what compiles.
func (b *Builder) compilers(ctx context.Context, layers []blob) ([]blob, error) {
	base, err := b.base(ctx, nil, false)
	if err != nil {
		return nil, err
	}
	more, _, err := b.extras(ctx, base, buildPackages, nil, false)
	if err != nil {
		return nil, err
	}
	node := npmPin{nodePackage(), b.cfg.Node.Version, b.cfg.Node.Integrity}
	headers, err := b.pinnedLayer(ctx, node, "include", headersDir+"/include")
	return append(slices.Clone(layers), more.Layer, headers.Layer), err
}

// scriptSaid is the first line of a failed script's own that speaks of an
// error, or the last one that npm did not add.
func scriptSaid(stderr []byte) string {
	said := ""
	for line := range strings.Lines(string(stderr)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "npm ") || strings.HasPrefix(line, ">") {
			continue
		}
		if said = line; strings.Contains(strings.ToLower(line), "error") || strings.Contains(line, "not found") {
			break
		}
	}
	return said
}

// lastLine is the last line that a tool said.
func lastLine(text []byte) string {
	said := strings.TrimSpace(string(text))
	return said[strings.LastIndexByte(said, '\n')+1:]
}

// inside prepares a run of npm on the job's tree: what it is shown, the
// settings that hold no secret, and the folders that it fills.
func (j npmJob) inside(client Client, layers []blob) (run confined, dirs []string, err error) {
	cache, err := j.w.sub("cache")
	if err != nil {
		return run, nil, err
	}
	settings, err := j.w.sub("settings")
	if err != nil {
		return run, nil, err
	}
	var rc strings.Builder
	for _, k := range slices.Sorted(maps.Keys(client.Settings)) {
		rc.WriteString(k + " = " + client.Settings[k] + "\n")
	}
	if client.Certificates != nil {
		rc.WriteString("cafile = " + path.Join(insideSettings, "ca.pem") + "\n")
		if err := os.WriteFile(filepath.Join(settings, "ca.pem"), client.Certificates, 0o600); err != nil {
			return run, nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(settings, "npmrc"), []byte(rc.String()), 0o600); err != nil {
		return run, nil, err
	}
	run = confined{
		ecosystem: KindNPM, layers: layers, dir: insideTree,
		shown: []shown{{j.dir, insideTree, true}, {cache, insideCache, true}, {settings, insideSettings, false}},
		args: []string{
			"--cache=" + insideCache, "--userconfig=" + path.Join(insideSettings, "npmrc"), "--globalconfig=/dev/null", "--prefix=" + insideTree,
		},
		env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + userHome, "LC_ALL=C", "NO_UPDATE_NOTIFIER=1"},
	}
	return run, []string{j.dir, cache}, nil
}
