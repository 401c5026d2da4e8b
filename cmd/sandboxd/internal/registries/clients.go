package registries

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

// npmLine is one effective setting of `npm config list -l`, which shows those
// of every source and comments out what another one overrides.
var npmLine = regexp.MustCompile(`^(?:registry|@[^\s:]+:registry) = (".*")$`)

// npm asks for the registry and those of scopes, from the variables, the
// user's and the global configuration.
func (f *Finder) npm(ctx context.Context) []string {
	out, ok := f.npmOutput(ctx)
	if !ok {
		return nil
	}
	var urls []string
	for line := range lines(out) {
		if m := npmLine.FindStringSubmatch(line); m != nil {
			var value string
			if json.Unmarshal([]byte(m[1]), &value) == nil {
				urls = append(urls, value)
			}
		}
	}
	return urls
}

// npmOutput is npm's list of its settings, asked for once.
func (f *Finder) npmOutput(ctx context.Context) ([]byte, bool) {
	f.npmMu.Lock()
	defer f.npmMu.Unlock()
	if f.npmAsked {
		return f.npmSaid, f.npmSaid != nil
	}
	out, ok := f.run(ctx, []string{"NPM_CONFIG_UPDATE_NOTIFIER=false", "NPM_CONFIG_COLOR=false"}, "npm", "config", "list", "-l")
	if ctx.Err() == nil {
		f.npmAsked, f.npmSaid = true, out
	}
	return out, ok
}

// golang asks for the module proxies and the checksum database.
func (f *Finder) golang(ctx context.Context) []string {
	out, ok := f.run(ctx, []string{"GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS="}, "go", "env", "-json", "GOPROXY", "GOSUMDB")
	if !ok {
		return nil
	}
	var env struct{ GOPROXY, GOSUMDB string }
	if err := json.Unmarshal(out, &env); err != nil {
		f.log.Warn("a client's answer could not be read", "client", "go")
		return nil
	}
	var urls []string
	for _, p := range strings.FieldsFunc(env.GOPROXY, func(r rune) bool { return r == ',' || r == '|' }) {
		switch p = strings.TrimSpace(p); {
		case p == "", p == "direct", p == "off", strings.HasPrefix(p, "file:"):
		case strings.Contains(p, "://"):
			urls = append(urls, p)
		default: // go takes a bare host for one with https
			urls = append(urls, "https://"+p)
		}
	}
	// NAME, NAME+KEY, or either of them and a URL.
	switch db := strings.Fields(env.GOSUMDB); {
	case len(db) == 0 || db[0] == "off":
	case len(db) > 1:
		urls = append(urls, db[1])
	default:
		host, _, _ := strings.Cut(db[0], "+")
		urls = append(urls, "https://"+host)
	}
	return urls
}

// Go asks the go command where its toolchain is and how it fetches. It is empty
// where there is none.
func (f *Finder) Go(ctx context.Context) map[string]string {
	out, ok := f.run(ctx, []string{"GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS="}, "go", "env", "-json",
		"GOROOT", "GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE")
	env := map[string]string{}
	if ok && json.Unmarshal(out, &env) != nil {
		f.log.Warn("a client's answer could not be read", "client", "go")
	}
	if mirror := f.mirrors["go"]; mirror != "" {
		env["GOPROXY"], env["GONOPROXY"], env["GOPRIVATE"] = mirror, "none", ""
	}
	return env
}

// pipDefault has pip itself say what it uses unless it is told otherwise. The
// files of that index live on a host of their own, which no setting names.
const pipDefault = "from pip._internal.models.index import PyPI; print(PyPI.simple_url); print('https://' + PyPI.file_storage_domain)"

// pipLine is one setting of `pip config list`: a section or :env:, the key, and
// the value as Python writes a string.
var pipLine = regexp.MustCompile(`^(:env:|global|install|download|wheel)\.(index-url|extra-index-url)=(['"])(.*)['"]$`)

// pip asks for the index and further ones.
func (f *Finder) pip(ctx context.Context) []string {
	env := []string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1"}
	var own []string
	var wg sync.WaitGroup
	wg.Go(func() {
		if out, ok := f.run(ctx, env, "python3", "-c", pipDefault); ok {
			own = strings.Fields(string(out))
		}
	})
	out, ok := f.run(ctx, env, "python3", "-m", "pip", "config", "list")
	wg.Wait()
	if !ok {
		return nil
	}
	var index, extra []string
	fromEnv := false
	for line := range lines(out) {
		m := pipLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		urls := strings.Fields(strings.NewReplacer(`\n`, " ", `\t`, " ", `\r`, " ").Replace(m[4]))
		switch {
		case m[2] != "index-url":
			extra = append(extra, urls...)
		case m[1] == ":env:": // overrides the files'
			index, fromEnv = urls, true
		case !fromEnv:
			index = append(index, urls...)
		}
	}
	urls := append(index, extra...)
	if len(own) == 2 {
		switch {
		case len(index) == 0:
			urls = append(own, urls...)
		case containsOrigin(urls, own[0]):
			urls = append(urls, own[1])
		}
	}
	return urls
}

func containsOrigin(urls []string, want string) bool {
	w, ok := Origin(want)
	for _, u := range urls {
		if o, valid := Origin(u); ok && valid && o == w {
			return true
		}
	}
	return false
}

// uv has no command that tells its indexes, so its variables and its user's and
// system's files are read.
func (f *Finder) uv() []string {
	var urls []string
	for _, name := range []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"} {
		for _, v := range strings.Fields(os.Getenv(name)) {
			if label, rest, named := strings.Cut(v, "="); named && !strings.Contains(label, ":") {
				v = rest // NAME=URL
			}
			urls = append(urls, v)
		}
	}
	for _, path := range uvFiles() {
		urls = append(urls, f.uvFile(path)...)
	}
	return urls
}

func uvFiles() []string {
	if p := os.Getenv("UV_CONFIG_FILE"); p != "" {
		return []string{p}
	}
	var files []string
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		files = append(files, filepath.Join(dir, "uv", "uv.toml"))
	} else if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".config", "uv", "uv.toml"))
	}
	return append(files, "/etc/uv/uv.toml")
}

func (f *Finder) uvFile(path string) []string {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxAnswer {
		f.log.Warn("a client's configuration could not be read", "client", "uv")
		return nil
	}
	data, err := os.ReadFile(path)
	type indexes struct {
		IndexURL string   `toml:"index-url"`
		Extra    []string `toml:"extra-index-url"`
		Index    []struct {
			URL string `toml:"url"`
		} `toml:"index"`
	}
	var cfg struct {
		indexes
		Pip indexes `toml:"pip"`
	}
	if err != nil || toml.Unmarshal(data, &cfg) != nil {
		f.log.Warn("a client's configuration could not be read", "client", "uv")
		return nil
	}
	var urls []string
	for _, in := range []indexes{cfg.indexes, cfg.Pip} {
		if in.IndexURL != "" {
			urls = append(urls, in.IndexURL)
		}
		urls = append(urls, in.Extra...)
		for _, i := range in.Index {
			urls = append(urls, i.URL)
		}
	}
	return urls
}

func lines(out []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		s := bufio.NewScanner(bytes.NewReader(out))
		s.Buffer(nil, maxAnswer+1)
		for s.Scan() && yield(strings.TrimRight(s.Text(), "\r")) {
		}
	}
}
