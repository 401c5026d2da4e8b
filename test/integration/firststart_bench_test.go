package integration

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// BenchmarkFirstStart measures, interleaved, the time from a start to
// tools/list where the package has to be fetched: `npx -y` itself with an empty
// cache, and `sandboxd run -- npx -y` with nothing but the base, Node and npm
// there. Both fetch from a registry on the loopback that holds every answer in
// memory. What counts is the ratio.
func BenchmarkFirstStart(b *testing.B) {
	const pkg = "@modelcontextprotocol/server-everything"
	e := startEngine(b)
	warmTools(b, e)
	r := newMirror(b)
	took := map[string][]float64{}
	const rounds = 5
	for range b.N {
		for round := range rounds + 1 {
			h := newBuildHome(b, e, r.URL, "")
			ways := map[string]func(context.Context) *exec.Cmd{
				"npx": func(ctx context.Context) *exec.Cmd {
					cmd := lab.UserCommand(ctx, h.home, "npx", "-y", pkg)
					cmd.Env = append(cmd.Env, "npm_config_cache="+filepath.Join(h.home, "npx"))
					return cmd
				},
				"sandboxd": func(ctx context.Context) *exec.Cmd {
					cmd := lab.UserCommand(ctx, h.home, program, "run", "--", "npx", "-y", pkg)
					cmd.Env = append(cmd.Env, h.env()...)
					return cmd
				},
			}
			for way, command := range ways {
				start, _ := measure(b, command)
				if round > 0 { // the first one fills the registry and the engine
					took[way] = append(took[way], start)
				}
			}
			_ = os.RemoveAll(h.home)
		}
	}
	b.ReportMetric(median(took["npx"]), "npx-ms")
	b.ReportMetric(median(took["sandboxd"]), "sandboxd-ms")
	b.ReportMetric(median(took["sandboxd"])/median(took["npx"]), "ratio")
}

// mirror answers from memory what this machine's own registry answered once.
type mirror struct {
	*httptest.Server
	upstream string
	own      *loopRegistry // answers for its packages
	mu       sync.Mutex
	known    map[string][]byte
}

func newMirror(b testing.TB) *mirror {
	b.Helper()
	out, err := exec.Command("npm", "config", "get", "registry").Output()
	if err != nil {
		b.Fatal(err)
	}
	m := &mirror{upstream: strings.TrimSuffix(strings.TrimSpace(string(out)), "/"), known: map[string][]byte{}}
	m.Server = httptest.NewServer(m)
	b.Cleanup(m.Close)
	return m
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Accept") + " " + r.URL.EscapedPath()
	m.mu.Lock()
	body, ok := m.known[key]
	m.mu.Unlock()
	if name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); m.own != nil && m.own.packages[name] != nil {
		m.own.ServeHTTP(w, r)
		return
	}
	if !ok {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, m.upstream+r.URL.EscapedPath(), nil)
		if err != nil || r.Method != http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		req.Header.Set("Accept", r.Header.Get("Accept"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if !strings.HasSuffix(r.URL.Path, ".tgz") {
			body = bytes.ReplaceAll(body, []byte(m.upstream+"/"), []byte(m.URL+"/"))
		}
		m.mu.Lock()
		m.known[key] = body
		m.mu.Unlock()
	}
	_, _ = w.Write(body)
}
